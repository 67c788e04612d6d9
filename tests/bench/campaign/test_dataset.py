"""The data set of a real small campaign: what it holds, what is refused, what it takes on disk."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest

from robustops.bench.campaign import arrow
from robustops.bench.campaign.columns import PLANNED, TABLES
from robustops.bench.campaign.dataset import LIMIT_MB, MANIFEST, build, load, load_exposure
from robustops.bench.campaign.plan import PlannedRun, planned
from robustops.bench.campaign.verdict import Verdict
from robustops.errors import DatasetError
from robustops.monitor import schema
from robustops.monitor.telemetry import StepRecord, read_telemetry
from robustops.seeding import generator
from tests.bench.campaign.small_campaign import STEPS, campaign, campaign_copy, small_plan
from tests.bench.campaign.synthetic import write_campaign


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("dataset")
    verdicts = {run.run_id: Verdict(True, "", {"share": 0.5}) for run in small_plan() if run.kind == "fault"}
    build(campaign(), out, expected=[r.run_id for r in small_plan()], verdicts=verdicts, commit="abc")
    return out, load(out)


def spoil(folder, name, line):
    """Replace the last line of a run's file."""
    path = folder / name
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:-1], line]) + "\n")


# what it holds --------------------------------------------------------------------------------------
def test_planned_columns_are_the_fields_of_a_planned_run():
    assert [column.name for column in PLANNED] == [f.name for f in dataclasses.fields(PlannedRun)]


def test_every_number_of_the_telemetry_is_there_in_single_precision(made):
    _, dataset = made
    compared = 0
    for run in small_plan():
        records = read_telemetry(campaign() / "runs" / run.run_id / "telemetry.jsonl")
        assert len(records) == STEPS
        table = dataset.steps_of(run.run_id)
        assert table.column("obs_sha").to_pylist() == [r.facts["obs_sha"] for r in records]
        assert table.column("policy_version").to_pylist() == [r.facts["policy_version"] for r in records]
        for name in schema.names():
            stored = dataset.series(run.run_id, name)
            given = np.array([record.metrics[name] for record in records])
            assert np.array_equal(stored, given.astype(np.float32).astype(np.float64), equal_nan=True), name
            compared += len(given)
    assert compared == len(small_plan()) * STEPS * len(schema.names())
    assert dataset.steps.column("vf_loss").null_count == 0, "NaN is not observed; null: no such column"
    assert np.isnan(dataset.series(small_plan()[0].run_id, "vf_loss")).all()


def test_rows_of_runs_hold_the_plan_the_injection_and_the_verdict(made):
    _, dataset = made
    plan = {run.run_id: run for run in small_plan()}
    assert [row["run_id"] for row in dataset.rows] == sorted(plan)
    for row in dataset.rows:
        run = plan[row["run_id"]]
        assert {name: row[name] for name in run.to_dict()} == run.to_dict()
        assert row["steps"] == STEPS and row["episodes"] == STEPS * 8
        assert row["cpu_seconds"] > 0 and row["commit"] == "abc" and "torch" in json.loads(row["versions"])
        assert row["logged_episodes"] == STEPS * 3
        assert sum(row[f"ended_by_{who}"] for who in ("policy", "environment", "infrastructure")) == 1
        if run.kind == "fault":
            assert row["onset"] == 3 and row["end"] is None and 0 < row["strength"] <= 1
            assert row["unit"] == "episode" or run.mechanism in ("uniform_spike", "verifier_down")
            assert row["verified"] is True and json.loads(row["checks"]) == {"share": 0.5}
        else:
            assert row["strength"] is None and row["verified"] is None and row["family"] == "none"


def test_exposure_is_that_of_the_logs_and_is_no_part_of_what_detectors_load(made):
    out, dataset = made
    rows = load_exposure(out).to_pylist()
    faulty = [run for run in small_plan() if run.kind == "fault"]
    assert len(rows) == len(faulty) * STEPS
    for run in faulty:
        lines = (campaign() / "runs" / run.run_id / "exposure.jsonl").read_text().splitlines()
        mine = [row for row in rows if row["run_id"] == run.run_id]
        for row, line in zip(mine, map(json.loads, lines), strict=True):
            assert {name: row[name] for name in ("step", "level", "eligible", "touched", "before")} == {
                name: line[name] for name in ("step", "level", "eligible", "touched", "before")
            }
            numbers = {n: v for n, v in line.items() if isinstance(v, int | float)}
            assert {name: row[name] for name in numbers} == numbers
        assert any(row["touched"] for row in mine if row["step"] >= 3)
    assert not hasattr(dataset, "exposure")
    assert not {"level", "eligible", "touched"} & set(dataset.steps.column_names)


def test_controls_are_found_by_seed_group(made):
    _, dataset = made
    for run in small_plan():
        control = dataset.by_id[dataset.control(run.run_id)]
        assert (control["kind"], control["seed_group"]) == ("healthy", run.seed_group)


def test_it_can_be_made_twice_with_equal_bytes(made, tmp_path):
    out, _ = made
    verdicts = {run.run_id: Verdict(True, "", {"share": 0.5}) for run in small_plan() if run.kind == "fault"}
    build(campaign(), tmp_path, verdicts=verdicts, commit="abc")
    for name in TABLES:
        assert (tmp_path / f"{name}.parquet").read_bytes() == (out / f"{name}.parquet").read_bytes()


def test_values_beyond_single_precision_make_their_column_wide(tmp_path):
    folder = campaign_copy(tmp_path / "campaign")
    run = folder / "runs" / small_plan()[0].run_id
    last = read_telemetry(run / "telemetry.jsonl")[-1]
    odd = {"ratio_max": 1e300, "grad_norm": math.inf, "kl_ref_k1": math.nan, "entropy": 1e-42}
    spoil(
        run, "telemetry.jsonl", StepRecord(last.step, "grpo", {**last.metrics, **odd}, last.facts).to_line()
    )
    build(folder, tmp_path / "out")
    dataset = load(tmp_path / "out")
    for name, value in odd.items():
        assert dataset.series(run.name, name)[-1] == pytest.approx(value, rel=1e-12, nan_ok=True)
    kinds = {field.name: str(field.type) for field in dataset.steps.schema}
    assert [n for n in schema.names() if kinds[n] == "double"] == ["entropy", "ratio_max"]
    assert not arrow.fits_float32(-1e39) and arrow.fits_float32(-3e38) and arrow.fits_float32(0.0)


# what is refused ------------------------------------------------------------------------------------
def test_an_incomplete_campaign_is_refused_unless_asked_for(tmp_path):
    expected = [run.run_id for run in small_plan()] + ["feed00000000"]
    with pytest.raises(DatasetError, match=r"lacks 1 of 11 planned runs \(feed00000000\).*partial=true"):
        build(campaign(), tmp_path, expected=expected)
    assert not list(tmp_path.iterdir())
    build(campaign(), tmp_path, expected=expected, partial=True)
    assert len(load(tmp_path).rows) == len(small_plan()) == 10


def test_runs_of_different_length_are_refused(tmp_path):
    folder = campaign_copy(tmp_path / "campaign")
    run = folder / "runs" / next(r.run_id for r in small_plan() if r.kind == "healthy")
    lines = (run / "telemetry.jsonl").read_text().splitlines(keepends=True)
    (run / "telemetry.jsonl").write_text("".join(lines[:-1]))
    with pytest.raises(DatasetError, match=r"have 4, 5 steps.*length must not"):
        build(folder, tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "spoiled", "message"),
    [
        ("planned.json", '{"run_id": "x"}', "lacks seed_group"),
        ("telemetry.jsonl", "", "no telemetry.jsonl|lines, 0 expected|lines"),
        ("exposure.jsonl", "", r"has 0 lines, 5 expected with 1 faults"),
    ],
)
def test_a_run_folder_whose_files_do_not_fit_is_refused(tmp_path, name, spoiled, message):
    folder = campaign_copy(tmp_path / "campaign")
    run = folder / "runs" / next(r.run_id for r in small_plan() if r.kind == "fault")
    (run / name).write_text(spoiled)
    with pytest.raises(DatasetError, match=message):
        build(folder, tmp_path / "out")


def test_a_folder_without_runs_is_refused(tmp_path):
    with pytest.raises(DatasetError, match="holds no runs; make them with robustops bench stage=campaign"):
        build(tmp_path, tmp_path / "out")


# what a reader is told ------------------------------------------------------------------------------
@pytest.fixture
def copied(made, tmp_path):
    for path in made[0].iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


def test_a_missing_table_is_named(copied):
    (copied / "steps.parquet").unlink()
    with pytest.raises(arrow.MissingTableError, match=r"steps\.parquet does not exist"):
        load(copied)
    (copied / "exposure.parquet").unlink()
    with pytest.raises(arrow.MissingTableError, match=r"exposure\.parquet"):
        load_exposure(copied)


@pytest.mark.parametrize("keep", [0, 3, 0.5, 0.99])
def test_a_truncated_table_is_no_traceback_of_the_library(copied, keep):
    path = copied / "steps.parquet"
    data = path.read_bytes()
    path.write_bytes(data[: keep if isinstance(keep, int) else int(len(data) * keep)])
    with pytest.raises(arrow.DamagedTableError, match=r"steps\.parquet is no whole Parquet file"):
        load(copied)


def test_a_table_of_another_making_is_found_by_its_sum(copied, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    build(campaign(), other, commit="def")
    (copied / "runs.parquet").write_bytes((other / "runs.parquet").read_bytes())
    with pytest.raises(arrow.DamagedTableError, match=r"runs\.parquet is not the file"):
        load(copied)
    (copied / MANIFEST).unlink()
    with pytest.raises(arrow.MissingTableError, match=MANIFEST):
        load(copied)


def test_another_version_is_refused(copied, monkeypatch):
    monkeypatch.setattr(arrow, "DATASET_VERSION", 7)
    with pytest.raises(arrow.OtherVersionError, match=r"'dataset': 1.*this program reads.*'dataset': 7"):
        load(copied)


def test_unknown_runs_and_columns_are_refused(made):
    _, dataset = made
    with pytest.raises(DatasetError, match="no steps of run 'nobody'"):
        dataset.series("nobody", "entropy")
    with pytest.raises(DatasetError, match="'level' is no telemetry column"):
        dataset.series(dataset.rows[0]["run_id"], "level")


# size -----------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_the_whole_campaign_stays_below_the_limit(tmp_path):
    """With mantissas of its own in every number, which compress worse than real ones; a tenth of the runs."""

    def unlike(run, step, numbers):
        draw = generator(run.seed, run.run_id, "unlike", step)
        for name, value in numbers.items():
            numbers[name] = value + draw.random() if value not in (0.0, 64.0) else value

    plan = planned()
    some = plan[::10]
    manifest = build(write_campaign(tmp_path / "campaign", some, change=unlike), tmp_path / "out")
    steps = load(tmp_path / "out").steps
    assert steps.num_rows == len(some) * 40
    assert manifest["megabytes"] * 1130 / len(some) < LIMIT_MB
