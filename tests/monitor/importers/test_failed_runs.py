"""Every log of real runs that the checkout has beside it, raw and as rows."""

import json

import numpy as np
import pytest

from robustops.monitor.importers import load
from robustops.monitor.judge import judge
from tests.monitor.runs import FAILED_RUNS

pytestmark = pytest.mark.skipif(not FAILED_RUNS.is_dir(), reason="the failed runs are not here")

INDEX = (
    {e["file"]: e for e in json.loads((FAILED_RUNS / "index.json").read_text())}
    if FAILED_RUNS.is_dir()
    else {}
)
RAW = {e["raw_file"]: e for e in INDEX.values() if e["raw_file"]}
#: What the log shows, by the rater's label: types that a verdict may name.
ACCEPTED = {
    "verl-econ-singleton-54": ("anomalous", {"value_mismatch"}),
    "verl-econ-singleton-300": ("anomalous", {"value_mismatch"}),
    "verl-econ-grouped-699": ("healthy", {None}),
    "trl-vlm-entropy-collapse": ("anomalous", {"entropy_collapse"}),
    "trl-kl-explosion-truncated": ("anomalous", {"kl_explosion"}),
    "verl-lora-garbled": ("anomalous", {"repetition_collapse", "update_freeze"}),  # by symptom, by cause
    "verl-agentr1-nan": ("anomalous", {"unknown"}),
    "trl-truncation-starved": ("anomalous", {"length_long", "reward_collapse"}),
    # Only rewards were logged, and no success beside them: hacked rewards look like earned ones.
    "grpo-lenient-judge-stage1": ("not_observed", {None}),
    "grpo-lenient-judge-stage2": ("not_observed", {None}),
    "grpo-strict-judge-stage1": ("not_observed", {None}),
    "grpo-strict-judge-stage2": ("not_observed", {None}),
    "verl-logic-start": ("not_observed", {None}),  # nine steps
}


@pytest.mark.parametrize("name", sorted(INDEX))
def test_rows_and_verdict(name: str):
    found = load(FAILED_RUNS / name)
    assert len(found.panel) == INDEX[name]["rows"]
    assert found.panel.observed("reward_mean")
    verdict = judge(found.panel)
    state, types = ACCEPTED[name.removesuffix(".jsonl")]
    assert verdict.verdict == state and verdict.type in types, verdict
    if state == "not_observed":
        assert verdict.missing
    if state == "anomalous":
        assert verdict.evidence and verdict.onset is not None


@pytest.mark.parametrize("name", sorted(RAW))
def test_a_raw_file_gives_what_its_rows_give(name: str):
    raw, rows = load(FAILED_RUNS / name).panel, load(FAILED_RUNS / RAW[name]["file"]).panel
    assert len(raw) >= 1
    assert set(raw.columns) == set(rows.columns)
    first = raw.steps[0]
    assert first == rows.steps[0]
    for column in raw.columns:
        np.testing.assert_allclose(raw[column][0], rows[column][0], err_msg=column)


def test_gaps_missing_steps_and_elided_rows_are_told():
    assert any("left out" in note for note in load(FAILED_RUNS / "trl-truncation-starved.raw.txt").notes)
    assert any("gaps" in note for note in load(FAILED_RUNS / "trl-truncation-starved.jsonl").notes)
    assert any("no step" in note for note in load(FAILED_RUNS / "trl-vlm-entropy-collapse.jsonl").notes)
    assert load(FAILED_RUNS / "grpo-strict-judge-stage2.jsonl").panel.steps[0] == 251


def test_a_nan_that_was_logged_is_kept_as_a_fact():
    panel = load(FAILED_RUNS / "verl-agentr1-nan.raw.txt").panel
    assert panel["grad_nonfinite"].tolist() == [1.0] and panel["nan_count"][0] >= 3
