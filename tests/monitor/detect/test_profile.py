import numpy as np
import pytest

from robustops.errors import ConfigError
from robustops.monitor import schema
from robustops.monitor.detect.profile import CUT, Profile, invariant_of, signals_of, stage_of
from robustops.monitor.panel import Panel
from tests.monitor.detect.runs import changed, run, runs, shifted


@pytest.fixture(scope="module")
def profile() -> Profile:
    return Profile.fit(runs(40))


def test_residuals_of_healthy_runs_have_variance_one(profile: Profile) -> None:
    found = np.concatenate([profile.residuals(panel) for panel in runs(20, first=100)])
    for name in ("reward_mean", "kl_ref_k3", "len_mean", "grad_norm", "update_size"):
        column = found[:, profile.signals.index(name)]
        assert abs(column.mean()) < 0.2
        assert 0.8 < column.std() < 1.3


def test_a_shift_of_a_column_is_seen_in_its_residual(profile: Profile) -> None:
    healthy = run(200)
    place = profile.signals.index("entropy")
    moved = profile.residuals(shifted(healthy, "entropy", 0.06, 10))[:, place]
    before = profile.residuals(healthy)[:, place]
    assert np.array_equal(moved[:10], before[:10])
    assert 2 < (moved[10:] - before[10:]).mean() < 4


def test_what_the_learning_rate_explains_is_taken_out(profile: Profile) -> None:
    place = profile.signals.index("kl_ref_k3")
    assert "lr" not in profile.signals
    for rate in (2e-4, 4e-4):
        rest = np.stack([profile.residuals(run(seed, rate=rate))[:, place] for seed in range(300, 320)])
        assert abs(rest.mean()) < 0.25


def test_settings_far_beyond_the_profile_are_not_extrapolated(profile: Profile) -> None:
    most, far = (
        profile.expected(changed(run(1), lr=np.full(40, rate)))[:, profile.signals.index("kl_ref_k3")]
        for rate in (4e-4 * 5, 1.0)
    )
    assert np.allclose(most, far)


def test_a_rate_that_decays_explains_what_it_moves(profile: Profile) -> None:
    panel = run(1)
    decay = np.where(np.arange(40) < 20, 1.0, np.linspace(2, 0, 40))
    slower = changed(panel, lr=panel["lr"] * decay, update_norm_rel=panel["update_norm_rel"] * decay)
    assert "update_norm_rel" not in profile.signals
    found = profile.residuals(slower)[:, profile.signals.index("update_size")]
    usual = profile.residuals(panel)[:, profile.signals.index("update_size")]
    assert abs(found[:-1] - usual[:-1]).max() < 1
    assert np.isnan(found[-1])


def test_settings_of_zero_have_residuals(profile: Profile) -> None:
    assert np.isfinite(profile.residuals(changed(run(1), lr=np.zeros(40)))[2:, 0]).all()


def test_a_centre_is_the_median_of_a_step_smoothed() -> None:
    panels = [Panel(np.arange(1, 6), {"entropy": np.array([1, 2, 3, 4, 5.0]) + n}) for n in (0, 1, 5)]
    found = Profile.fit(panels)
    assert np.allclose(found.centre[:, 0], [2, 3, 4, 5, 6])
    # Deviations 1, 0, 4: MAD 1; half the root mean square is sqrt(17 / 3) / 2.
    assert np.allclose(found.scale[:, 0], 1.4826)


def test_steps_beyond_the_profile_have_its_last_values(profile: Profile) -> None:
    longer = run(7, steps=60)
    place = profile.signals.index("entropy")
    low, high = profile.band(longer, "entropy")
    assert np.allclose(low[39:], low[39])
    assert low[0] < 0.12 < high[0]
    assert profile.residuals(longer).shape == (60, len(profile.signals))
    assert profile.residuals(run(7, steps=3))[:, place].shape == (3,)


def test_what_is_absent_or_not_observed_has_no_residual(profile: Profile) -> None:
    panel = run(8).only(["reward_mean", "entropy"])
    found = profile.residuals(changed(panel, entropy=np.full(40, np.nan)))
    assert not np.isnan(found[:, profile.signals.index("reward_mean")]).any()
    assert np.isnan(found[:, [s != "reward_mean" for s in profile.signals]]).all()


def test_a_constant_column_has_a_scale_and_infinity_is_cut(profile: Profile) -> None:
    panel = changed(run(9), reward_max=np.full(40, 1.9), kl_ref_k3=np.full(40, np.inf))
    found = profile.residuals(panel)
    for name in ("reward_max", "kl_ref_k3"):
        assert (found[:, profile.signals.index(name)] == CUT).all()


def test_it_survives_a_file(profile: Profile, tmp_path) -> None:
    profile.save(tmp_path / "profile.json")
    again = Profile.load(tmp_path / "profile.json")
    panel = run(10)
    assert np.array_equal(again.residuals(panel), profile.residuals(panel), equal_nan=True)
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(ConfigError, match="no healthy profile"):
        Profile.load(tmp_path / "other.json")


def test_too_little_is_refused() -> None:
    with pytest.raises(ConfigError, match="2 healthy runs has no scale"):
        Profile.fit(runs(2))
    with pytest.raises(ConfigError, match="no telemetry column"):
        Profile.fit([panel.only(["lr"]) for panel in runs(3)])


def test_signals_are_columns_and_pairs_of_what_most_runs_observe(profile: Profile) -> None:
    assert "final_answers" in profile.signals
    assert "vf_loss" not in profile.signals
    portable = Profile.fit([panel.only(schema.names("P")) for panel in runs(5)])
    assert "honest_success" not in portable.signals
    assert invariant_of("honest_success") == "reward_trajectory"
    assert stage_of("final_answers") == "behaviour"
    assert signals_of(run(0), ["entropy", "final_answers"]).shape == (40, 2)
