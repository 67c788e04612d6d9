from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robustops.bench.campaign.response import LEAST, Response, solve
from robustops.seeding import generator

#: Effects by knob, all rising: proportional, saturating, a threshold, and steep from the start.
SHAPES = {
    "proportional": lambda k: 20 * k,
    "saturating": lambda k: 30 * k / (k + 0.3),
    "threshold": lambda k: 12 / (1 + math.exp(-25 * (k - 0.4))),
    "steep": lambda k: 3000 * k**1.5,
    "root": lambda k: 16 * math.sqrt(k),
}


def of(*points: tuple[float, float, float], most: float = 1.0) -> Response:
    response = Response(most)
    for point in points:
        response.add(*point)
    return response


def test_a_law_by_hand():
    """Two exact points on d = 8 k^2: the prior at slope 1 hardly counts against their weights."""
    a, b = of((1.0, 8.0, 0.0), (0.5, 2.0, 0.0)).law(4.0)
    assert b == pytest.approx(2.0, abs=0.25) and math.exp(a + b * math.log(0.7)) == pytest.approx(
        3.9, rel=0.1
    )
    alone = of((0.5, 3.0, 0.1))
    assert alone.law(1.0)[1] == 1.0, "one point leaves the prior"
    assert alone.knob_for(1.0) == pytest.approx(0.5 / 3)


def test_measurements_that_are_clear_bound_the_next_knob():
    response = of((0.1, 0.2, 0.1), (0.2, 6.0, 0.1))  # a threshold between them
    assert 0.1 < response.knob_for(1.1) < 0.2
    assert of((1.0, 0.5, 0.1)).knob_for(5.0) == 1.0, "there is no more than all"
    assert of((0.4, 0.5, 0.1), most=0.7).knob_for(5.0) == pytest.approx(math.sqrt(0.4 * 0.7))
    with pytest.raises(ValueError, match="no positive"):
        of((1.0, -1.0, 0.1)).law(1.0)


@pytest.mark.parametrize("shape", sorted(SHAPES))
@pytest.mark.parametrize("target", [1.1, 5.5])
def test_the_search_finds_the_knob_of_any_rising_response(shape, target):
    effect = SHAPES[shape]
    response = of((1.0, effect(1.0), 0.05))
    knob = solve(response, lambda k: (effect(k), 0.05), target, (0.75 * target, 1.3 * target), tries=6)
    assert LEAST <= knob <= 1 and effect(knob) == pytest.approx(target, rel=0.3)
    assert len(response.points) <= 7


@given(st.floats(0.05, 1), st.integers(0, 1000))
@settings(max_examples=50)
def test_errors_as_large_as_the_effect_do_not_lead_it_astray(slope, seed):
    """A small effect with an error of its own size is told by the large ones."""
    rng = generator(seed, "response")
    response = of((1.0, 100 * slope, 0.5), (0.06, 6 * slope, 0.4))
    knob = solve(response, lambda k: (100 * slope * k + rng.gauss(0, 0.5), 0.5), 1.1, (0.8, 1.5), tries=3)
    assert 0.4 <= 100 * slope * knob <= 2.6
