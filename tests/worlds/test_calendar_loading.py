"""Calendar worlds from files: JSON tables and SQLite."""

import json
import sqlite3

import pytest

from robustops.errors import ConfigError
from robustops.records import DatabaseSpec
from robustops.worlds.domains.calendar import DOMAIN
from tests.worlds.calendar_hand import HAND


def test_json_and_sqlite_round_trip(tmp_path):
    source = DOMAIN().open(DatabaseSpec(seed=5, size="medium"))
    as_json, as_sqlite = tmp_path / "world.json", tmp_path / "world.db"
    as_json.write_text(json.dumps(source.dump()))
    as_sqlite.write_bytes(source.snapshot().image)
    for path in (as_json, as_sqlite):
        assert DOMAIN().open(DatabaseSpec(path=str(path))).dump() == source.dump()


def test_defaults_are_filled_in(tmp_path):
    path = tmp_path / "hand.json"
    path.write_text(json.dumps(HAND))
    database = DOMAIN().open(DatabaseSpec(path=str(path)))
    assert database.find("attendees")[0]["optional"] == 0
    assert database.find("users")[0]["manager_email"] is None


def _without(table):
    return {name: rows for name, rows in HAND.items() if name != table}


@pytest.mark.parametrize(
    ("tables", "complaint"),
    [
        ([], "the top level must be an object of tables, not list"),
        (_without("rooms"), "table 'rooms' is missing"),
        ({**HAND, "boats": []}, "unknown table 'boats'"),
        ({**HAND, "rooms": "Oak"}, "table 'rooms' must be rows by key or a list of rows"),
        ({**HAND, "rooms": ["Oak"]}, "row 0 of table 'rooms' is no object"),
        ({**HAND, "rooms": [{**HAND["rooms"][0], "area": 3}]}, "unknown column 'area'"),
        ({**HAND, "rooms": [{"room_id": "room_7"}]}, "needs a value in column 'room_name'"),
        ({**HAND, "rooms": [{**HAND["rooms"][0], "capacity": [4]}]}, "'capacity' takes a plain value"),
        ({**HAND, "rooms": HAND["rooms"] * 2}, "table 'rooms' does not fit: UNIQUE"),
        ({**HAND, "rooms": []}, r"events.room_id = 'room_7' is not in rooms.room_id"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path, tables, complaint):
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(tables))
    with pytest.raises(ConfigError, match=complaint):
        DOMAIN().open(DatabaseSpec(path=str(path)))


def test_files_that_are_no_database_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="does not exist; give a JSON or SQLite file"):
        DOMAIN().open(DatabaseSpec(path=str(tmp_path / "absent.json")))
    (tmp_path / "text.json").write_text("hello")
    with pytest.raises(ConfigError, match="neither SQLite nor JSON"):
        DOMAIN().open(DatabaseSpec(path=str(tmp_path / "text.json")))
    other = sqlite3.connect(tmp_path / "other.db")
    other.execute("CREATE TABLE boats (name TEXT)")
    other.commit()
    other.close()
    with pytest.raises(ConfigError, match="unknown table 'boats'"):
        DOMAIN().open(DatabaseSpec(path=str(tmp_path / "other.db")))
