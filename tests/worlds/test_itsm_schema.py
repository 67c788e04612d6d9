"""Tables, database files and the generated world of the itsm domain."""

from __future__ import annotations

import json
import re
import sqlite3
from pathlib import Path

import pytest

from robustops.errors import ConfigError
from robustops.records import DatabaseSpec
from robustops.worlds.database import CLOCK_START
from robustops.worlds.domains.itsm import ItsmDomain
from robustops.worlds.domains.itsm.schema import TABLES
from robustops.worlds.domains.itsm.templates.base import WRITABLE

DATA = Path(__file__).resolve().parents[2] / ".." / "shared" / "data" / "itsm_world"
FILES = ("single_tenant_db.json", "msp_db.json")
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the recorded ITSM data is not here")
DOMAIN = ItsmDomain()


def rows_of(spec: DatabaseSpec):
    database = DOMAIN.open(spec)
    rows = {t: [TABLES[t].decode(row) for row in database.find(t)] for t in TABLES}
    database.close()
    return rows


@needs_data
@pytest.mark.parametrize("name", FILES)
def test_tables_have_the_columns_of_the_files(name):
    content = json.loads((DATA / name).read_text())
    assert set(content) == set(TABLES) and len(TABLES) == 24
    for table, rows in content.items():
        for row in rows.values():
            assert list(row) == list(TABLES[table].columns), table


@needs_data
@pytest.mark.parametrize("name", FILES)
def test_a_loaded_file_comes_back_row_by_row(name):
    content = json.loads((DATA / name).read_text())
    assert rows_of(DatabaseSpec(path=str(DATA / name))) == {t: list(content[t].values()) for t in TABLES}


def test_an_sqlite_file_gives_the_same_world(tmp_path):
    original = DOMAIN.open(DatabaseSpec(seed=4, size="tiny"))
    file = tmp_path / "world.db"
    file.write_bytes(original.snapshot().image)
    assert rows_of(DatabaseSpec(path=str(file))) == rows_of(DatabaseSpec(seed=4, size="tiny"))


ORG = {"org_id": "ORG_1", "name": "A", "active": True, "created_at": None, "updated_at": None}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("nonsense", "neither SQLite nor JSON"),
        ("[]", "the top level must be an object"),
        ({"organisation": {}}, "tables organisation do not belong"),
        ({}, r"tables \(none\)"),
        ({"organization": 3}, "table 'organization' must be rows"),
        ({"organization": [3]}, "a row must be an object, not int"),
        ({"organization": [{**ORG, "city": "Oslo"}]}, "unknown column 'city'; it has: org_id, name"),
        ({"organization": [{**ORG, "name": None}]}, "column 'name' must have a value"),
        ({"organization": [{**ORG, "active": 1}]}, "column 'active' must be bool, not 1"),
        ({"organization": [{**ORG, "name": 7}]}, "column 'name' must be text, not 7"),
        ({"organization": [ORG, ORG]}, "table 'organization': UNIQUE"),
    ],
)
def test_files_that_do_not_fit_are_refused_by_name(tmp_path, content, message):
    file = tmp_path / "world.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(ConfigError, match=message):
        DOMAIN.open(DatabaseSpec(path=str(file)))


def test_absent_and_foreign_sqlite_files_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="does not exist"):
        DOMAIN.open(DatabaseSpec(path=str(tmp_path / "absent.json")))
    file = tmp_path / "other.db"
    connection = sqlite3.connect(file)
    connection.execute("CREATE TABLE cats (name TEXT)")
    connection.commit()
    connection.close()
    with pytest.raises(ConfigError, match="tables cats do not belong"):
        DOMAIN.open(DatabaseSpec(path=str(file)))


# the generated world ----------------------------------------------------------------------------
def test_the_same_seed_gives_the_same_rows_and_another_one_other_ids():
    fresh = ItsmDomain().open(DatabaseSpec(seed=3)).dump()
    assert DOMAIN.open(DatabaseSpec(seed=3)).dump() == fresh
    other = DOMAIN.open(DatabaseSpec(seed=4)).dump()
    for table in ("incident", "users", "user_group", "configuration_item", "problem", "change", "knowledge"):
        key = TABLES[table].id
        mine, theirs = ({row[key] for row in rows[table]} for rows in (fresh, other))
        assert mine != theirs, table


def test_sizes():
    counts = {
        size: DOMAIN.open(DatabaseSpec(size=size)).scalar("SELECT COUNT(*) FROM incident")
        for size in ("tiny", "small", "medium", "7")
    }
    assert counts == {"tiny": 16, "small": 40, "medium": 160, "7": 7}
    small = rows_of(DatabaseSpec())
    wanted = {
        "users": 20,
        "user_group": 8,
        "configuration_item": 12,
        "problem": 3,
        "change": 3,
        "knowledge": 5,
    }
    assert all(len(small[table]) >= least for table, least in wanted.items())
    for size in ("huge", "3", "100000", ""):
        with pytest.raises(ConfigError, match="choose tiny, small, medium, large or a number"):
            DOMAIN.open(DatabaseSpec(size=size))


@pytest.mark.parametrize("size", ["tiny", "small", "300"])
def test_references_of_the_generated_world_exist(size):
    """Every foreign key of the recorded specification, in so far as our rows use it."""
    rows = rows_of(DatabaseSpec(seed=8, size=size))
    ids = {row[TABLES[t].id] for t in TABLES if TABLES[t].prefix for row in rows[t]}
    prefixes = {table.prefix for table in TABLES.values() if table.prefix}
    for table, entries in rows.items():
        for row in entries:
            for name, value in row.items():
                found = re.fullmatch(r"([A-Z]+)_\d{3,}", value) if isinstance(value, str) else None
                if found and found.group(1) in prefixes:
                    assert value in ids, f"{table}.{name} = {value}"
            if table == "users":
                assert row["role"] in {role["name"] for role in rows["role"]}
            if table == "notification":
                assert row["email"] in {user["email"] for user in rows["users"]}


def test_names_and_numbers_of_the_generated_world_are_unambiguous():
    for seed in range(5):
        rows = rows_of(DatabaseSpec(seed=seed))
        for table, columns in (
            ("incident", ("number",)),
            ("incident", ("short_description",)),
            ("users", ("first_name", "last_name")),
            ("users", ("email",)),
            ("users", ("phone",)),
            ("user_group", ("name",)),
            ("configuration_item", ("serial_number",)),
            ("problem", ("number",)),
            ("change", ("number",)),
            ("knowledge", ("kb_number",)),
            ("knowledge", ("title",)),
            ("sla_definition", ("name",)),
        ):
            values = [tuple(row[c] for c in columns) for row in rows[table]]
            assert len(set(values)) == len(values), (table, columns, seed)


def test_numbers_do_not_tell_ids_and_everything_lies_before_the_clock():
    rows = rows_of(DatabaseSpec(seed=2))
    told = [int(r["number"][4:]) == int(r["incident_id"][4:]) for r in rows["incident"]]
    assert not any(told)
    for name, table in TABLES.items():
        for row in rows[name] if table.created else ():
            assert row[table.created] <= row[table.updated] < CLOCK_START


def test_the_collateral_check_watches_every_table_that_tools_write_to():
    """A write tool that touches a table outside `WRITABLE` would go unnoticed by the last state check."""
    folder = Path(__file__).resolve().parents[2] / "robustops" / "worlds" / "domains" / "itsm" / "tools"
    source = "".join(file.read_text() for file in folder.glob("*.py"))
    written = set(re.findall(r'self\._(?:insert|patch)\(\s*"(\w+)"', source))
    assert written and written <= set(WRITABLE)
