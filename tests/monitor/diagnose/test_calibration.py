"""Temperature and label sets on synthetic scores whose truth is known."""

import numpy as np
import pytest

from robustops.errors import ConfigError
from robustops.monitor.diagnose.calibration import Confidence, best_temperature
from robustops.monitor.diagnose.classifier import softmax
from robustops.seeding import array_generator

TYPES = ("a", "b", "c", "d")


def exchangeable(seed: int, count: int, sharpness: float = 1.0):
    """Scores that are `sharpness` times the logarithm of the true posterior, and labels drawn from it."""
    rng = array_generator(seed, "exchangeable")
    logits = 2.0 * rng.standard_normal((count, len(TYPES)))
    posterior = softmax(logits)
    truth = (rng.random((count, 1)) > np.cumsum(posterior, axis=1)).sum(axis=1)
    return sharpness * logits, [TYPES[k] for k in truth]


def fitted(count: int = 600, sharpness: float = 1.0) -> Confidence:
    scores, labels = exchangeable(1, count, sharpness)
    return Confidence.fit(TYPES, scores, labels, np.linspace(0, 1, count))


@pytest.mark.parametrize("sharpness", [0.5, 1.0, 3.0])
def test_temperature_undoes_wrong_sharpness(sharpness: float) -> None:
    assert fitted(2000, sharpness).temperature == pytest.approx(sharpness, rel=0.12)


def test_temperature_without_runs_is_one() -> None:
    assert best_temperature(np.empty((0, 3)), np.empty(0, dtype=int)) == 1.0


@pytest.mark.parametrize("alpha", [0.05, 0.1, 0.3])
def test_label_sets_hold_the_truth_as_often_as_promised_and_not_much_more(alpha: float) -> None:
    own = fitted()
    scores, labels = exchangeable(2, 3000)
    sets = [own.label_set(TYPES, row, alpha) for row in own.probabilities(scores)]
    for name in TYPES:  # within each type
        held = np.mean([name in found for found, label in zip(sets, labels, strict=True) if label == name])
        assert held >= 1 - alpha - 0.04
    # Above the promise only since the likeliest type is never left out.
    forced = [len(found) > 1 for found in sets]
    assert np.mean(forced) > 0 and np.mean([len(found) for found in sets]) < 3


def test_a_type_of_few_runs_is_judged_by_all() -> None:
    scores, labels = exchangeable(1, 400)
    few = [at for at, label in enumerate(labels) if label != "d"] + [labels.index("d")]
    own = Confidence.fit(TYPES, scores[few], [labels[at] for at in few], np.zeros(len(few)))
    probabilities = np.array([0.5, 0.2, 0.1, 0.2])
    expected = own.oddities.p_value(0.8) > 0.1
    assert ("d" in own.label_set(TYPES, probabilities, 0.1)) == expected


def test_two_types_that_share_the_probability_are_both_in_the_set() -> None:
    own = fitted()
    assert list(own.label_set(TYPES, np.array([0.48, 0.5, 0.01, 0.01]), 0.1))[:2] == ["b", "a"]


def test_a_set_is_never_empty_and_begins_with_the_likeliest() -> None:
    own = fitted(600, 1.0)
    found = own.label_set(TYPES, np.array([0.26, 0.25, 0.25, 0.24]), 0.9)
    assert list(found) == ["a"]


def test_runs_of_a_type_that_was_not_learned_do_not_count() -> None:
    scores, labels = exchangeable(1, 200)
    blind = scores.copy()
    odd = [at for at, label in enumerate(labels) if label == "c"]
    blind[odd, 2] = -np.inf
    own = Confidence.fit(TYPES, blind, labels, np.zeros(200))
    assert len(own.oddities.scores) == 200 - len(odd) and "c" not in own.by_type
    blind[:] = -np.inf
    with pytest.raises(ConfigError, match="one seed only"):
        Confidence.fit(TYPES, blind, labels, np.zeros(200))


def test_familiarity_is_the_share_of_runs_as_strange() -> None:
    scores = np.tile([50.0, 0.0], (9, 1))  # sure at any temperature
    own = Confidence.fit(("a", "b"), scores, ["a"] * 9, np.arange(9) / 10)
    sure = np.array([1.0, 0.0])
    assert own.familiarity(0.75, sure) == pytest.approx(2 / 10)
    assert own.familiarity(2.0, sure) == pytest.approx(1 / 10)
    assert own.familiarity(0.0, np.array([0.5, 0.5])) < own.familiarity(0.0, sure)


def test_arrays_keep_everything() -> None:
    own = fitted()
    again = Confidence.of(own.arrays())
    assert again.temperature == own.temperature and set(again.by_type) == set(TYPES)
    np.testing.assert_array_equal(again.oddities.scores, own.oddities.scores)
    np.testing.assert_array_equal(again.by_type["c"].scores, own.by_type["c"].scores)
    np.testing.assert_array_equal(again.strange.scores, own.strange.scores)
