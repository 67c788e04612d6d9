"""Distance to what was learned."""

import numpy as np
import pytest

from robustops.monitor.diagnose.openset import Neighbours, strangeness


def test_distance_by_hand() -> None:
    """Cosines of (1, 1) to three nearest of four: 1, 1 / sqrt 2, 1 / sqrt 2."""
    own = Neighbours.fit(np.array([[2.0, 0], [0, 5.0], [1, 1], [-1, -1]]))
    expected = 1 - (1 + 2 / np.sqrt(2)) / 3
    assert own.distance(np.array([3.0, 3.0])) == pytest.approx(expected, abs=1e-3)


def test_strength_does_not_matter_and_direction_does() -> None:
    own = Neighbours.fit(np.array([[1.0, 0, 0]] * 3))
    assert own.distance(np.array([0.1, 0, 0])) == pytest.approx(own.distance(np.array([9.0, 0, 0])))
    assert own.distance(np.array([0, 1.0, 0])) == pytest.approx(1.0)
    assert own.distance(np.array([-1.0, 0, 0])) == pytest.approx(2.0)


def test_nothing_observed_has_nothing_in_common() -> None:
    assert Neighbours.fit(np.eye(3)).distance(np.zeros(3)) == 1.0


def test_strangeness_adds_both() -> None:
    assert strangeness(0.3, np.array([0.6, 0.4])) == pytest.approx(0.7)
