"""Tools about users, groups and locations."""

from __future__ import annotations

import re

from robustops.errors import ToolError
from robustops.worlds.database import Row
from robustops.worlds.domains.itsm.enums import GroupType, UserRole
from robustops.worlds.domains.itsm.tools.base import ItsmBase
from robustops.worlds.toolset import tool

_PHONE = re.compile(r"^\+\d{1,3}-\d{3}-\d{3}-\d{4}$")


class PeopleTools(ItsmBase):
    """Users, their groups, locations."""

    @tool("read", identity={"user_id": "users.user_id"})
    def get_user(self, user_id: str) -> Row:
        """Get one user by id."""
        row = self._get("users", user_id)
        if row is None:
            raise ToolError("NOT_FOUND", f"User not found with identifier '{user_id}'")
        return self._reply("users", row)

    @tool("read", identity={"email": "users.email"})
    def get_user_using_email(self, email: str) -> Row:
        """Get one user by email address."""
        self._check_email(email)
        row = self._first("users", email=email)
        if row is None:
            raise ToolError("NOT_FOUND", f"User not found with identifier '{email}'")
        return self._reply("users", row)

    @tool("read", identity={"first_name": "users.first_name", "last_name": "users.last_name"})
    def get_user_using_name(self, first_name: str, last_name: str) -> Row:
        """Get one user by first and last name."""
        rows = self.database.query(
            "SELECT user_id FROM users WHERE lower(trim(first_name)) = lower(trim(?)) "
            "AND lower(trim(last_name)) = lower(trim(?)) ORDER BY rowid",
            (first_name, last_name),
        )
        row = self._get("users", rows[0]["user_id"]) if rows else None
        if row is None:
            raise ToolError("NOT_FOUND", f"User not found with identifier '{first_name} {last_name}'")
        return self._reply("users", row)

    @tool("read")
    def list_users(
        self,
        email: str | None = None,
        user_id: str | None = None,
        first_name: str | None = None,
        last_name: str | None = None,
        phone: str | None = None,
        role: UserRole | None = None,
        active: str | None = None,
        created_after: str | None = None,
        created_before: str | None = None,
    ) -> Row:
        """List users that match all filters; `active` is true or false."""
        filters = {
            "email": email,
            "user_id": user_id,
            "first_name": first_name,
            "last_name": last_name,
            "phone": phone,
            "role": role,
            "active": None if active is None else int(active.strip().lower() == "true"),
        }
        rows = self._select(
            "users",
            filters,
            order="oldest",
            contains=("email", "first_name", "last_name"),
            after=created_after,
            before=created_before,
        )
        for row in rows:
            del row["static_token"]
        reply: Row = self._list("users", rows, "users")
        return reply

    @tool("write")
    def update_user_details(
        self,
        user_id: str,
        email: str | None = None,
        first_name: str | None = None,
        last_name: str | None = None,
        active: bool | None = None,
        phone: str | None = None,
        role: UserRole | None = None,
        user_name: str | None = None,
        company_id: str | None = None,
        location_id: str | None = None,
    ) -> Row:
        """Change a user's details; `company_id` is the organization."""
        given = self._given_values(locals(), null_clears=False)
        del given["user_id"]
        if "email" in given:
            self._check_email(given["email"])
        if "phone" in given and not _PHONE.match(given["phone"]):
            raise ToolError("INVALID_PHONE_FORMAT", f"Invalid phone format provided: '{phone}'", "phone")
        row = self._get("users", user_id)
        if row is None:
            raise ToolError("NOT_FOUND", f"User not found with identifier '{user_id}'", "user_id")
        if "company_id" in given:
            given["org_id"] = given.pop("company_id")
        self._check_user_targets(row, given)
        changes = {name: value for name, value in given.items() if row[name] != value}
        if not changes:
            raise ToolError(
                "NO_CHANGES_DETECTED",
                "No changes detected - all provided values are the same as current values",
            )
        return self._reply("users", self._patch("users", row, changes), changes)

    def _check_user_targets(self, row: Row, given: Row) -> None:
        """References and uniqueness of a user's new values."""
        if "location_id" in given and self._get("location", given["location_id"]) is None:
            place = given["location_id"]
            raise ToolError("LOCATION_NOT_FOUND", f"Location with ID '{place}' not found", "location_id")
        if "org_id" in given and self._get("organization", given["org_id"]) is None:
            raise ToolError("NOT_FOUND", f"Organization '{given['org_id']}' not found", "company_id")
        for name, scope in (("phone", {}), ("email", {"org_id": row["org_id"]})):
            if name in given:
                other = self._first("users", **{name: given[name]}, **scope)
                if other is not None and other["user_id"] != row["user_id"]:
                    raise ToolError("DATABASE_ERROR", "Failed to update user due to database constraint")

    # groups -------------------------------------------------------------------------------------
    @tool("read", identity={"name": "user_group.name"})
    def find_group_by_name(self, name: str) -> Row:
        """Get one group by its exact name."""
        row = self._first("user_group", name=name.strip())
        if row is None:
            raise ToolError("NOT_FOUND", f"User group not found with identifier '{name}'", "name")
        return self._reply("user_group", row)

    @tool("read")
    def list_user_groups(
        self,
        group_id: str | None = None,
        name: str | None = None,
        active: bool | None = None,
        type: GroupType | None = None,
        created_after: str | None = None,
        created_before: str | None = None,
    ) -> Row:
        """List groups that match all filters."""
        filters = {"group_id": group_id, "name": name, "active": active, "type": type}
        rows = self._select(
            "user_group",
            filters,
            order="newest",
            contains=("name",),
            after=created_after,
            before=created_before,
            bounds=">,<",
        )
        reply: Row = self._list("user_group", rows, "user_groups")
        return reply

    @tool("read")
    def list_group_members(
        self,
        member_id: str | None = None,
        group_id: str | None = None,
        user_id: str | None = None,
        created_after: str | None = None,
        created_before: str | None = None,
    ) -> Row:
        """List memberships of a group or of a user."""
        filters = {"member_id": member_id, "group_id": group_id, "user_id": user_id}
        rows = self._select(
            "user_group_member",
            filters,
            order="newest",
            after=created_after,
            before=created_before,
            bounds=">,<",
        )
        reply: Row = self._list("user_group_member", rows, "group_members")
        return reply

    @tool("write")
    def add_new_group_member(self, group_id: str, user_id: str) -> Row:
        """Add a user to a group."""
        group = self._member_pair(group_id, user_id)
        if self._first("user_group_member", group_id=group_id, user_id=user_id):
            raise ToolError(
                "DUPLICATE_MEMBERSHIP", f"User '{user_id}' is already a member of group '{group_id}'"
            )
        number = max(
            self.database.next_number("user_group_member", "member_id", prefix)
            for prefix in ("MEM_", "MEMBER_")
        )
        values = {
            "member_id": f"MEMBER_{number:03d}",
            "group_id": group_id,
            "user_id": user_id,
            "org_id": group["org_id"],
        }
        return self._reply("user_group_member", self._insert("user_group_member", values))

    @tool("write")
    def remove_group_membership(self, group_id: str, user_id: str, member_id: str | None = None) -> Row:
        """Remove a user from a group."""
        self._member_pair(group_id, user_id)
        filters = {"group_id": group_id, "user_id": user_id, "member_id": member_id}
        rows = self._select("user_group_member", filters)
        if not rows:
            given = ", ".join(f"{name}={value}" for name, value in filters.items() if value is not None)
            raise ToolError("NOT_FOUND", f"Group membership not found with identifier '{given}'")
        self.database.delete("user_group_member", {"member_id": rows[0]["member_id"]})
        return {"message": "Group membership removed successfully"}

    def _member_pair(self, group_id: str, user_id: str) -> Row:
        group = self._get("user_group", group_id)
        if group is None:
            raise ToolError("NOT_FOUND", f"User group not found with identifier '{group_id}'", "group_id")
        if self._get("users", user_id) is None:
            raise ToolError("NOT_FOUND", f"User not found with identifier '{user_id}'", "user_id")
        return group

    # locations ----------------------------------------------------------------------------------
    @tool("read", identity={"name": "location.name"})
    def find_location_by_given_name(self, name: str) -> Row:
        """Get one location by its exact name."""
        row = self._first("location", name=name.strip())
        if row is None:
            raise ToolError("RESOURCE_NOT_FOUND", f"Location not found with identifier '{name}'", "name")
        return self._reply("location", row)
