"""The calendar world: seed data, tools, refusals, replies."""

import json

import pytest

from robustops.errors import ConfigError
from robustops.records import DatabaseSpec, ToolCall
from robustops.worlds.domain import get_domain
from robustops.worlds.domains.calendar import DOMAIN, POLICY
from robustops.worlds.domains.calendar.schema import BRIEF_COLUMNS
from robustops.worlds.domains.calendar.seed import SIZES
from tests.worlds.calendar_hand import HAND


def toolset(detail="full"):
    domain = DOMAIN(detail=detail)
    tools = domain.empty_toolset()
    with tools.database.atomic():
        for table, rows in HAND.items():
            for row in rows:
                tools.database.insert(table, row)
    return tools


def ask(tools, tool, /, **arguments):
    result = tools.call(ToolCall(tool, arguments))
    assert not result.is_error, result.text
    return result.data


# seed world ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("size", SIZES)
def test_same_seed_same_world(size):
    spec, other = DatabaseSpec(seed=3, size=size), DatabaseSpec(seed=4, size=size)
    first, second, third = (DOMAIN().open(s) for s in (spec, spec, other))
    assert first.dump() == second.dump()
    assert first.dump() != third.dump()
    people, calendars, events, rooms = SIZES[size]
    counts = [len(first.find(table)) for table in ("users", "calendars", "events", "rooms")]
    assert counts == [people, calendars, events, rooms]


@pytest.mark.parametrize("size", ["small", "medium"])
def test_seed_world_is_consistent(size):
    for seed in range(5):
        database = DOMAIN().open(DatabaseSpec(seed=seed, size=size))
        database._connection.execute("PRAGMA foreign_keys = ON")
        assert database.query("PRAGMA foreign_key_check") == []
        assert database.scalar("SELECT COUNT(*) FROM events WHERE end_time <= start_time") == 0
        double = (
            "SELECT COUNT(*) FROM events a JOIN events b "
            "ON a.room_id = b.room_id AND a.event_id < b.event_id "
            "AND a.status = 'confirmed' AND b.status = 'confirmed' "
            "AND a.start_time < b.end_time AND b.start_time < a.end_time"
        )
        assert database.scalar(double) == 0
        ownerless = (
            "SELECT COUNT(*) FROM calendars c WHERE NOT EXISTS (SELECT 1 FROM acl_rules a "
            "WHERE a.calendar_id = c.calendar_id AND a.role = 'owner' AND a.email = c.owner_email)"
        )
        assert database.scalar(ownerless) == 0
        assert database.scalar("SELECT COUNT(DISTINCT calendar_id) FROM events") == SIZES[size][1]


def test_unknown_size_is_refused():
    with pytest.raises(ConfigError, match=r"huge.*large, medium, small, tiny"):
        DOMAIN().open(DatabaseSpec(size="huge"))


# refusals -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "arguments", "code", "field"),
    [
        ("get_event", {"event_id": "evt_9"}, "NOT_FOUND", "event_id"),
        ("get_calendar", {"calendar_id": "cal_9"}, "NOT_FOUND", "calendar_id"),
        ("get_user_by_email", {"email": "no@x.example"}, "NOT_FOUND", "email"),
        ("get_room", {"room_id": "room_1"}, "NOT_FOUND", "room_id"),
        ("get_acl_rule", {"rule_id": "acl_9"}, "NOT_FOUND", "rule_id"),
        ("delete_reminder", {"reminder_id": "rem_9"}, "NOT_FOUND", "reminder_id"),
        ("update_attendee", {"event_id": "evt_2", "email": "bob@x.example", "response_status": "accepted"},
         "NOT_FOUND", "email"),
        ("get_event", {}, "MISSING_ARGUMENT", "event_id"),
        ("get_event", {"event_id": "evt_1", "id": 1}, "UNKNOWN_ARGUMENT", "id"),
        ("create_acl_rule", {"calendar_id": "cal_2", "email": "bob@x.example", "role": "boss"},
         "INVALID_ENUM_VALUE", "role"),
        ("add_reminder", {"event_id": "evt_1", "method": "pigeon", "minutes_before": 5},
         "INVALID_ENUM_VALUE", "method"),
        ("add_reminder", {"event_id": "evt_1", "method": "popup", "minutes_before": -1},
         "INVALID_ARGUMENT", "minutes_before"),
        ("add_reminder", {"event_id": "evt_1", "method": "popup", "minutes_before": 10}, "ALREADY_EXISTS",
         "event_id"),
        ("create_event", {"calendar_id": "cal_2", "title": " ", "start_time": "2026-02-02 10:00"},
         "INVALID_ARGUMENT", "title"),
        ("create_event", {"calendar_id": "cal_2", "title": "A", "start_time": "2 Feb"}, "INVALID_TIME",
         "start_time"),
        ("create_event", {"calendar_id": "cal_2", "title": "A", "start_time": "2026-02-30 10:00"},
         "INVALID_TIME", "start_time"),
        ("list_events", {"day": "2026-13-01"}, "INVALID_TIME", "day"),
        ("update_event", {"event_id": "evt_1", "end_time": "2026-02-02 10:00"}, "INVALID_TIME_RANGE",
         "end_time"),
        ("update_event", {"event_id": "evt_1"}, "NOTHING_TO_CHANGE", None),
        ("update_event", {"event_id": "evt_2", "start_time": "2026-02-02 11:00", "room_id": "room_7"},
         "ROOM_BUSY", "room_id"),
        ("update_event", {"event_id": "evt_3", "title": "New"}, "INVALID_TRANSITION", "event_id"),
        ("move_event", {"event_id": "evt_3", "calendar_id": "cal_1"}, "INVALID_TRANSITION", "event_id"),
        ("cancel_event", {"event_id": "evt_3"}, "INVALID_TRANSITION", "event_id"),
        ("add_attendee", {"event_id": "evt_3", "email": "bob@x.example"}, "INVALID_TRANSITION", "event_id"),
        ("move_event", {"event_id": "evt_1", "calendar_id": "cal_2"}, "ALREADY_EXISTS", "calendar_id"),
        ("add_attendee", {"event_id": "evt_1", "email": "bob@x.example"}, "ALREADY_EXISTS", "email"),
        ("create_acl_rule", {"calendar_id": "cal_2", "email": "ann@x.example", "role": "reader"},
         "ALREADY_EXISTS", "email"),
        ("delete_acl_rule", {"rule_id": "acl_1"}, "LAST_OWNER", "rule_id"),
        ("update_acl_rule", {"rule_id": "acl_1", "role": "reader"}, "LAST_OWNER", "rule_id"),
        ("delete_calendar", {"calendar_id": "cal_1"}, "FORBIDDEN", "calendar_id"),
        ("delete_calendar", {"calendar_id": "cal_2"}, "CALENDAR_NOT_EMPTY", "calendar_id"),
        ("add_calendar_to_list", {"calendar_id": "cal_2"}, "ALREADY_EXISTS", "calendar_id"),
        ("remove_calendar_from_list", {"calendar_id": "cal_3"}, "NOT_FOUND", "calendar_id"),
        ("update_calendar_in_list", {"calendar_id": "cal_2", "color_id": "clr_1"}, "NOT_FOUND", "color_id"),
        ("query_freebusy", {"start_time": "2026-02-02 10:00", "end_time": "2026-02-02 12:00"},
         "MISSING_ARGUMENT", "room_id"),
        ("no_such_tool", {}, "UNKNOWN_TOOL", "name"),
    ],
)  # fmt: skip
def test_refusals_are_structured_and_change_nothing(name, arguments, code, field):
    tools = toolset()
    before = tools.database.dump()
    result = tools.call(ToolCall(name, arguments))
    assert result.is_error
    error = result.data["error"]
    assert error["code"] == code and error.get("field") == field and error["message"]
    assert tools.database.dump() == before


def test_enum_refusal_names_the_allowed_values():
    arguments = {"calendar_id": "cal_2", "email": "bob@x.example", "role": "boss"}
    error = toolset().call(ToolCall("create_acl_rule", arguments)).data["error"]
    assert error["allowed"] == ["freeBusyReader", "owner", "reader", "writer"]


# behaviour ----------------------------------------------------------------------------------------
def test_a_new_start_keeps_the_length_and_the_room():
    tools = toolset()
    event = ask(tools, "update_event", event_id="evt_1", start_time="2026-02-03 15:00")
    assert (event["start_time"], event["end_time"]) == ("2026-02-03 15:00", "2026-02-03 16:30")
    assert event["room_id"] == "room_7"
    assert event["updated_at"] > event["created_at"]
    assert ask(tools, "update_event", event_id="evt_1", room_id="")["room_id"] is None


def test_a_cancelled_event_releases_its_room_and_leaves_the_lists():
    tools = toolset()
    assert ask(tools, "cancel_event", event_id="evt_1")["status"] == "cancelled"
    booked = ask(tools, "update_event", event_id="evt_2", start_time="2026-02-02 10:00", room_id="room_7")
    assert booked["room_id"] == "room_7"
    assert [e["event_id"] for e in ask(tools, "list_events")["events"]] == ["evt_2"]
    assert ask(tools, "list_events", show_cancelled=True)["total_count"] == 3


def test_touching_times_are_no_overlap():
    event = ask(toolset(), "update_event", event_id="evt_2", start_time="2026-02-02 09:30", room_id="room_7")
    assert event["end_time"] == "2026-02-02 10:00"


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({}, ["evt_2", "evt_1"]),
        ({"title": "AUDIT"}, ["evt_1"]),
        ({"day": "2026-02-03", "show_cancelled": True}, ["evt_3"]),
        ({"email": "bob@x.example"}, ["evt_1"]),
        ({"calendar_id": "cal_3"}, []),
        ({"calendar_id": "cal_2", "title": "risk"}, ["evt_2"]),
    ],
)
def test_event_filters(filters, expected):
    reply = ask(toolset(), "list_events", **filters)
    assert [event["event_id"] for event in reply["events"]] == expected
    assert reply["total_count"] == len(expected)


def test_freebusy_of_room_person_and_calendar():
    tools = toolset()
    span = {"start_time": "2026-02-02 09:15", "end_time": "2026-02-02 10:15"}
    long = {"start_time": "2026-02-02 10:00", "end_time": "2026-02-02 11:30"}
    short = {"start_time": "2026-02-02 09:00", "end_time": "2026-02-02 09:30"}
    assert ask(tools, "query_freebusy", **span, room_id="room_7")["busy"] == [long]
    assert ask(tools, "query_freebusy", **span, email="bob@x.example")["busy"] == [long]
    assert ask(tools, "query_freebusy", **span, email="ann@x.example")["busy"] == []
    assert ask(tools, "query_freebusy", **span, calendar_id="cal_2")["busy"] == [short, long]


def test_a_new_calendar_belongs_to_the_acting_user():
    tools = toolset()
    tools.acting_user = "bob@x.example"
    calendar = ask(tools, "create_calendar", name="Harbor")
    assert calendar["owner_email"] == "bob@x.example"
    rules = ask(tools, "list_acl", calendar_id=calendar["calendar_id"])["rules"]
    assert [(rule["email"], rule["role"]) for rule in rules] == [("bob@x.example", "owner")]
    assert ask(tools, "get_calendar_list")["total_count"] == 1


def test_deleting_a_calendar_takes_what_hangs_on_it_along():
    tools = toolset()
    for event in ("evt_1", "evt_2"):
        assert ask(tools, "move_event", event_id=event, calendar_id="cal_3")["calendar_id"] == "cal_3"
    assert ask(tools, "delete_calendar", calendar_id="cal_2")["deleted"] is True
    assert tools.database.find("acl_rules") == [] and tools.database.find("calendar_list") == []
    assert [event["event_id"] for event in tools.database.find("events")] == ["evt_1", "evt_2"]
    assert len(tools.database.find("attendees")) == 1


def test_owner_can_go_once_there_is_another():
    tools = toolset()
    ask(tools, "create_acl_rule", calendar_id="cal_2", email="bob@x.example", role="owner")
    ask(tools, "delete_acl_rule", rule_id="acl_1")
    assert [r["email"] for r in ask(tools, "list_acl", calendar_id="cal_2")["rules"]] == ["bob@x.example"]


def test_new_ids_are_free_and_replayable():
    seen = []
    for _ in range(2):
        tools = toolset()
        ids = [ask(tools, "create_calendar", name=f"C{n}")["calendar_id"] for n in range(95)]
        assert len(set(ids)) == 95
        seen.append(ids)
    assert seen[0] == seen[1]


# replies ------------------------------------------------------------------------------------------
def test_read_tools_change_nothing_and_identities_are_echoed():
    for detail in ("brief", "full"):
        tools = toolset(detail)
        before = tools.database.changes, tools.database.now()
        for spec in tools.specs().values():
            if spec.kind == "write":
                continue
            values = {"event_id": "evt_1", "start_time": "2026-02-02 09:15", "end_time": "2026-02-02 11:15"}
            values |= {
                "calendar_id": "cal_2",
                "email": "ann@x.example",
                "rule_id": "acl_1",
                "room_id": "room_7",
            }
            arguments = {name: values[name] for name in spec.arguments if name in values}
            reply = ask(tools, spec.name, **arguments)
            for argument, target in spec.identity.items():
                table, column = target.split(".")
                assert reply[column] == arguments[argument]
                assert tools.database.find(table, **{column: arguments[argument]})
            lists = [value for value in reply.values() if isinstance(value, list)]
            assert len(lists) == (0 if spec.identity else 1)
            assert spec.identity or reply["total_count"] == len(lists[0])
        assert (tools.database.changes, tools.database.now()) == before


def test_brief_rows_are_short_and_full_rows_whole():
    brief, full = get_domain("calendar", "brief"), get_domain("calendar", "full")
    spec = DatabaseSpec(seed=11)
    for domain in (brief, full):
        tools = domain.empty_toolset()
        tools.database.restore(domain.start_image(spec))
        events = ask(tools, "list_events")["events"]
        for row in (*events, *ask(tools, "list_users")["users"], *ask(tools, "list_calendars")["calendars"]):
            text = json.dumps(row)
            if domain is brief:
                assert 3 <= len(row) <= 6 and len(text) < 140
        if domain is full:
            assert set(events[0]) == set(tools.database.find("events")[0])
        calendar = events[0]["calendar_id"]
        assert len(ask(tools, "list_events", calendar_id=calendar)["events"]) <= 6


def test_brief_columns_are_columns():
    tables = set(DOMAIN().new_database().tables())
    aliases = {"calendar_details": "calendars", "event_details": "events", "user_details": "users"}
    for name, columns in BRIEF_COLUMNS.items():
        table = aliases.get(name, name)
        assert table in tables
        info = DOMAIN().new_database().query(f'PRAGMA table_info("{table}")')
        assert set(columns) <= {column["name"] for column in info}
        assert 2 <= len(columns) <= 6


def test_schemas_have_descriptions_and_policy_is_short():
    for spec in DOMAIN.toolset.specs().values():
        assert spec.description and len(spec.description.split()) <= 16
        properties = spec.input_schema["properties"]
        assert all(value.get("description") and value.get("type") for value in properties.values()), spec.name
    assert len(POLICY.split()) <= 60
    assert len(DOMAIN.toolset.specs()) >= 22
