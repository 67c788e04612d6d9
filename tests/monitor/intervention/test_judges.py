from __future__ import annotations

import numpy as np
import pytest

from robustops.monitor.intervention.judges import RULES, exact_rules
from robustops.monitor.intervention.planners import RulePlanner, Situation
from robustops.monitor.panel import Panel
from robustops.monitor.taxonomy import FAMILY_OF
from tests.monitor.intervention.cases import SETTINGS


def panel(**columns):
    length = len(next(iter(columns.values())))
    return Panel(np.arange(1, length + 1), {name: np.asarray(v, float) for name, v in columns.items()})


def test_the_rules_name_types_and_their_families():
    assert all(FAMILY_OF[rule.kind] == rule.family for rule in RULES)


def test_a_healthy_run_breaks_none():
    verdict = exact_rules(panel(kl_ref_k3=[0.0, 0.01, 0.1], obs_roundtrip_mismatch_frac=[0, np.nan, 0]))
    assert verdict.verdict == "healthy" and verdict.evidence == ()


@pytest.mark.parametrize(
    ("values", "onset"),
    [
        ([0.1, 0.1, 0.9, 0.8], 3),
        ([0.1, 0.9, 0.9, 0.9], 2),
        ([0.9, 0.9, 0.9, 0.9], 1),
        ([0.9, 0.9, 0.1, 0.9], None),  # once is not enough
        ([0.9, 0.9, 0.9, 0.1], None),  # it is over
        ([0.1, 0.9, np.nan, 0.9], None),
    ],
)
def test_a_rule_speaks_after_it_has_held_and_tells_since_when(values, onset):
    verdict = exact_rules(panel(kl_ref_k3=values))
    assert (verdict.verdict == "anomalous") == (onset is not None)
    assert verdict.onset == onset
    if onset is not None:
        assert (verdict.type, verdict.family) == ("kl_explosion", "optimisation")
        assert verdict.evidence[0].value == 0.9 and "drifted far" in verdict.evidence[0].text


def test_the_graver_rule_names_the_cause_and_all_are_evidence():
    verdict = exact_rules(panel(kl_ref_k3=[0.1, 0.9, 0.9], obs_roundtrip_mismatch_frac=[0.0, 0.1, 0.1]))
    assert verdict.type == "observation_corruption" and verdict.severity == 1.0
    assert [one.column for one in verdict.evidence] == ["obs_roundtrip_mismatch_frac", "kl_ref_k3"]


def test_what_jumped_with_the_onset_says_which_remedy_is_first():
    """A rate twenty times too high moves the weights; a wrong sign of the KL term does not."""
    drift = [0.1, 0.1, 0.9, 0.9]
    for norms, first in (([1.0, 2.0, 20.0, 3.0], "grpo.whole_updates"), ([1.0, 2.0, 6.0, 2.0], "grpo.kl")):
        seen = panel(kl_ref_k3=drift, update_norm_rel=norms)
        verdict = exact_rules(seen)
        plan = RulePlanner().plan(Situation(verdict, SETTINGS, 1, 4, seen))
        assert first in {change.key for change in plan.changes}
        assert verdict.onset == 3 and verdict.evidence[-1].column == "kl_ref_k3"


def test_what_is_not_observed_is_not_healthy():
    verdict = exact_rules(panel(reward_mean=[0.1, 0.2]))
    assert verdict.verdict == "not_observed" and "kl_ref_k3" in verdict.missing
    assert exact_rules(Panel(np.empty(0, dtype=np.int64))).verdict == "not_observed"
