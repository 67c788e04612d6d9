"""The datasheet says what the code says."""

from __future__ import annotations

import json

from robustops.bench.campaign import datasheet
from robustops.bench.campaign.columns import TABLES
from robustops.bench.campaign.dataset import MANIFEST
from robustops.bench.run_faults.catalog import CATALOG, all_mechanisms
from robustops.monitor import schema
from robustops.resources import data_dir

FOLDER = data_dir() / "rft_faultbench"


def test_the_committed_datasheet_is_up_to_date():
    """If not: `datasheet.write(data_dir() / "rft_faultbench")`."""
    path = FOLDER / MANIFEST
    manifest = json.loads(path.read_text()) if path.is_file() else None
    assert (FOLDER / datasheet.NAME).read_text() == datasheet.render(manifest)


def test_every_column_type_and_mechanism_is_described():
    text = datasheet.render()
    for name in (*(c.name for columns in TABLES.values() for c in columns), *schema.names()):
        assert f"| `{name}` |" in text, name
    assert all(f"`{name}`" in text for name in CATALOG)
    assert all(f"`{info.name}`" in text for _, info in all_mechanisms())


def test_every_table_has_as_many_cells_as_its_head():
    lines = datasheet.render().splitlines()
    width = None
    for line in lines:
        if not line.startswith("|"):
            width = None
            continue
        cells = line.replace("\\|", "").count("|")
        assert width in (None, cells), line
        width = cells


def test_sizes_stand_in_it_once_the_tables_are_there():
    files = {"steps.parquet": {"rows": 45200, "bytes": 1234567, "sha256": ""}}
    text = datasheet.render({"files": files, "megabytes": 1.2})
    assert "steps.parquet: 45,200 rows, 1,234,567 B; 1.2 MB in all" in text
    assert "not there yet" not in text and "not there yet" in datasheet.render()
