"""The data set in numbers: the counterpart of table II of the RFT-FaultBench paper, by type and by family."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from rich.table import Table

from robustops.bench.campaign.dataset import Dataset
from robustops.bench.campaign.fingerprints import Fingerprints, fingerprints, primary_effects
from robustops.bench.campaign.layout import MODES
from robustops.bench.campaign.plan import KINDS
from robustops.bench.run_faults.catalog import CATALOG
from robustops.tracking.tables import plain_table

#: Steps of the paper's runs, and of ours.
HORIZONS = (20, 40)
DIFFICULTIES = ("easy", "hard")
Row = Mapping[str, Any]


def summary(dataset: Dataset, horizons: Sequence[int] = HORIZONS) -> dict[str, Any]:
    """Everything the tables show, in JSON values.

    types: by name: runs by difficulty, share that is verified by mode, retention (verified of all), runs of
    each mechanism, median effect on the mechanism's own quantity by horizon and difficulty (in deviations
    over healthy runs, positive as declared); families: as the paper's table II; kinds: runs and verified
    share of each kind; totals. A share of nothing is null.
    """
    effects = {str(horizon): _effects(dataset, horizon) for horizon in horizons}
    single = [row for row in dataset.rows if row["kind"] == "fault"]
    present = [name for name in CATALOG if any(row["fault"] == name for row in single)]
    families = list(dict.fromkeys(CATALOG[name].family for name in present))
    return {
        "types": {n: _type([r for r in single if r["fault"] == n], effects) for n in present},
        "families": {f: _family([r for r in single if r["family"] == f]) for f in families},
        "kinds": {
            kind: {"runs": len(own), "verified": _verified(own)}
            for kind in KINDS
            if (own := [row for row in dataset.rows if row["kind"] == kind])
        },
        "totals": _totals(dataset.rows),
    }


def tables(found: Mapping[str, Any]) -> list[Table]:
    """What `summary` found, for people."""
    return [_family_table(found), _type_table(found), _effect_table(found)]


def _effects(dataset: Dataset, horizon: int) -> dict[str, float]:
    prints: Fingerprints = fingerprints(dataset, horizon)
    return primary_effects(dataset, prints)


def _type(rows: Sequence[Row], effects: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    fault = CATALOG[rows[0]["fault"]]
    by_name = Counter(row["mechanism"] for row in rows)
    return {
        "code": fault.code,
        "family": fault.family,
        "runs": {level: sum(row["difficulty"] == level for row in rows) for level in DIFFICULTIES},
        "verified": {mode: _verified([row for row in rows if row["mode"] == mode]) for mode in MODES},
        "retention": _verified(rows),
        "mechanisms": {info.name: by_name[info.name] for info in fault.mechanisms if by_name[info.name]},
        "effect": {
            horizon: {level: _median_effect(rows, level, known) for level in DIFFICULTIES}
            for horizon, known in effects.items()
        },
    }


def _median_effect(rows: Iterable[Row], difficulty: str, effects: Mapping[str, float]) -> float | None:
    seen = [effects[r["run_id"]] for r in rows if r["difficulty"] == difficulty and r["run_id"] in effects]
    seen = [value for value in seen if not math.isnan(value)]
    return median(seen) if seen else None


def _family(rows: Sequence[Row]) -> dict[str, Any]:
    body: dict[str, Any] = {"types": len({row["fault"] for row in rows})}
    for name, count in (
        ("runs", lambda row: 1),
        ("steps", lambda row: row["steps"]),
        ("episodes", lambda row: row["episodes"]),
    ):
        body[name] = _by_difficulty(rows, count)
    return body


def _by_difficulty(rows: Iterable[Row], count: Callable[[Row], int]) -> dict[str, int]:
    found = dict.fromkeys(DIFFICULTIES, 0)
    for row in rows:
        found[row["difficulty"]] += count(row)
    return {**found, "total": sum(found.values())}


def _verified(rows: Sequence[Row]) -> float | None:
    """Share of the runs that are verified, of those that were looked at."""
    looked = [row["verified"] for row in rows if row["verified"] is not None]
    return sum(looked) / len(looked) if looked else None


def _totals(rows: Sequence[Row]) -> dict[str, Any]:
    return {
        "runs": len(rows),
        "steps": sum(row["steps"] for row in rows),
        "episodes": sum(row["episodes"] for row in rows),
        "seconds": sum(row["seconds"] or 0.0 for row in rows),
        "core_hours": sum(row["cpu_seconds"] or 0.0 for row in rows) / 3600,
        "verified": _verified(rows),
    }


def _family_table(found: Mapping[str, Any]) -> Table:
    names = ("types", *(f"{what} {level}" for what in ("runs", "steps") for level in ("easy", "hard")))
    table = plain_table("Runs, steps and episodes", ("family",), (*names, "episodes"))
    for family, body in found["families"].items():
        counts = [body[what][level] for what in ("runs", "steps") for level in DIFFICULTIES]
        cells = [body["types"], *counts, body["episodes"]["total"]]
        table.add_row(family, *(f"{cell:,}" for cell in cells))
    table.add_section()
    for kind, body in found["kinds"].items():
        if kind != "fault":
            table.add_row(f"{kind}: {body['runs']} runs, {_percent(body['verified'])} % verified")
    totals = found["totals"]
    table.caption_justify = "left"
    table.caption = (
        f"{totals['runs']:,} runs, {totals['steps']:,} steps, {totals['episodes']:,} episodes; "
        f"{totals['seconds'] / 3600:.2f} h of runs, {totals['core_hours']:.2f} core-hours"
    )
    return table


def _type_table(found: Mapping[str, Any]) -> Table:
    names = ("easy", "hard", *(mode[:6] for mode in MODES), "all")
    table = plain_table("Runs of each type, and percent verified by mode", ("", "type"), names)
    family = None
    for name, body in found["types"].items():
        if family not in (None, body["family"]):
            table.add_section()
        family = body["family"]
        shares = [_percent(body["verified"][mode]) for mode in MODES]
        runs = [str(body["runs"][level]) for level in DIFFICULTIES]
        table.add_row(body["code"], name, *runs, *shares, _percent(body["retention"]))
    return table


def _effect_table(found: Mapping[str, Any]) -> Table:
    horizons = list(next(iter(found["types"].values()))["effect"]) if found["types"] else []
    names = [f"{level} {horizon}" for horizon in horizons for level in DIFFICULTIES]
    table = plain_table("Median effect by the horizon, in deviations of healthy runs", ("type",), names)
    table.add_column("mechanisms: runs")
    for name, body in found["types"].items():
        effects = [_number(body["effect"][horizon][level]) for horizon in horizons for level in DIFFICULTIES]
        table.add_row(
            name, *effects, ", ".join(f"{key} {count}" for key, count in body["mechanisms"].items())
        )
    return table


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f}"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.1f}" if abs(value) < 100 else ("> 99" if value > 0 else "< -99")
