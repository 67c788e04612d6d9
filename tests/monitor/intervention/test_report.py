from __future__ import annotations

from robustops.monitor.intervention.journal import Entry
from robustops.monitor.intervention.report import interventions, sentences
from tests.monitor.intervention.cases import anomalous

BACK = Entry(
    "rollback", 8, attempt=1, label="kl_explosion", target=4, changes={"grpo.kl": 0.0}, reason="no KL",
    planner="rules", verdict=anomalous().to_dict(),
)  # fmt: skip


def test_a_run_that_nobody_touched():
    found = interventions([])
    assert found == {"state": "untouched", "in_force": {}, "repeated_steps": 0, "interventions": []}
    assert sentences(found) == []


def test_what_was_done_in_numbers_and_in_words():
    kept = Entry("accept", 12, attempt=1, label="kl_explosion", reason="success 0.5", until=18)
    found = interventions([BACK, kept])
    assert (found["state"], found["in_force"], found["repeated_steps"]) == ("repaired", {"grpo.kl": 0.0}, 4)
    first = found["interventions"][0]
    assert (first["onset"], first["evidence"]) == (5, ["update_norm_rel is high"])
    assert sentences(found) == [
        "monitor: step 8: kl_explosion since step 5; back to step 4, attempt 1: grpo.kl=0.0 (no KL)",
        "monitor: step 12: attempt 1 at kl_explosion is kept: success 0.5",
        "monitor: repaired; changed settings: grpo.kl=0.0",
    ]


def test_states():
    assert interventions([BACK])["state"] == "on_trial"
    paused = [BACK, Entry("revert", 12, attempt=1), Entry("pause", 12, reason="no more")]
    assert interventions(paused)["state"] == "paused" and interventions(paused)["in_force"] == {}
    assert sentences(interventions(paused))[-2:] == [
        "monitor: step 12: paused: no more",
        "monitor: paused; changed settings: none",
    ]
    assert interventions([Entry("none", 5)])["state"] == "untouched"
