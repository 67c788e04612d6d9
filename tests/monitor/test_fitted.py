"""The calibrated judge, on made-up runs with the identities of real ones."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from robustops.errors import ConfigError
from robustops.monitor.fitted import ALPHA, FittedMonitor, is_fitted
from robustops.monitor.panel import Panel
from robustops.monitor.verdict import ALARM
from tests.monitor.detect.runs import changed, run, runs, shifted
from tests.monitor.diagnose.faulty import diagnoser, faulty


@pytest.fixture(scope="module")
def fitted() -> FittedMonitor:
    return FittedMonitor.fit(runs(30), runs(60, first=100), about={"settings": {"domain.name": "made up"}})


def test_healthy_runs_are_healthy_at_about_the_promised_rate(fitted: FittedMonitor) -> None:
    verdicts = [fitted.judge(panel) for panel in runs(60, first=200)]
    alarms = [verdict.verdict == "anomalous" for verdict in verdicts]
    assert np.mean(alarms) <= 0.2
    assert all((verdict.p_value <= ALPHA) == alarm for verdict, alarm in zip(verdicts, alarms, strict=True))
    calm = [v for v in verdicts if v.verdict == "healthy"]
    assert all(v.onset is None and v.family is None and v.severity < ALARM for v in calm)


def test_a_shift_is_told_with_onset_evidence_and_severity(fitted: FittedMonitor) -> None:
    verdict = fitted.judge(shifted(run(400), "entropy", 0.08, 15))
    assert verdict.verdict == "anomalous" and verdict.severity > ALARM
    assert verdict.onset is not None and 14 <= verdict.onset <= 19
    assert "entropy" in {one.column for one in verdict.evidence}
    assert (verdict.family, verdict.type, dict(verdict.labels)) == ("unknown", "unknown", {})


def test_a_fact_that_no_healthy_run_shows_is_enough(fitted: FittedMonitor) -> None:
    """Sampler and trainer disagree at two steps; everything else is as ever."""
    panel = run(401)
    values = panel["samp_logp_absdiff_mean"].copy()
    values[[20, 21]] = 0.5
    verdict = fitted.judge(changed(panel, samp_logp_absdiff_mean=values))
    assert verdict.verdict == "anomalous" and verdict.onset in range(18, 22)
    assert verdict.p_value == pytest.approx(1 / 61)


def test_a_fact_that_healthy_runs_show_tells_nothing() -> None:
    """All of these runs write one token and earn nothing at two steps."""

    def short(panel: Panel) -> Panel:
        length, reward = panel["len_mean"].copy(), panel["reward_mean"].copy()
        length[:3], reward[:3] = 1.0, 0.0
        return changed(panel, len_mean=length, reward_mean=reward)

    fitted = FittedMonitor.fit([short(panel) for panel in runs(30)])
    assert fitted.shown
    verdicts = [fitted.judge(short(panel)).verdict for panel in runs(10, first=500)]
    assert verdicts.count("healthy") >= 8


def test_a_run_of_which_nothing_is_known_is_not_observed(fitted: FittedMonitor) -> None:
    verdict = fitted.judge(Panel(np.arange(1, 5), {}))
    assert verdict.verdict == "not_observed" and verdict.missing


def test_saved_and_loaded_it_says_the_same(fitted: FittedMonitor, tmp_path: Path) -> None:
    fitted.save(tmp_path / "profile")
    assert is_fitted(tmp_path / "profile") and not is_fitted(tmp_path)
    again = FittedMonitor.load(tmp_path / "profile")
    assert again.about == fitted.about and again.steps == 40
    for panel in (run(400), shifted(run(400), "entropy", 0.08, 15)):
        assert again.judge(panel) == fitted.judge(panel)


def test_fewer_calibration_runs_give_more_alarms_and_it_says_so(fitted: FittedMonitor) -> None:
    assert fitted.level == ALPHA
    assert FittedMonitor.fit(runs(30), runs(9, first=100)).level == pytest.approx(0.1)
    with pytest.raises(ConfigError, match="too few"):
        FittedMonitor.fit(runs(5), runs(30, first=100))


def test_a_diagnoser_names_the_type_and_is_kept_with_the_rest(fitted: FittedMonitor, tmp_path: Path) -> None:
    whole = dataclasses.replace(fitted, diagnoser=diagnoser())
    verdict = whole.judge(faulty("kl_explosion", 700))
    assert (verdict.family, verdict.type) == ("optimisation", "kl_explosion")
    assert "kl_explosion" in verdict.labels
    whole.save(tmp_path / "whole")
    assert FittedMonitor.load(tmp_path / "whole").judge(faulty("kl_explosion", 700)) == verdict
    fitted.save(tmp_path / "whole")  # without one, in the same folder
    assert FittedMonitor.load(tmp_path / "whole").diagnoser is None
