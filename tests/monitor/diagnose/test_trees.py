"""Exported trees against scikit-learn's own."""

import numpy as np
import pytest
from sklearn.ensemble import ExtraTreesClassifier

from robustops.monitor.diagnose import trees as module
from robustops.monitor.diagnose.trees import Trees
from robustops.seeding import array_generator


@pytest.fixture(scope="module")
def data():
    rows = array_generator(1, "trees").standard_normal((90, 7))
    labels = [("a", "b", "c")[int(n)] for n in (rows[:, 0] > 0).astype(int) + (rows[:, 1] > 0.5)]
    return rows, labels


def test_probabilities_are_those_of_scikit_learn(data) -> None:
    rows, labels = data
    same = ExtraTreesClassifier(
        20, max_features=7, min_samples_leaf=module.LEAST_LEAF, class_weight="balanced", random_state=5
    ).fit(rows.astype(np.float32), labels)
    new = array_generator(2, "trees").standard_normal((50, 7))
    own = Trees.fit(rows, labels, 5, trees=20)
    np.testing.assert_allclose(own.probabilities(new), same.predict_proba(new.astype(np.float32)), atol=1e-6)


def test_a_row_is_judged_alone(data) -> None:
    rows, labels = data
    own = Trees.fit(rows, labels, 5, trees=5)
    one_by_one = np.concatenate([own.probabilities(row[None]) for row in rows])
    np.testing.assert_array_equal(own.probabilities(rows), one_by_one)


def test_arrays_keep_everything(data) -> None:
    own = Trees.fit(*data, 5, trees=5)
    again = Trees.of(own.arrays())
    np.testing.assert_array_equal(own.probabilities(data[0]), again.probabilities(data[0]))


def test_seed_decides(data) -> None:
    one, same, other = (Trees.fit(*data, seed, trees=5) for seed in (5, 5, 6))
    np.testing.assert_array_equal(one.threshold, same.threshold)
    assert not np.array_equal(one.probabilities(data[0]), other.probabilities(data[0]))


def test_a_hand_made_tree() -> None:
    """x0 <= 1 ? class 0 : (x1 <= 2 ? class 1 : halves)."""
    own = Trees(
        np.array([0, -1, 1, -1, -1], np.int32),
        np.array([1.0, 0, 2.0, 0, 0]),
        np.array([1, 0, 3, 1, 2], np.int32),
        np.array([2, 0, 4, 1, 2], np.int32),
        np.array([[1, 0], [0, 1], [0.5, 0.5]], np.float32),
        np.array([0], np.int32),
    )
    rows = np.array([[1.0, 9.0], [1.1, 2.0], [1.1, 2.1]])
    np.testing.assert_array_equal(own.probabilities(rows), [[1, 0], [0, 1], [0.5, 0.5]])
