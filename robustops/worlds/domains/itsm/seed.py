"""The generated ITSM world: one organisation with people, things and open work.

Ids start at random numbers and skip some, and record numbers (INC-048213) are unrelated to ids
(INC_412), so that an agent has to look ids up and nothing can be learnt by heart from world to world.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from itertools import product
from random import Random
from typing import Any

from faker import Faker

from robustops.errors import ConfigError
from robustops.seeding import child_seed, generator
from robustops.worlds.database import CLOCK_FORMAT, CLOCK_START, Row, WorldDatabase
from robustops.worlds.domains.itsm import words
from robustops.worlds.domains.itsm.schema import TABLES, encode

#: Incidents by name of a size; everything else follows from that number.
SIZES = {"tiny": 16, "small": 40, "medium": 160, "large": 640}
MAX_INCIDENTS = 3000
_STATUSES = ("new",) * 6 + ("in_progress",) * 7 + ("on_hold",) * 2 + ("resolved",) * 3 + ("closed",) * 2
_PRIORITIES = ("low", "low", "moderate", "moderate", "moderate", "high", "planning")
_LEVELS = ("low", "medium", "high")


def fill_world(database: WorldDatabase, seed: int, size: str) -> None:
    """Write the world of this seed. size: a name in `SIZES`, or a number of incidents as text."""
    count = SIZES.get(size) or (int(size) if str(size).isdigit() else 0)
    if not 4 <= count <= MAX_INCIDENTS:
        raise ConfigError(
            f"world size '{size}' is not known; choose {', '.join(SIZES)} or a number of incidents "
            f"from 4 to {MAX_INCIDENTS}"
        )
    _Builder(database, seed, count).build()


class _Builder:
    """Writes the tables in the order of their references."""

    def __init__(self, database: WorldDatabase, seed: int, incidents: int) -> None:
        self.database = database
        self.rng: Random = generator(seed, "itsm world")
        self.faker = Faker("en_US")
        self.faker.seed_instance(child_seed(seed, "itsm faker"))
        self.incidents = incidents
        self.rows: dict[str, list[Row]] = {name: [] for name in TABLES}
        self.next_id: dict[str, int] = {}
        self.org = ""

    def build(self) -> None:
        self._organisation()
        self._people()
        self._groups()
        self._catalogue()
        self._work()
        self._links()
        for name, rows in self.rows.items():
            self.database.insert_many(name, rows)

    # helpers ------------------------------------------------------------------------------------
    def add(self, table: str, values: Mapping[str, Any], *, day: int = 0) -> Row:
        """A new row with the next id; day: how many days before the clock's start it was made."""
        spec = TABLES[table]
        values = dict(values)
        if spec.prefix:
            values.setdefault(spec.id, self._id(table))
        if "org_id" in spec.columns:
            values.setdefault("org_id", self.org)
        if spec.created:
            start = datetime.strptime(CLOCK_START, CLOCK_FORMAT)
            back = timedelta(days=day or 200, seconds=self.rng.randrange(60, 80_000))
            moment = start - back
            values[spec.created] = moment.strftime(CLOCK_FORMAT)
            later = moment + timedelta(seconds=self.rng.randrange(0, 50))
            values[spec.updated] = later.strftime(CLOCK_FORMAT)
        row = encode(spec, values)
        self.rows[table].append(row)
        return row

    def _id(self, table: str) -> str:
        number = self.next_id.get(table) or self.rng.randrange(100, 600)
        self.next_id[table] = number + self.rng.randint(1, 3)
        return f"{TABLES[table].prefix}_{number:03d}"

    def pick(self, table: str) -> str:
        """The id of a random row."""
        row = self.rng.choice(self.rows[table])
        return str(row[TABLES[table].id])

    def share(self, part: float, least: int) -> int:
        """A number of rows in proportion to the incidents."""
        return max(least, round(self.incidents * part))

    # tables -------------------------------------------------------------------------------------
    def _organisation(self) -> None:
        name = self.faker.unique.last_name() + " Group"
        self.org = self._id("organization")
        self.add("organization", {"org_id": self.org, "name": name, "active": True})
        for role in ("admin", "manager", "agent", "reporter"):
            row = self.add("role", {"name": role})
            for resource in words.RESOURCES:
                action = "crud" if role in ("admin", "manager") else "read"
                right = self.add("permission", {"resource": resource, "action": action})
                pair = {"role_id": row["role_id"], "perm_id": right["perm_id"]}
                self.add("role_permission", pair)
        for city in self.rng.sample(words.CITIES, 4):
            place = {"name": f"{city} Office", "city": city, "country": self.faker.country()}
            self.add("location", {**place, "street": self.faker.street_name(), "active": True})

    def _people(self) -> None:
        domain = self.rows["organization"][0]["name"].split()[0].lower() + ".com"
        total = self.share(0.6, 10)
        roles = ["admin", "manager", "manager"] + ["agent"] * (total * 2 // 5)
        roles += ["reporter"] * (total - len(roles))
        roles_by_name = {row["name"]: row["role_id"] for row in self.rows["role"]}
        seen: set[tuple[str, str]] = set()
        for role in roles:
            first, last = self.faker.first_name(), self.faker.last_name()
            while (first, last) in seen:
                first, last = self.faker.first_name(), self.faker.last_name()
            seen.add((first, last))
            login = f"{first}.{last}".lower()
            number = len(seen)
            values = {
                "user_name": login,
                "first_name": first,
                "last_name": last,
                "email": f"{login}@{domain}",
                "phone": f"+1-415-{200 + number // 9000:03d}-{1000 + number % 9000:04d}",
                "role": role,
                "active": True,
                "static_token": f"token-{self.rng.getrandbits(48):012x}",
                "location_id": self.pick("location"),
            }
            user = self.add("users", values)
            link = {"user_id": user["user_id"], "role_id": roles_by_name[role], "org_id": self.org}
            self.add("user_role", link)
        self.agents = [row["user_id"] for row in self.rows["users"] if row["role"] == "agent"]
        self.managers = [row["user_id"] for row in self.rows["users"] if row["role"] == "manager"]

    def _groups(self) -> None:
        for name, kind in self.rng.sample(words.GROUPS, min(len(words.GROUPS), self.share(0.2, 4))):
            values = {
                "name": name,
                "type": kind,
                "active": True,
                "manager_id": self.rng.choice(self.managers),
            }
            group = self.add("user_group", {**values, "description": f"{name} of the IT department"})
            for user in self.rng.sample(self.agents, min(len(self.agents), self.rng.randint(2, 4))):
                self.add("user_group_member", {"group_id": group["group_id"], "user_id": user})

    def _catalogue(self) -> None:
        common = {"used_for": "production", "status": "operational"}
        for name in words.SERVICES:
            values = {
                **common,
                "name": name,
                "owned_by": self.rng.choice(self.managers),
                "service_classification": "business",
                "business_criticality": self.rng.choice(("critical", "less-critical")),
            }
            service = self.add("service", {**values, "description": f"{name} for all staff"})
            more = {
                "short_description": f"Standard {name.lower()}",
                "business_service": service["service_id"],
            }
            self.add("service_offering", {**values, **more, "name": f"{name} Standard"})
        serials = self.rng.sample(range(1000, 10_000), self.share(0.3, 6))
        for serial in serials:
            name, prefix = self.rng.choice(words.ITEMS)
            owner = self.rng.choice(self.rows["users"])
            values = {
                "name": f"{owner['first_name']} {name}",
                "serial_number": f"{prefix}-{serial}",
                "owner_id": owner["user_id"],
                "location_id": self.pick("location"),
                "status": "in_use",
                "cost": float(self.rng.randrange(200, 4000, 50)),
            }
            self.add("configuration_item", values)
        for name, metric, priority, minutes in words.SLAS:
            values = {"name": name, "metric": metric, "target_mins": minutes, "applies_to_priority": priority}
            self.add("sla_definition", {**values, "pause_on_pending": True, "active": True})
        titles = self.rng.sample(words.ARTICLES, min(len(words.ARTICLES), self.share(0.2, 5)))
        for number, title in zip(self._numbers(len(titles), 1000), titles, strict=True):
            values = {
                "kb_number": f"KB{number:07d}",
                "title": title,
                "body": f"Steps: {title.lower()}.",
                "state": self.rng.choice(("published", "published", "published", "draft")),
                "visibility": "internal",
                "owner_id": self.rng.choice(self.agents),
            }
            self.add("knowledge", values)
        for subject, category in self.rng.sample(words.SUBJECTS, 2):
            values = {
                "name": f"{subject} template",
                "active": True,
                "caller_id": self.pick("users"),
                "short_description": f"{subject} trouble",
                "category": category,
                "impact": "low",
                "urgency": "low",
                "priority": "low",
            }
            self.add("incident_template", values)

    def _numbers(self, count: int, span: int) -> list[int]:
        """Distinct record numbers in ascending order."""
        return sorted(self.rng.sample(range(100, 100 + max(span, 4 * count)), count))

    def _work(self) -> None:
        texts = [f"{s} {e}|{category}" for (s, category), e in product(words.SUBJECTS, words.SYMPTOMS)]
        while len(texts) < 2 * self.incidents + 8:
            texts += [t.replace("|", f" at desk {len(texts) + i}|") for i, t in enumerate(texts[:160])]
        self.rng.shuffle(texts)
        for number in sorted(self.rng.sample(range(10_000, 100_000), self.incidents)):
            self._incident(number, texts.pop())
        for number in self._numbers(self.share(0.15, 3), 1000):
            text, _, category = texts.pop().partition("|")
            category = "hardware" if category == "password-reset" else category
            values = {
                "number": f"PRB{number:07d}",
                "problem_statement": f"Recurring: {text}",
                "short_description": text,
                "opened_by": self.rng.choice(self.managers),
                "assigned_to": self.rng.choice(self.agents),
                "assignment_group": self.pick("user_group"),
                "original_task": self.pick("incident"),
                "status": self.rng.choice(("new", "assess", "root_cause", "fix_in_progress")),
                "category": category,
                "impact": self.rng.choice(_LEVELS),
                "urgency": self.rng.choice(_LEVELS),
                "priority": self.rng.choice(("low", "moderate", "high")),
            }
            self.add("problem", values, day=20)
        for number in self._numbers(self.share(0.15, 3), 1000):
            values = {
                "number": f"CHG{number:07d}",
                "short_description": self.rng.choice(words.CHANGES),
                "requested_by": self.rng.choice(self.managers),
                "configuration_item": self.pick("configuration_item"),
                "assigned_to": self.rng.choice(self.agents),
                "assignment_group": self.pick("user_group"),
                "status": self.rng.choice(("new", "assess", "authorize", "scheduled", "implement")),
                "category": "hardware",
                "cab_required": False,
                "impact": self.rng.choice(_LEVELS),
                "priority": self.rng.choice(("low", "moderate", "high")),
                "risk": self.rng.choice(_LEVELS),
            }
            self.add("change", values, day=15)

    def _incident(self, number: int, text: str) -> None:
        description, _, category = text.partition("|")
        status = self.rng.choice(_STATUSES)
        done = status in ("resolved", "closed")
        agent = self.rng.choice(self.agents)
        values = {
            "number": f"INC-{number:06d}",
            "short_description": description,
            "caller_id": self.pick("users"),
            "service": self.pick("service") if self.rng.random() < 0.5 else None,
            "configuration_item": self.pick("configuration_item") if self.rng.random() < 0.75 else None,
            "assigned_to": agent if status != "new" or self.rng.random() < 0.5 else None,
            "assignment_group": self.pick("user_group"),
            "resolved_by": agent if done else None,
            "channel": self.rng.choice(("phone", "email", "chat", "self-service")),
            "status": status,
            "category": category,
            "impact": self.rng.choice(_LEVELS),
            "urgency": self.rng.choice(_LEVELS),
            "priority": self.rng.choice(_PRIORITIES),
            "resolution_code": "Solution Provided" if done else None,
            "resolution_notes": "Fixed at the desk" if done else None,
            "on_hold_reason": "Awaiting Caller" if status == "on_hold" else None,
        }
        self.add("incident", values, day=self.rng.randint(1, 60))

    def _links(self) -> None:
        incidents = [row["incident_id"] for row in self.rows["incident"]]
        for parent, child in zip(
            *[iter(self.rng.sample(incidents, 2 * (len(incidents) // 10)))] * 2, strict=True
        ):
            self.add("child_incident", {"parent_incident": parent, "child_incident": child}, day=2)
        for incident in self.rng.sample(incidents, len(incidents) // 6):
            values = {"incident_id": incident, "knowledge_id": self.pick("knowledge"), "used_as": "suggested"}
            self.add("incident_knowledge", values, day=2)
        for incident in self.rng.sample(incidents, len(incidents) // 6):
            values = {"configuration_item": self.pick("configuration_item"), "incident_id": incident}
            self.add("incident_affected_cis", values, day=2)
        for incident in self.rng.sample(incidents, len(incidents) // 4):
            values = {
                "incident_id": incident,
                "sla_def_id": self.pick("sla_definition"),
                "stage": self.rng.choice(("in_progress", "paused", "completed")),
                "has_breached": False,
                "start_time": self.rows["incident"][0]["created_at"],
            }
            self.add("incident_sla", values, day=2)
        for incident in self.rng.sample(incidents, len(incidents) // 8):
            user = self.rng.choice(self.rows["users"])
            values = {"incident_id": incident, "email": user["email"], "subject": "Status", "type": "update"}
            self.add("notification", {**values, "message": "We are on it", "status": "sent"}, day=2)
        for change in self.rows["change"][::2]:
            values = {"change_id": change["change_id"], "incident_id": self.rng.choice(incidents)}
            self.add("change_request_mapping", values, day=2)
