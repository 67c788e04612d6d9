from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robustops.bench.run_faults.spec import UNITS, RunFaultSpec, uniform, unit_key
from robustops.errors import ConfigError
from robustops.rollout.hooks import Place

PLACE = Place(6, "case/oracle", "clean", 4, 2, attempt=1, turn=3, asked=0)


def made(**values) -> RunFaultSpec:
    return RunFaultSpec("reward_spike", "episode_spike", **values)


def test_the_level_by_hand():
    sudden = made(strength=0.8, onset=3, end=6)
    assert [sudden.level(step) for step in range(1, 8)] == [0, 0, 0.8, 0.8, 0.8, 0, 0]
    ramp = made(strength=0.8, onset=3, ramp=4)
    assert [ramp.level(step) for step in range(1, 9)] == pytest.approx([0, 0, 0.2, 0.4, 0.6, 0.8, 0.8, 0.8])


@given(st.floats(0, 1, allow_subnormal=False), st.integers(1, 9), st.integers(0, 9), st.integers(1, 30))
def test_the_level_rises_from_the_onset_on_and_never_exceeds_the_strength(strength, onset, ramp, step):
    spec = made(strength=strength, onset=onset, ramp=ramp)
    assert 0 <= spec.level(step) <= spec.level(step + 1) <= strength
    assert (spec.level(step) == 0) == (step < onset or strength == 0)


def test_intensity_is_the_level_of_struck_units_and_0_of_others():
    spec = made(strength=0.5, probability=0.4, onset=2)
    keys = [unit_key("episode", PLACE._replace(group=group)) for group in range(200)]
    assert {spec.intensity(6, key) for key in keys} == {0.0, 0.5}
    assert {spec.intensity(1, key) for key in keys} == {0.0}
    assert all((spec.intensity(6, key) > 0) == spec.strikes(key) for key in keys)


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_the_share_of_struck_units_is_the_probability(probability):
    spec, count = made(probability=probability), 2000
    struck = sum(spec.strikes(unit_key("episode", PLACE._replace(group=n))) for n in range(count))
    error = math.sqrt(probability * (1 - probability) / count)
    assert abs(struck / count - probability) < 3 * error


def test_a_unit_contains_the_smaller_ones():
    """Equal keys for all that is struck together, different ones for what is not."""
    later = PLACE._replace(turn=5)
    member, group, step = PLACE._replace(member=0), PLACE._replace(group=9), PLACE._replace(step=7)
    for unit, together, apart in (
        ("step", group, step),
        ("group", member, group),
        ("episode", later, member),
        ("turn", PLACE, later),
    ):
        assert unit_key(unit, PLACE) == unit_key(unit, together)
        assert unit_key(unit, PLACE) != unit_key(unit, apart)
    assert unit_key("token", PLACE, 1) != unit_key("token", PLACE, 2)
    lengths = [len(unit_key(unit, PLACE)) for unit in UNITS]
    assert lengths == sorted(set(lengths))


def test_draws_depend_on_seed_mechanism_and_unit_alone():
    keys = [unit_key("episode", PLACE._replace(member=n)) for n in range(64)]
    draws = [made(probability=0.5).strikes(key) for key in keys]
    assert (
        draws == [made(probability=0.5, strength=0.2, onset=9).strikes(key) for key in reversed(keys)][::-1]
    )
    assert draws != [made(probability=0.5, seed=1).strikes(key) for key in keys]
    other = RunFaultSpec("reward_spike", "component_scale", probability=0.5)
    assert draws != [other.strikes(key) for key in keys]
    assert 0 <= uniform(0, "a") < 1 and uniform(0, "a") == uniform(0, "a") != uniform(0, "b")


def test_all_or_nothing_effects_happen_with_their_share():
    spec = made()
    keys = [unit_key("episode", PLACE._replace(group=n)) for n in range(2000)]
    assert all(spec.happens(key, 1.0) for key in keys) and not any(spec.happens(key, 0.0) for key in keys)
    assert abs(sum(spec.happens(key, 0.3) for key in keys) / 2000 - 0.3) < 3 * math.sqrt(0.21 / 2000)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"strength": 1.5}, "strength is 1.5; give 0 to 1"),
        ({"probability": -0.1}, "probability is -0.1"),
        ({"unit": "batch"}, "choose one of: step, group, episode, turn, token"),
        ({"onset": 5, "end": 5}, "leaves no step"),
    ],
)
def test_values_that_mean_nothing_are_refused(values, message):
    with pytest.raises(ConfigError, match=message):
        made(**values)
