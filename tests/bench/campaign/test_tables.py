"""The tables of a campaign of the full design, with drawn numbers, against counts by hand."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from robustops.bench.campaign.dataset import build, load
from robustops.bench.campaign.plan import planned
from robustops.bench.campaign.tables import summary, tables
from robustops.bench.campaign.verdict import Verdict
from tests.bench.campaign.synthetic import moved, write_campaign

STEPS = 4
TYPES = ["reward_spike", "kl_explosion"]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Both types in all 48 groups; the weak runs are not verified, spikes move their own column."""
    folder = tmp_path_factory.mktemp("tables")
    runs = [run for run in planned(TYPES) if run.mode != "delayed"]

    def spike(run, step, numbers):
        if run.fault == "reward_spike" and step >= run.onset:
            column, direction = moved(run)
            numbers[column] = direction * (50.0 if run.difficulty == "easy" else 5.0)

    verdicts = {run.run_id: Verdict(run.mode != "weak", "") for run in runs}
    build(write_campaign(folder / "c", runs, steps=STEPS, change=spike), folder / "out", verdicts=verdicts)
    return summary(load(folder / "out"), horizons=(3, 4))


def test_counts_are_those_of_the_design(found):
    for name, code in zip(TYPES, ("RF-1", "OD-1"), strict=True):
        body = found["types"][name]
        assert body["code"] == code and body["runs"] == {"easy": 20, "hard": 21}
        assert body["verified"] == {"easy": 1, "weak": 0, "intermittent": 1, "ramp": 1, "delayed": None}
        assert body["retention"] == pytest.approx(34 / 41)
        assert sum(body["mechanisms"].values()) == 41
    assert found["families"]["reward"]["types"] == 1
    assert found["families"]["reward"]["steps"] == {"easy": 80, "hard": 84, "total": 164}
    assert found["families"]["reward"]["episodes"]["total"] == 164 * 64
    assert found["kinds"] == {
        "healthy": {"runs": 48, "verified": 1},
        "fault": {"runs": 82, "verified": 68 / 82},
    }


def test_totals(found):
    assert found["totals"] == {
        "runs": 130,
        "steps": 130 * STEPS,
        "episodes": 130 * STEPS * 64,
        "seconds": pytest.approx(130 * 12.5),
        "core_hours": pytest.approx(130 * 12 / 3600),
        "verified": pytest.approx((48 + 68) / 130),
    }


def test_effects_are_larger_where_the_fault_is(found):
    effect = found["types"]["reward_spike"]["effect"]
    assert set(effect) == {"3", "4"}
    assert (
        effect["4"]["easy"]
        > effect["4"]["hard"]
        > 1
        > abs(found["types"]["kl_explosion"]["effect"]["4"]["easy"])
    )


def test_they_can_be_read_and_written(found):
    assert json.loads(json.dumps(found))["types"].keys() == found["types"].keys()
    console = Console(file=io.StringIO(), width=110)
    for table in tables(found):
        console.print(table)
    text = console.file.getvalue()
    assert "RF-1  reward_spike" in text and "130 runs, 520 steps, 33,280 episodes" in text
    assert max(map(len, text.splitlines())) <= 110 and "…" not in text
