"""The classifier: its two models, what is not observed, and what speaks for a type."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from robustops.monitor.diagnose import classifier as module
from robustops.monitor.diagnose.classifier import Classifier, softmax
from robustops.seeding import array_generator


def clouds(seed: int, types=("a", "b", "c"), count: int = 30):
    """Type k is moved by 3 along axis k of 6."""
    rng = array_generator(seed, "clouds")
    rows = rng.standard_normal((len(types) * count, 6))
    for k in range(len(types)):
        rows[k * count : (k + 1) * count, k] += 3.0
    return rows, [name for name in types for _ in range(count)]


@pytest.fixture(scope="module")
def fitted() -> Classifier:
    return Classifier.fit(*clouds(1))


def said(own: Classifier, rows):
    return [own.types[k] for k in own.scores(rows).argmax(axis=1)]


def test_clouds_are_told_apart(fitted) -> None:
    rows, labels = clouds(2)
    assert np.mean([a == b for a, b in zip(said(fitted, rows), labels, strict=True)]) > 0.85


@pytest.mark.parametrize("types", [("a", "b"), ("a", "b", "c")])
def test_linear_part_is_that_of_scikit_learn(types) -> None:
    rows, labels = clouds(1, types)
    own = Classifier.fit(rows, labels)
    scaled = own.scaled(rows)
    same = LogisticRegression(C=module.STRENGTH, max_iter=300, class_weight="balanced").fit(scaled, labels)
    linear = softmax(scaled @ own.weights.T + own.bias)
    np.testing.assert_allclose(linear, same.predict_proba(scaled), atol=1e-9)


def test_what_is_not_observed_is_the_mean_of_what_was_learned(fitted) -> None:
    rows, _ = clouds(3)
    blind, mean = rows.copy(), rows.copy()
    blind[:, 0], mean[:, 0] = np.nan, fitted.mean[0]
    np.testing.assert_array_equal(fitted.scores(blind), fitted.scores(mean))


def test_a_column_that_never_varied_or_was_never_seen_tells_nothing() -> None:
    rows, labels = clouds(1)
    more = np.concatenate([rows, np.full((len(rows), 1), 7.0), np.full((len(rows), 1), np.nan)], axis=1)
    own = Classifier.fit(more, labels)
    odd = more.copy()
    odd[:, 6:] = 100.0
    np.testing.assert_array_equal(own.scores(more), own.scores(odd))


def test_a_row_is_scored_alone(fitted) -> None:
    rows, _ = clouds(4)
    alone = np.concatenate([fitted.scores(row[None]) for row in rows])
    np.testing.assert_array_equal(fitted.scores(rows), alone)


def test_contributions_name_the_axis_of_a_type(fitted) -> None:
    added = fitted.contributions(np.array([0.0, 4.0, 0, 0, 0, 0]), "b")
    assert int(added.argmax()) == 1


def test_contributions_add_up_to_the_linear_score(fitted) -> None:
    row = clouds(5)[0][0]
    scaled = fitted.scaled(row[None])[0]
    total = scaled @ fitted.weights[2] - np.mean(fitted.weights @ scaled)
    assert fitted.contributions(row, "c").sum() == pytest.approx(total)


def test_arrays_keep_everything(fitted) -> None:
    again = Classifier.of(fitted.arrays())
    rows, _ = clouds(6)
    assert again.types == fitted.types
    np.testing.assert_array_equal(again.scores(rows), fitted.scores(rows))


def test_softmax_by_hand() -> None:
    np.testing.assert_allclose(softmax(np.array([1000.0, 1000.0 + np.log(3)])), [0.25, 0.75])
