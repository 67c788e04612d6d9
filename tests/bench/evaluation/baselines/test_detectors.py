"""What every detector of the registry keeps to, and what single ones compute."""

from __future__ import annotations

import math

import numpy as np
import pytest

from robustops.bench.evaluation.registry import DETECT, METHODS
from robustops.monitor.panel import Panel
from tests.bench.evaluation.panels import changed, healthy_panel, healthy_panels

pytest.importorskip("sklearn")

DETECTORS = [method for method in METHODS if method.task == DETECT]
BLIND = ("random", "always_fault", "rlwatch", "rlprobe", "kl_threshold")  # to a reward that is merely higher
LEARNING = [method for method in DETECTORS if method.name not in BLIND]


@pytest.fixture(scope="module")
def fitted():
    known = {}

    def make(method):
        if not method.available:
            pytest.skip(f"{method.package} is not installed")
        if method.name not in known:
            known[method.name] = method.make(seed=0)
            known[method.name].fit(healthy_panels())
        return known[method.name]

    return make


@pytest.mark.parametrize("method", DETECTORS, ids=lambda m: m.name)
def test_scores_are_numbers_and_repeat(method, fitted):
    detector = fitted(method)
    panels = [healthy_panel(90), changed(healthy_panel(91), "kl_ref_k3", 5.0), Panel(np.arange(1, 4))]
    scores = [detector.score(panel) for panel in panels]
    assert all(isinstance(score, float) and not math.isnan(score) for score in scores)
    assert scores == [detector.score(panel) for panel in panels]
    assert detector.name == method.name


@pytest.mark.parametrize("method", LEARNING, ids=lambda m: m.name)
def test_a_changed_reward_scores_above_healthy_runs(method, fitted):
    detector = fitted(method)
    healthy = [detector.score(healthy_panel(number)) for number in range(60, 80)]
    faulty = [detector.score(changed(healthy_panel(n), "reward_mean", 1.5)) for n in range(80, 90)]
    assert np.mean([a > b for a in faulty for b in healthy]) >= 0.85


@pytest.mark.parametrize("method", DETECTORS, ids=lambda m: m.name)
def test_step_scores_do_not_look_ahead(method, fitted):
    detector = fitted(method)
    if not hasattr(detector, "step_scores"):
        pytest.skip("sees whole runs only")
    panel = healthy_panel(70)
    whole = detector.step_scores(panel)
    assert whole.shape == (20,) and not np.isnan(whole).any()
    for step in (1, 7, 15):
        assert np.allclose(detector.step_scores(panel.until(step)), whole[:step], atol=1e-5)
    later = detector.step_scores(changed(panel, "reward_mean", 9.0, since=12))
    assert np.allclose(later[:11], whole[:11], atol=1e-5)


def test_several_runs_at_once_are_scored_as_each_alone(fitted):
    panels = healthy_panels(5)
    together = [d for d in map(fitted, DETECTORS) if hasattr(d, "scores")]
    assert together
    for detector in together:
        assert detector.scores(panels).tolist() == pytest.approx([detector.score(p) for p in panels])


def test_seeds_repeat_a_network_and_leave_the_global_generator_alone():
    torch = pytest.importorskip("torch")
    method = next(m for m in DETECTORS if m.name == "tranad")
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    scores = []
    for seed in (0, 0, 1):
        detector = method.make(seed)
        detector.updates = 1
        detector.fit(healthy_panels(6))
        scores.append(detector.score(healthy_panel(50)))
    assert scores[0] == scores[1] != scores[2]
    assert torch.equal(before, torch.random.get_rng_state())


def test_reward_z_by_hand():
    detector = next(m for m in DETECTORS if m.name == "reward_z").make(0)
    steps = np.arange(1, 3)
    detector.fit([Panel(steps, {"reward_mean": np.array(v)}) for v in ([0.0, 1.0], [2.0, 5.0])])
    scores = detector.step_scores(Panel(np.arange(1, 4), {"reward_mean": np.array([3.0, np.nan, 7.0])}))
    assert scores.tolist() == [2.0, -math.inf, 2.0]  # beyond the profile: as at its last step


def test_the_kl_is_its_own_score():
    detector = next(m for m in DETECTORS if m.name == "kl_threshold").make(0)
    panel = Panel(np.arange(1, 4), {"kl_ref_k3": np.array([0.1, 0.4, 0.2])})
    assert detector.score(panel) == 0.4 and detector.score(Panel(np.arange(1, 4))) == -math.inf


def test_chance_depends_on_the_runs_name_alone():
    detector = next(m for m in DETECTORS if m.name == "random").make(0)
    panel = healthy_panel(1)
    assert detector.score(panel) == detector.score(changed(panel, "reward_mean", 9.0))
    assert len({detector.score(healthy_panel(number)) for number in range(20)}) == 20


def test_rlprobe_finds_a_collapsed_entropy_and_nothing_in_a_flat_run(fitted):
    detector = fitted(next(m for m in DETECTORS if m.name == "rlprobe"))
    steps = np.arange(1, 61)
    flat = {"entropy": np.full(60, 2.0), "reward_mean": np.linspace(0.2, 0.6, 60)}
    dead = {**flat, "entropy": np.where(steps < 20, 2.0, 0.01), "reward_mean": np.full(60, 0.5)}
    assert detector.score(Panel(steps, flat)) == 0.0 == detector.threshold
    assert detector.score(Panel(steps, dead)) > 0.0


def test_rlwatch_sees_a_kl_spike_when_it_comes(fitted):
    detector = fitted(next(m for m in DETECTORS if m.name == "rlwatch"))
    kl = 0.01 + 0.001 * np.sin(np.arange(40.0))
    kl[30] = 1.0
    panel = Panel(np.arange(1, 41), {"kl_ref_k3": kl, "entropy": np.full(40, 2.0)})
    scores = detector.step_scores(panel)
    assert scores[29] == 0.0 and scores[30] == 2.0
