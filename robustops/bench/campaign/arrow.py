"""Rows to Parquet and back: types of the columns, whole files, errors that say which file is at fault."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from robustops.bench.campaign.columns import DATASET_VERSION, TABLES
from robustops.bench.campaign.extras import require
from robustops.errors import DatasetError
from robustops.files import atomic_write_bytes
from robustops.monitor.schema import SCHEMA_VERSION

#: Key of the file's metadata under which the versions stand.
META = "faultbench"
_FLOAT32_MAX = 3.4028234e38
_FLOAT32_MIN = 1.1754944e-38
_LEVEL = 19


class MissingTableError(DatasetError):
    """A table of the data set is not there."""


class OtherVersionError(DatasetError):
    """The data set has another layout, or another telemetry schema, than this program reads."""


class DamagedTableError(DatasetError):
    """A table is cut short, or is not what the manifest says."""


def versions() -> dict[str, int]:
    """Of the layout and of the telemetry schema that this program reads and writes."""
    return {"dataset": DATASET_VERSION, "telemetry_schema": SCHEMA_VERSION}


def fits_float32(value: float) -> bool:
    """Whether a number keeps its order of magnitude in single precision (NaN, infinity and 0 do)."""
    return not math.isfinite(value) or value == 0 or _FLOAT32_MIN <= abs(value) <= _FLOAT32_MAX


def telemetry_type(values: Sequence[float | None]) -> str:
    """float32, or float64 where one of a column's values would become infinite or lose digits to 0."""
    return "float32" if all(v is None or fits_float32(v) for v in values) else "float64"


def to_table(name: str, columns: Mapping[str, Sequence[Any]], kinds: Mapping[str, str] | None = None) -> Any:
    """A table in the order of `columns.TABLES`. kinds: types other than those declared, and of columns that
    follow the declared ones.
    """
    pa = require("pyarrow")
    types = {
        "str": pa.string(),
        "list": pa.list_(pa.string()),
        "bool": pa.bool_(),
        "int": pa.int32(),
        "wide_int": pa.int64(),
        "float32": pa.float32(),
        "float64": pa.float64(),
    }
    declared = {column.name: column.kind for column in TABLES[name]}
    wanted = {**declared, **(kinds or {})}
    arrays = {key: pa.array(columns[key], types[kind]) for key, kind in wanted.items()}
    return pa.table(arrays).replace_schema_metadata({META: json.dumps(versions())})


def write(table: Any, path: Path) -> int:
    """Write a table in one move, compressed with zstd; returns the bytes of the file.

    Floats are split into streams of equal bytes, which compresses better than dictionaries; texts and whole
    numbers get dictionaries.
    """
    pa, pq = require("pyarrow"), require("pyarrow.parquet")
    floats = [field.name for field in table.schema if pa.types.is_floating(field.type)]
    others = [field.name for field in table.schema if field.name not in floats]
    sink = pa.BufferOutputStream()
    pq.write_table(
        table,
        sink,
        compression="zstd",
        compression_level=_LEVEL,
        use_dictionary=[name + ".list.element" if _nested(table, name) else name for name in others],
        column_encoding={name: "BYTE_STREAM_SPLIT" for name in floats},
        row_group_size=max(1, table.num_rows),
        data_page_size=1 << 20,
    )
    data = sink.getvalue().to_pybytes()
    atomic_write_bytes(path, data)
    return len(data)


def read(folder: Path, name: str) -> Any:
    """A table of a data set, with the columns that this program knows.

    Raises:
        MissingTableError, OtherVersionError, DamagedTableError: see there.
    """
    pa, pq = require("pyarrow"), require("pyarrow.parquet")
    path = folder / f"{name}.parquet"
    if not path.is_file():
        raise MissingTableError(
            f"{path} does not exist; name a folder with {', '.join(TABLES)}.parquet, or make it with "
            "robustops bench stage=dataset"
        )
    try:
        table = pq.read_table(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise DamagedTableError(
            f"{path} is no whole Parquet file ({error}); fetch or make it again"
        ) from error
    check_version((table.schema.metadata or {}).get(META.encode()), path)
    missing = [column.name for column in TABLES[name] if column.name not in table.column_names]
    if missing:
        raise DamagedTableError(f"{path} has no column {', '.join(missing)}; make the data set again")
    return table


def check_version(found: bytes | None, path: Path) -> None:
    """OtherVersionError unless the metadata of a file names the versions of this program."""
    try:
        given = json.loads(found or b"null")
    except ValueError:
        given = None
    if given != versions():
        raise OtherVersionError(
            f"{path} has versions {given}, this program reads {versions()}; use the release that made it, or "
            "make it again with robustops bench stage=dataset"
        )


def _nested(table: Any, name: str) -> bool:
    return bool(require("pyarrow").types.is_list(table.schema.field(name).type))
