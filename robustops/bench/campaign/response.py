"""How an effect answers to a knob, from few noisy measurements, and the knob that gives an effect.

    log d = a + b log k    around the effect in question

Weighted least squares: a measurement counts by its relative error and by how near its effect is. The slope
has a weak prior at 1: a mean over units is proportional to the share that is struck. Effects are nearly
monotone in a knob, so that knobs that gave too much or too little bound the next one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

#: Prior of the slope: its deviation; relative error that no measurement beats; distance in log d at which a
#: measurement counts 0.6 as much.
_SLOPE_DEVIATION, _LEAST_ERROR, _NEAR = 0.5, 0.1, 1.5
#: A knob is tried at most so many times nearer to 0 than the one before.
_LEAP = 30.0
#: Least knob: below it nothing is struck at all.
LEAST = 1e-4


@dataclass(frozen=True)
class Point:
    """An effect that was measured: d and its standard error at a knob."""

    knob: float
    d: float
    error: float


@dataclass
class Response:
    """Measurements of one mechanism with one knob in (0, most]."""

    most: float = 1.0
    points: list[Point] = field(default_factory=list)

    def add(self, knob: float, d: float, error: float) -> None:
        """A NaN error (of one pair) counts as an effect of its own size."""
        self.points.append(Point(knob, d, abs(d) if math.isnan(error) else error))

    def law(self, target: float) -> tuple[float, float]:
        """Intercept a and slope b around an effect; ValueError where nothing positive was measured."""
        rows = [
            (math.log(p.knob), math.log(p.d), _weight(p, target)) for p in self.points if p.d > 0 < p.knob
        ]
        if not rows:
            raise ValueError("no positive effect was measured")
        total = math.fsum(w for *_, w in rows)
        x0 = math.fsum(w * x for x, _, w in rows) / total
        y0 = math.fsum(w * y for _, y, w in rows) / total
        prior = 1 / _SLOPE_DEVIATION**2
        square = math.fsum(w * (x - x0) ** 2 for x, _, w in rows) + prior
        slope = (math.fsum(w * (x - x0) * (y - y0) for x, y, w in rows) + prior) / square
        slope = max(slope, 0.1)
        return y0 - slope * x0, slope

    def at(self, knob: float, near: float) -> float:
        """The effect that the law around `near` gives."""
        if knob <= 0:
            return 0.0
        a, b = self.law(near)
        return math.exp(a + b * math.log(knob))

    def knob_for(self, target: float) -> float:
        """The knob that gives an effect, between those that clearly gave less and more."""
        a, b = self.law(target)
        wanted = math.exp(min(0.0, max(math.log(LEAST), (math.log(target) - a) / b)))
        low = max((p.knob for p in self.points if p.d + p.error < target), default=0.0)
        above = [p.knob for p in self.points if p.d - p.error > target and p.knob > low]
        high = min(above, default=self.most)
        if low < wanted < high:
            return max(wanted, high / _LEAP)
        if low == 0.0:
            return high if wanted >= high and not above else high / 3
        return math.sqrt(low * high)


def _weight(point: Point, target: float) -> float:
    relative = (point.error / point.d) ** 2 + _LEAST_ERROR**2
    distance = math.log(point.d / target) / _NEAR
    return math.exp(-(distance**2) / 2) / relative


def solve(
    response: Response,
    measure: Callable[[float], tuple[float, float]],
    target: float,
    accepted: Sequence[float],
    tries: int,
) -> float:
    """A knob whose effect is about `target`.

    measure: (d, standard error) at a knob; accepted: least and largest d that end the search. Where a
    measurement misses them by less than its error, what the law makes of all of them decides.
    """
    knob, low, high = response.knob_for(target), *accepted
    for _ in range(tries):
        d, error = measure(knob)
        response.add(knob, d, error)
        if not math.isnan(error) and low - error <= d <= high + error and _fits(response, knob, low, high):
            return knob
        if d < low and knob >= response.most:
            return knob
        knob = response.knob_for(target)
    return knob


def _fits(response: Response, knob: float, low: float, high: float) -> bool:
    try:
        return low <= response.at(knob, math.sqrt(low * high)) <= high
    except ValueError:
        return False
