import numpy as np
import pytest

from robustops.errors import ConfigError
from robustops.monitor.judge import ALARM, ENOUGH_ROWS, findings, judge, missing, unseen
from robustops.monitor.panel import Panel
from robustops.monitor.taxonomy import FAMILIES
from tests.monitor.runs import healthy_panel, step_to

ROWS = 40
COLLAPSE = step_to(ROWS, 20, 0.8, 0.02)


def test_healthy_takes_enough_rows_and_columns_and_no_finding():
    verdict = judge(healthy_panel(ROWS))
    assert (verdict.verdict, verdict.onset, verdict.type, verdict.severity) == ("healthy", None, None, 0.0)
    assert verdict.labels == {} and verdict.evidence == () and np.isnan(verdict.p_value)


@pytest.mark.parametrize(
    ("panel", "reason"),
    [
        (healthy_panel(ENOUGH_ROWS - 1), "the log has 19 of the 20 rows"),
        (healthy_panel(ROWS, reward_mean=None), "nothing is logged of the reward"),
        (healthy_panel(ROWS, grad_norm=None, update_norm_rel=None), "nothing is logged of the updates"),
        (healthy_panel(ROWS, entropy=None, kl_ref_k3=None), "nothing is logged of the policy"),
        (healthy_panel(ROWS, len_mean=np.full(ROWS, np.nan)), "nothing is logged of the answers"),
    ],
)
def test_a_log_that_cannot_tell_is_not_observed(panel: Panel, reason: str):
    assert judge(panel).verdict == "not_observed"
    (found,) = unseen(panel)
    assert found.startswith(reason)


def test_either_of_two_columns_is_enough():
    assert judge(healthy_panel(ROWS, entropy=None)).verdict == "healthy"
    assert judge(healthy_panel(ROWS, kl_ref_k3=None)).verdict == "healthy"


def test_a_fact_is_enough_where_rows_are_few():
    verdict = judge(healthy_panel(1, grad_nonfinite=[1.0]))
    assert (verdict.verdict, verdict.onset, verdict.family, verdict.type) == (
        "anomalous",
        1,
        "unknown",
        "unknown",
    )
    assert verdict.labels == {} and verdict.severity == 1.0


def test_onset_family_type_and_labels():
    verdict = judge(healthy_panel(ROWS, entropy=COLLAPSE, zero_signal_frac=step_to(ROWS, 22, 0.2, 0.95)))
    assert (verdict.onset, verdict.family, verdict.type) == (21, "optimisation", "entropy_collapse")
    assert sum(verdict.labels.values()) == pytest.approx(1.0)
    assert [evidence.column for evidence in verdict.evidence] == ["entropy", "zero_signal_frac"]
    assert next(iter(verdict.labels)) == "entropy_collapse"


def test_the_first_mover_weighs_most():
    kl, errors = step_to(ROWS, 15, 0.01, 3.0), step_to(ROWS, 30, 0.0, 0.6)
    first_kl = judge(healthy_panel(ROWS, kl_ref_k3=kl, tool_error_frac=errors))
    assert (first_kl.type, first_kl.onset) == ("kl_explosion", 16)
    kl, errors = step_to(ROWS, 30, 0.01, 3.0), step_to(ROWS, 15, 0.0, 0.6)
    first_errors = judge(healthy_panel(ROWS, kl_ref_k3=kl, tool_error_frac=errors))
    assert (first_errors.type, first_errors.onset) == ("tool_call_error", 16)


def test_one_invariant_speaks_once_for_a_type():
    one = judge(healthy_panel(ROWS, tool_error_frac=step_to(ROWS, 20, 0.0, 0.95), entropy=COLLAPSE))
    two = judge(
        healthy_panel(
            ROWS,
            tool_error_frac=step_to(ROWS, 20, 0.0, 0.95),
            invalid_call_frac=step_to(ROWS, 20, 0.0, 0.95),
            entropy=COLLAPSE,
        )
    )
    assert one.labels == two.labels


def test_types_with_as_many_votes_leave_the_family():
    """A sampler that is off at once: some fault of generation, which one nothing else tells."""
    verdict = judge(healthy_panel(ROWS, samp_logp_absdiff_mean=step_to(ROWS, 20, 0.001, 0.3)))
    assert (verdict.family, verdict.type) == ("generation", "unknown")
    assert set(verdict.labels) >= set(FAMILIES["generation"])
    empty = step_to(ROWS, 20, 0.0, 0.6)
    told = judge(healthy_panel(ROWS, samp_logp_absdiff_mean=step_to(ROWS, 20, 0.001, 0.3), empty_frac=empty))
    assert (told.family, told.type) == ("generation", "empty_response")


def test_an_anomaly_that_no_type_explains_is_unknown():
    verdict = judge(healthy_panel(ROWS, success_mean=step_to(ROWS, 20, 0.8, 0.05)))
    assert (verdict.verdict, verdict.type, verdict.family) == ("anomalous", "unknown", "unknown")


def test_a_finding_below_the_alarm_is_evidence_and_no_verdict():
    verdict = judge(healthy_panel(ROWS, len_mean=step_to(ROWS, 20, 50.0, 400.0)))
    assert verdict.verdict == "healthy" and 0 < verdict.severity < ALARM
    assert [evidence.column for evidence in verdict.evidence] == ["len_mean"]


def test_the_horizon_hides_what_comes_later():
    panel = healthy_panel(ROWS, entropy=COLLAPSE)
    assert judge(panel, horizon=20).verdict == "healthy"
    assert judge(panel, horizon=30).verdict == "anomalous"
    with pytest.raises(ConfigError, match="horizon is 0; it must be at least 1"):
        judge(panel, horizon=0)


def test_the_horizon_counts_from_the_first_step_of_the_log():
    panel = healthy_panel(ROWS, entropy=COLLAPSE)
    later = Panel(panel.steps + 250, panel.columns)
    assert judge(later, horizon=20).verdict == "healthy" and judge(later).onset == 271


def test_what_healthy_runs_show_as_well_is_no_finding():
    like_this = healthy_panel(ROWS, entropy=COLLAPSE)
    others = [healthy_panel(ROWS, seed, entropy=COLLAPSE) for seed in range(1, 20)]
    verdict = judge(like_this, profile=others)
    assert verdict.verdict == "healthy" and verdict.p_value == 1.0
    unlike = judge(like_this, profile=[healthy_panel(ROWS, seed) for seed in range(1, 20)])
    assert unlike.verdict == "anomalous" and unlike.p_value == 1 / 20


def test_facts_stay_whatever_a_profile_shows():
    broken = step_to(ROWS, 20, 0.0, 1.0)
    others = [healthy_panel(ROWS, seed, grad_nonfinite=broken) for seed in range(1, 20)]
    assert judge(healthy_panel(ROWS, grad_nonfinite=broken), profile=others).verdict == "anomalous"


def test_missing_names_what_the_source_has_not():
    absent = missing(healthy_panel(ROWS, update_norm_rel=None, entropy=np.full(ROWS, np.nan)))
    assert absent == ("adv_reward_corr", "samp_logp_absdiff_mean", "update_norm_rel", "success_mean")


def test_findings_are_in_the_order_of_their_steps():
    found = findings(
        healthy_panel(
            ROWS, entropy=COLLAPSE, kl_ref_k3=step_to(ROWS, 12, 0.01, 20.0), trunc_frac=np.ones(ROWS)
        )
    )
    steps = [finding.evidence.step for finding in found]
    assert steps == sorted(steps) and steps[0] == 1


def test_a_panel_without_rows_is_refused():
    with pytest.raises(ConfigError, match="has no row to judge"):
        judge(Panel(np.array([], dtype=np.int64)))
