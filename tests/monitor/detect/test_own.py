import math

import numpy as np
import pytest

from robustops.errors import ConfigError
from robustops.monitor import schema
from robustops.monitor.detect.conformal import Calibration
from robustops.monitor.detect.model import KINDS
from robustops.monitor.detect.own import EXACT, OwnDetector
from robustops.monitor.panel import Panel
from tests.monitor.detect.runs import changed, run, runs, shifted


@pytest.fixture(scope="module")
def detector() -> OwnDetector:
    found = OwnDetector()
    found.fit(runs(30))
    return found


@pytest.fixture(scope="module")
def calibration(detector: OwnDetector) -> Calibration:
    return Calibration.of(detector.score(panel) for panel in runs(60, first=100))


def test_fresh_healthy_runs_alarm_at_the_promised_rate(
    detector: OwnDetector, calibration: Calibration
) -> None:
    alarms = [calibration.p_value(detector.score(panel)) <= 0.1 for panel in runs(60, first=200)]
    assert np.mean(alarms) <= 0.25
    assert all(detector.score(panel) < EXACT for panel in runs(20, first=300))


@pytest.mark.parametrize(
    ("column", "by"),
    [("entropy", 0.03), ("len_mean", 3.0), ("rewards.progress.mean", 0.05), ("grad_norm", 1.0)],
)
def test_a_lasting_shift_is_detected_after_it_began(
    detector: OwnDetector, calibration: Calibration, column: str, by: float
) -> None:
    start = 15
    detected = 0
    for seed in range(400, 410):
        scores = detector.step_scores(shifted(run(seed), column, by, start))
        row = calibration.first_alarm(scores, 0.05)
        detected += row is not None and row >= start
    assert detected >= 8


def test_intermittent_steps_are_detected(detector: OwnDetector, calibration: Calibration) -> None:
    panel = run(420)
    hit = panel["entropy"] + np.where(np.arange(40) % 4 == 3, 0.09, 0.0)
    assert calibration.p_value(detector.score(changed(panel, entropy=hit))) <= 0.05


def test_a_broken_exact_invariant_is_enough(detector: OwnDetector) -> None:
    panel = run(430)
    values = panel["adv_mean"].copy()
    values[9] = 0.001
    scores = detector.step_scores(changed(panel, adv_mean=values))
    assert scores[9] >= EXACT
    assert (np.delete(scores, 9) < EXACT).all()
    assert OwnDetector(exact=False).exact is False


def test_later_rows_never_change_earlier_scores(detector: OwnDetector) -> None:
    panel = shifted(run(440), "entropy", 0.1, 20)
    whole = detector.step_scores(panel)
    for step in (1, 2, 7, 19, 33):
        assert np.allclose(detector.step_scores(panel.until(step)), whole[:step])
    assert detector.score(panel) == whole.max()


def test_more_of_a_deviation_scores_more(detector: OwnDetector) -> None:
    found = [detector.score(shifted(run(450), "entropy", by, 10)) for by in (0.02, 0.04, 0.08, 0.16)]
    assert found == sorted(found)
    assert found[-1] > found[0] + 5


def test_what_is_not_observed_is_no_fault(detector: OwnDetector) -> None:
    panel = run(460)
    healthy = detector.score(panel)
    hidden = changed(panel, entropy=np.full(40, np.nan), kl_ref_k3=np.full(40, np.nan))
    for other in (hidden, panel.only(schema.names("P")), panel.only(["reward_mean"])):
        assert math.isfinite(detector.score(other))
        assert detector.score(other) < healthy + 5
    assert detector.score(Panel(np.arange(1, 5))) == -math.inf
    assert detector.score(Panel(np.arange(0))) == -math.inf
    assert detector.step_scores(Panel(np.arange(0))).shape == (0,)
    holes = panel["entropy"].copy()
    holes[::3] = np.nan
    assert not np.isnan(detector.step_scores(changed(panel, entropy=holes))).any()


def test_short_panels_and_longer_ones_have_scores(detector: OwnDetector) -> None:
    for steps in (1, 2, 60):
        scores = detector.step_scores(run(470, steps))
        assert scores.shape == (steps,)
        assert np.isfinite(scores).all()


def test_portable_columns_alone_make_a_detector() -> None:
    portable = OwnDetector()
    portable.fit([panel.only(schema.names("P")) for panel in runs(20)])
    broken = shifted(run(480).only(schema.names("P")), "entropy", 0.1, 10)
    assert portable.score(broken) > portable.score(run(480).only(schema.names("P"))) + 5


def test_evidence_tells_what_moved_and_from_which_step_on(detector: OwnDetector) -> None:
    explanation = detector.explain(shifted(run(490), "entropy", 0.08, 12))
    assert explanation.onset is not None
    assert abs(explanation.onset - 13) <= 2
    found = {one.column: one for one in explanation.evidence}
    entropy = found["entropy"]
    assert entropy.invariant == "entropy"
    assert entropy.step >= 13
    assert entropy.value > entropy.high > entropy.low
    assert "entropy is" in entropy.text
    steps = [one.step for one in explanation.evidence]
    assert steps == sorted(steps)


def test_exact_evidence_dates_the_onset(detector: OwnDetector) -> None:
    panel = run(500)
    late = changed(panel, obs_roundtrip_mismatch_frac=np.where(np.arange(40) >= 20, 0.2, 0.0))
    explanation = detector.explain(late)
    assert explanation.onset == 21
    assert any(math.isinf(one.score) and one.step == 21 for one in explanation.evidence)


def test_a_healthy_run_has_little_evidence(detector: OwnDetector) -> None:
    assert sum(len(detector.evidence(panel)) for panel in runs(10, first=600)) <= 10


def test_it_survives_a_file(detector: OwnDetector, tmp_path) -> None:
    detector.save(tmp_path / "own.json")
    again = OwnDetector.load(tmp_path / "own.json")
    panel = shifted(run(510), "entropy", 0.05, 5)
    assert np.allclose(again.step_scores(panel), detector.step_scores(panel))
    assert again.explain(panel) == detector.explain(panel)


def test_kinds_of_statistics_can_be_left_out() -> None:
    only = OwnDetector(["level cusum"], exact=False)
    only.fit(runs(12))
    assert only.parts(run(520)).shape == (40, 1)
    with pytest.raises(ConfigError, match="not loudness"):
        OwnDetector(["loudness"])
    assert set(KINDS) >= {"level scan", "partial cusum", "whole"}


def test_a_configuration_that_the_profile_does_not_know_is_held_against_its_own_start(
    detector: OwnDetector,
) -> None:
    relative = OwnDetector(own_start=5)
    relative.fit(runs(30))
    longer = [shifted(run(seed), "len_mean", 6.0, 0) for seed in range(700, 710)]
    usual = max(relative.score(panel) for panel in runs(20, first=800))
    assert np.median([relative.score(panel) for panel in longer]) <= usual
    assert min(detector.score(panel) for panel in longer) > max(
        detector.score(panel) for panel in runs(20, first=800)
    )
    faulty = [shifted(panel, "entropy", 0.06, 15) for panel in longer]
    assert np.mean([relative.score(panel) > usual for panel in faulty]) >= 0.8


def test_the_score_is_the_largest_surprise_of_the_largest_statistics(detector: OwnDetector) -> None:
    panel = shifted(run(530), "entropy", 0.05, 10)
    fitted, found = detector.fitted, []
    for place, kind in enumerate(detector.kinds):
        values, tails = fitted.model.statistics(panel)[kind], fitted.tails[kind]
        largest = 0.0
        for column in range(values.shape[1]):
            for value in values[:, column]:
                surprise = (value - tails.start[column]) / tails.scale[column] - math.log(0.4)
                largest = max(largest, surprise)
        found.append((largest - fitted.parts.start[place]) / fitted.parts.scale[place] - math.log(0.4))
    assert detector.score(panel) == pytest.approx(max(0.0, *found))


def test_wrong_order_and_too_few_runs_are_refused() -> None:
    with pytest.raises(ConfigError, match="call fit"):
        OwnDetector().score(run(0))
    with pytest.raises(ConfigError, match="5 healthy runs"):
        OwnDetector().fit(runs(5))
