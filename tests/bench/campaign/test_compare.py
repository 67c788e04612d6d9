"""Runs made again, held against the data set: equal ones, changed ones, strangers."""

from __future__ import annotations

import json
import math

import pytest

from robustops.bench.campaign.compare import reproduces
from robustops.bench.campaign.dataset import build, load
from robustops.bench.campaign.worker import run_one
from robustops.commands.composition import composed_training
from robustops.errors import DatasetError
from robustops.monitor import schema
from robustops.monitor.telemetry import StepRecord, read_telemetry
from tests.bench.campaign.small_campaign import STEPS, campaign, campaign_copy, small_plan


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    out = tmp_path_factory.mktemp("dataset")
    build(campaign(), out)
    return load(out)


def with_change(folder, run_id, step, **changes):
    """A campaign in which one line of a run says something else."""
    path = folder / "runs" / run_id / "telemetry.jsonl"
    records = read_telemetry(path)
    old = records[step - 1]
    facts = {**old.facts, **changes.pop("facts", {})}
    records[step - 1] = StepRecord(step, old.stage, {**old.metrics, **changes}, facts)
    path.write_text("".join(record.to_line() + "\n" for record in records))
    return old.metrics


@pytest.mark.slow
def test_a_run_made_again_is_that_of_the_data_set_to_the_last_digit(dataset, tmp_path):
    run = next(run for run in small_plan() if run.kind == "fault")
    run_one(run, tmp_path, composed_training)
    found = reproduces(dataset, tmp_path)
    assert found.exact and found.within(0.0) and found.runs == 1 and not found.largest
    assert found.values == STEPS * (len(schema.names()) + 2)


def test_a_changed_number_is_found_where_it_is(dataset, tmp_path):
    folder, run_id = campaign_copy(tmp_path / "campaign"), small_plan()[1].run_id
    old = with_change(folder, run_id, 4, entropy=1.25, grad_norm=math.nan)
    found = reproduces(dataset, folder)
    assert (
        not found.exact and found.differing == {run_id: 4} and set(found.largest) == {"entropy", "grad_norm"}
    )
    worst = found.largest["entropy"]
    assert (worst.run_id, worst.step) == (run_id, 4)
    assert worst.absolute == pytest.approx(1.25 - old["entropy"], rel=1e-6)
    assert worst.relative == pytest.approx((1.25 - old["entropy"]) / 1.25, rel=1e-6)
    assert found.largest["grad_norm"].relative == math.inf
    assert not found.within(0.99) and json.dumps(found.report())


def test_rounding_is_within_tolerance_and_less_than_the_stored_digits_is_nothing(dataset, tmp_path):
    folder, run_id = campaign_copy(tmp_path / "campaign"), small_plan()[1].run_id
    kept = read_telemetry(folder / "runs" / run_id / "telemetry.jsonl")[1].metrics["entropy"]
    with_change(folder, run_id, 2, entropy=kept * (1 + 1e-5))
    found = reproduces(dataset, folder)
    assert not found.exact and found.within() and not found.within(1e-6)
    with_change(folder, run_id, 2, entropy=kept * (1 + 1e-12))
    assert reproduces(dataset, folder).exact


def test_another_observation_or_length_is_a_difference(dataset, tmp_path):
    folder, run_id = campaign_copy(tmp_path / "campaign"), small_plan()[1].run_id
    with_change(folder, run_id, 3, facts={"obs_sha": "0" * 16})
    found = reproduces(dataset, folder)
    assert found.differing == {run_id: 3} and set(found.largest) == {"obs_sha"}
    path = folder / "runs" / small_plan()[2].run_id / "telemetry.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    exposure = path.with_name("exposure.jsonl")
    exposure.write_text("".join(exposure.read_text().splitlines(keepends=True)[:-1]))
    assert reproduces(dataset, folder).differing[small_plan()[2].run_id] == STEPS


def test_runs_that_the_data_set_does_not_have_are_named_or_refused(dataset, tmp_path):
    folder = campaign_copy(tmp_path / "campaign")
    stranger = folder / "runs" / "feed00000000"
    (folder / "runs" / small_plan()[0].run_id).rename(stranger)
    body = json.loads((stranger / "planned.json").read_text())
    (stranger / "planned.json").write_text(json.dumps({**body, "run_id": stranger.name}))
    assert reproduces(dataset, folder).unknown == (stranger.name,)
    for path in (folder / "runs").iterdir():
        if path != stranger:
            path.rename(tmp_path / path.name)
    with pytest.raises(DatasetError, match=r"no run of .* is in"):
        reproduces(dataset, folder)


def test_a_run_of_another_plan_is_refused(dataset, tmp_path):
    folder, run = campaign_copy(tmp_path / "campaign"), small_plan()[0]
    path = folder / "runs" / run.run_id / "planned.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "seed": 99}))
    with pytest.raises(
        DatasetError, match=rf"{run.run_id} of the data set has other seed: {run.seed}, not 99"
    ):
        reproduces(dataset, folder)
