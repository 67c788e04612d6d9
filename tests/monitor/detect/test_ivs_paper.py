import math

import numpy as np
import pytest

from robustops.errors import ConfigError
from robustops.monitor.detect.ivs_paper import HORIZON, IVSPaper, longest, theil_sen
from robustops.monitor.panel import Panel
from tests.monitor.detect.runs import changed, run, runs, shifted


@pytest.fixture(scope="module")
def detector() -> IVSPaper:
    found = IVSPaper()
    found.fit(runs(11))
    return found


def test_slope_and_streak_by_hand() -> None:
    places = np.array([0.0, 1.0, 2.0, 4.0])
    assert theil_sen(places, np.array([1.0, 3.0, 5.0, 9.0])) == 2.0
    assert theil_sen(places, np.array([1.0, 3.0, 5.0, 900.0])) == pytest.approx(2.0, abs=223)
    assert longest([True, False, True, True, False]) == 2
    assert longest([]) == 0


def test_a_strong_shift_scores_above_the_papers_threshold(detector: IVSPaper) -> None:
    fresh = [detector.score(panel) for panel in runs(20, first=50)]
    assert np.mean(np.array(fresh) > detector.threshold) <= 0.3
    assert detector.score(shifted(run(60), "entropy", 0.2, 5)) > max(fresh)
    both = shifted(shifted(run(60), "entropy", 0.2, 5), "kl_ref_k3", 5.0, 5)
    assert detector.score(shifted(both, "len_mean", 40.0, 5)) > detector.threshold


def test_only_the_horizon_counts(detector: IVSPaper) -> None:
    panel = run(61)
    assert detector.score(shifted(panel, "entropy", 5.0, HORIZON)) == detector.score(panel)
    assert detector.score(panel.until(HORIZON)) == detector.score(panel)


def test_the_papers_five_invariants_see_no_tools(detector: IVSPaper) -> None:
    panel = run(62)
    broken = changed(panel, invalid_call_frac=np.full(40, 0.9), samp_logp_absdiff_mean=np.full(40, 1.0))
    assert detector.score(broken) == detector.score(panel)


def test_short_and_empty_panels(detector: IVSPaper) -> None:
    assert math.isfinite(detector.score(run(63, steps=4)))
    assert detector.score(Panel(np.arange(1, 21))) == -math.inf
    assert detector.score(run(63, steps=2)) == -math.inf


def test_without_a_profile_or_with_too_small_a_one() -> None:
    with pytest.raises(ConfigError, match="call fit"):
        IVSPaper().score(run(0))
    with pytest.raises(ConfigError, match="3 normal runs"):
        IVSPaper().fit(runs(3))
    with pytest.raises(ConfigError, match="no column"):
        IVSPaper(["kl"]).fit([panel.only(["entropy"]) for panel in runs(5)])
