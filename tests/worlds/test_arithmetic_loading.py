"""Arithmetic start states from files: JSON tables and SQLite."""

from __future__ import annotations

import json

import pytest

from robustops.errors import ConfigError
from robustops.records import DatabaseSpec
from robustops.tasks.catalog import build_catalog, verify_catalog
from robustops.worlds.domain import get_domain
from robustops.worlds.domains.arithmetic import DOMAIN

HAND = {
    "bounds": [{"operand": 20, "result": 400}],
    "computations": [{"number": 1, "expression": "7 * 3", "value": 21}],
    "answers": [],
}


def written(tmp_path, tables) -> str:
    path = tmp_path / "world.json"
    path.write_text(json.dumps(tables))
    return str(path)


def test_json_and_sqlite_round_trip(tmp_path):
    source = DOMAIN().open(DatabaseSpec(seed=5, size="medium"))
    as_sqlite = tmp_path / "world.db"
    as_sqlite.write_bytes(source.snapshot().image)
    for path in (written(tmp_path, source.dump()), str(as_sqlite)):
        assert DOMAIN().open(DatabaseSpec(path=path)).dump() == source.dump()


def test_a_computation_is_stored_in_its_short_form(tmp_path):
    database = DOMAIN().open(DatabaseSpec(path=written(tmp_path, HAND)))
    assert database.find("computations") == [{"number": 1, "expression": "7*3", "value": 21}]


def test_a_given_database_makes_tasks_within_its_bounds(tmp_path):
    domain = get_domain("arithmetic", "brief", written(tmp_path, HAND))
    catalog = build_catalog(domain, counts={"train": 20, "test": 10})
    assert verify_catalog(catalog, domain) == 30
    texts = [text for task in catalog.tasks("train") for text in task.prompt.split()]
    assert all(int(text.strip("()")) <= 20 for text in texts if text.strip("()").isdigit())


@pytest.mark.parametrize(
    ("tables", "complaint"),
    [
        ([], "the top level must be an object of tables, not list"),
        ({name: rows for name, rows in HAND.items() if name != "answers"}, "table 'answers' is missing"),
        ({**HAND, "boats": []}, "unknown table 'boats'; allowed are: answers, bounds, computations"),
        ({**HAND, "answers": [7]}, "row 0 of table 'answers' is no object"),
        ({**HAND, "answers": [{"number": 1, "value": 2, "by": "me"}]}, "unknown column 'by'"),
        ({**HAND, "answers": [{"number": 1}]}, "column 'value' takes an integer, not None"),
        ({**HAND, "answers": [{"number": 1, "value": True}]}, "column 'value' takes an integer, not True"),
        ({**HAND, "answers": [{"number": 1, "value": 2}] * 2}, "table 'answers' does not fit: UNIQUE"),
        ({**HAND, "bounds": []}, "table 'bounds' has 0 rows; give one"),
        ({**HAND, "bounds": [{"operand": 3, "result": 99}]}, "bounds below 9 leave no requests"),
        (
            {**HAND, "computations": [{"number": 1, "expression": "1+2*3", "value": 7}]},
            "row 0 of table 'computations': '1[+]2[*]3' has 2 operators",
        ),
        (
            {**HAND, "computations": [{"number": 1, "expression": "7*3", "value": 20}]},
            "7[*]3 is 21, not 20; correct its value",
        ),
    ],
)
def test_what_does_not_fit_is_named(tmp_path, tables, complaint):
    with pytest.raises(ConfigError, match=complaint):
        DOMAIN().open(DatabaseSpec(path=written(tmp_path, tables)))
