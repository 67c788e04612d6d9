"""Whole fits: without a fault, before it, under it, and resumed in its midst."""

from __future__ import annotations

import pytest

from robustops.bench.run_faults.injector import MECHANISMS
from robustops.learning.hooks import TrainingHooks
from tests.bench.run_faults.support import NEEDS_CRITIC, ONSET, STEPS, Fit, fit, injector, uses_tools
from tests.learning.support import same_weights


@pytest.fixture(scope="module")
def controls(tmp_path_factory) -> dict[bool, Fit]:
    """Fits without hooks: of the random model, and of scripted episodes with tool calls."""
    return {expert: fit(tmp_path_factory.mktemp("control"), expert=expert) for expert in (False, True)}


@pytest.mark.parametrize("expert", [False, True])
def test_hooks_that_do_nothing_leave_every_bit_as_it_is(tmp_path, controls, expert):
    plain, control = fit(tmp_path, TrainingHooks(), expert=expert), controls[expert]
    assert plain.telemetry == control.telemetry and plain.episodes == control.episodes
    assert same_weights(plain.weights, control.weights)
    assert len(set(control.telemetry)) == STEPS, "every step has something to learn"


@pytest.mark.parametrize("name", sorted(set(MECHANISMS) - NEEDS_CRITIC))
def test_before_its_onset_a_fault_changes_nothing_and_then_something(tmp_path, controls, name):
    control = controls[uses_tools(name)]
    faulty = fit(tmp_path, injector(tmp_path, name), expert=uses_tools(name))
    assert faulty.same_until(control, ONSET)
    assert faulty.telemetry[ONSET - 1 :] != control.telemetry[ONSET - 1 :]
    assert [line["step"] for line in faulty.exposure] == list(range(1, STEPS + 1))
    assert all(line["eligible"] == 0 for line in faulty.exposure[: ONSET - 1])
    for line in faulty.exposure[ONSET - 1 :]:
        assert line["touched"] == line["eligible"] > 0, "it strikes every unit"


@pytest.mark.parametrize(
    ("name", "values"),
    [
        *(
            (name, {"probability": 0.0})
            for name in ("episode_spike", "stop_at_once", "token_cut", "tool_outage")
        ),
        *((name, {"probability": 0.0}) for name in ("skipped_updates", "stale_sampler", "heavy_noise")),
        *((name, {"strength": 0.0}) for name in ("empty_reply", "aggressive_updates", "digit_noise")),
    ],
)
def test_a_fault_that_strikes_nothing_changes_nothing(tmp_path, controls, name, values):
    control = controls[uses_tools(name)]
    spared = fit(tmp_path, injector(tmp_path, name, **values), expert=uses_tools(name))
    assert spared.telemetry == control.telemetry and same_weights(spared.weights, control.weights)
    assert not any(line["touched"] for line in spared.exposure)


def test_a_shift_that_whole_groups_share_is_seen_but_never_learned(tmp_path, controls):
    faulty = fit(tmp_path, injector(tmp_path, "uniform_spike"), expert=False)
    assert faulty.telemetry != controls[False].telemetry
    for name, weight in controls[False].weights.items():
        assert weight.allclose(faulty.weights[name], atol=1e-3), name


def test_after_its_end_a_fault_strikes_no_more(tmp_path):
    faulty = fit(tmp_path, injector(tmp_path, "episode_spike", end=ONSET + 1), expert=False)
    assert [line["touched"] > 0 for line in faulty.exposure] == [False, True, False]


@pytest.mark.parametrize(
    "name", ["lagged_advantages", "stale_sampler", "noisy_gradient", "stop_at_once", "skipped_updates"]
)
def test_a_resumed_run_goes_on_as_if_it_had_not_been_stopped(tmp_path, name):
    saved = tmp_path / "saved"
    whole = fit(tmp_path, injector(tmp_path, name), expert=False, save=saved)
    (middle,) = [path for path in saved.iterdir() if "step=2" in path.name]
    rest = fit(tmp_path, injector(tmp_path, name), expert=False, resume=middle)
    assert rest.telemetry == whole.telemetry[2:] and rest.episodes == whole.episodes[2:]
    assert same_weights(rest.weights, whole.weights) and rest.exposure == whole.exposure


def test_a_stale_sampler_keeps_old_weights_and_the_probe_tells(tmp_path, controls):
    faulty = fit(tmp_path, injector(tmp_path, "stale_sampler"), expert=False)
    assert [{e.weight_version for e in step} for step in faulty.episodes] == [{0}, {0}, {0}]
    control = controls[False]
    assert [{e.weight_version for e in step} for step in control.episodes] == [{0}, {1}, {2}]
