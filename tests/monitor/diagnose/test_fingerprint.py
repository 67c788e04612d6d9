"""Fingerprints of runs whose residuals are known by hand."""

import numpy as np
import pytest

from robustops.monitor.detect.model import VIEWS
from robustops.monitor.detect.own import OwnDetector
from robustops.monitor.diagnose import fingerprint as fp
from robustops.monitor.panel import Panel
from tests.monitor.detect.runs import changed, run, runs, shifted


@pytest.fixture(scope="module")
def fitted():
    detector = OwnDetector()
    detector.fit(runs(30))
    return detector.fitted


def of(fitted, panel):
    return fp.fingerprint(fitted.model, fitted.armed, panel)


def entry(found, view, part, signal):
    return float(found.moved[view][part][found.signals.index(signal)])


def test_parts_of_residuals_by_hand() -> None:
    after = np.array([[3.0, 0.0], [3.0, 0.0], [3.0, 0.0], [-1.0, 0.0]])
    parts = {name: float(values[0]) for name, values in fp._parts(after).items()}
    assert parts["level"] == pytest.approx(np.arcsinh(2.0))
    assert parts["drive"] == pytest.approx(np.arcsinh(4.0))  # 2 * sqrt(4)
    assert parts["share"] == pytest.approx(0.75)
    assert parts["peak"] == pytest.approx(np.arcsinh(3.0))
    assert parts["early"] == pytest.approx(np.arcsinh(3.0))
    assert parts["trend"] == pytest.approx(np.arcsinh(1.0 - 3.0))
    assert parts["spread"] == pytest.approx(np.arcsinh(2.5 - np.sqrt(2 / np.pi)), abs=1e-4)
    assert parts["lead"] == pytest.approx(np.exp(-1 / fp.LEAD_STEPS))  # 2.5, then 5 > 4
    assert parts["shape"] == pytest.approx(1.0)


def test_what_was_not_observed_is_nan_and_nothing_else_is() -> None:
    after = np.array([[np.nan, 1.0], [np.nan, np.nan], [np.nan, 3.0]])
    parts = fp._parts(after)
    assert all(np.isnan(values[0]) and np.isfinite(values[1]) for values in parts.values())
    assert parts["level"][1] == pytest.approx(np.arcsinh(2.0))


def test_onset_is_where_the_first_of_the_strong_movers_leaves() -> None:
    residuals = np.zeros((20, 3))
    residuals[7:, 0], residuals[12:, 1] = 3.0, 4.0  # drives 10.8 and 11.3
    residuals[3:, 2] = 0.5  # 2.1: too little to count
    views = {view: residuals for view in VIEWS}
    assert fp.onset(views, {}) == 7
    assert fp.onset(views, {"group_mean": np.arange(20) == 4}) == 4
    assert fp.onset(views, {"group_mean": np.arange(20) == 12}) == 7


def test_a_single_last_step_is_no_onset() -> None:
    residuals = np.zeros((20, 2))
    residuals[19] = 8.0
    assert fp.onset({view: residuals for view in VIEWS}, {}) == 17


def test_first_mover_leads_what_follows(fitted) -> None:
    panel = shifted(shifted(run(300), "entropy", 0.1, 8), "len_mean", 10.0, 16)
    found = of(fitted, panel)
    assert abs(found.onset - 8) <= 1
    assert entry(found, "level", "lead", "entropy") > 2 * entry(found, "level", "lead", "len_mean") > 0
    assert entry(found, "level", "early", "entropy") > 1 > abs(entry(found, "level", "early", "len_mean"))
    assert entry(found, "level", "trend", "len_mean") > 1


def test_sign_of_a_fall(fitted) -> None:
    found = of(fitted, shifted(run(301), "entropy", -0.1, 8))
    assert all(
        entry(found, "level", part, "entropy") < 0 for part in ("drive", "share", "peak", "lead", "shape")
    )


def test_the_order_of_columns_does_not_matter(fitted) -> None:
    panel = shifted(run(302), "entropy", 0.1, 8)
    turned = Panel(panel.steps, dict(reversed(panel.columns.items())))
    np.testing.assert_array_equal(of(fitted, panel).vector(), of(fitted, turned).vector())


@pytest.mark.parametrize("start, steps", [(4, 40), (14, 40), (8, 20), (14, 20)])
def test_onset_and_horizon_change_a_fingerprint_little(fitted, start: int, steps: int) -> None:
    """Compared with the differences between runs, which moved other signals."""
    alike = of(fitted, shifted(run(303), "entropy", 0.12, 8))
    moved = of(fitted, shifted(run(303), "entropy", 0.12, start).until(steps))
    other = of(fitted, shifted(run(303), "len_mean", 12.0, 8))
    shape = [np.concatenate([own.moved[view]["shape"] for view in VIEWS]) for own in (alike, moved, other)]
    assert shape[0] @ shape[1] > 0.6 * 3 > 2 * (shape[0] @ shape[2])


def test_strength_changes_magnitude_and_not_shape(fitted) -> None:
    weak, strong = (of(fitted, shifted(run(304), "entropy", by, 8)) for by in (0.05, 0.1))
    assert entry(strong, "level", "level", "entropy") > entry(weak, "level", "level", "entropy")
    assert weak.moved["level"]["shape"] @ strong.moved["level"]["shape"] > 0.75


def test_exact_invariants_are_counted_from_the_onset(fitted) -> None:
    panel = run(305)
    broken = np.where(np.arange(40) % 2 == 0, panel["adv_group_mean_absmax"], 0.1)
    broken[:10] = panel["adv_group_mean_absmax"][:10]
    found = of(fitted, changed(panel, adv_group_mean_absmax=broken))
    share, any_, lead = found.broken["group_mean"]
    assert found.onset <= 11
    assert share == pytest.approx(15 / (40 - found.onset)) and any_ == 1.0
    assert lead == pytest.approx(np.exp(-(11 - found.onset) / fp.LEAD_STEPS))
    assert found.broken["batch_mean"] == (0.0, 0.0, 0.0)


def test_an_invariant_whose_columns_are_absent_is_not_told(fitted) -> None:
    panel = run(306)
    found = of(fitted, panel.only([name for name in panel.columns if name != "adv_group_mean_absmax"]))
    assert np.isnan(found.broken["group_mean"]).all()


def test_names_go_with_the_vector(fitted) -> None:
    found = of(fitted, shifted(run(307), "entropy", 0.1, 8))
    values = dict(zip(found.names(), found.vector(), strict=True))
    assert values["level:drive:entropy"] == entry(found, "level", "drive", "entropy")
    assert values["exact:share:group_mean"] == 0.0
    assert len(values) == len(found.vector())


def test_a_run_of_one_step_has_a_fingerprint(fitted) -> None:
    assert of(fitted, run(308).until(1)).onset == 0
