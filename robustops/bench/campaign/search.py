"""The search for strengths that make each mechanism easy, or hard in four ways, by their measured effect.

Easy faults move their mechanism's quantity by d >= 4 (5.5 is sought, or the largest that there is), hard ones
by 0.8 to 1.5 (1.1 is sought), averaged from the onset to step 40; d as in `campaign.effects`, its unit from
healthy runs of 40 steps with the campaign's varieties. Pairs of runs are short where a mechanism acts within
the step, and as long as the campaign's where its effect accumulates (`Design.whole`).

    easy          the knob alone
    weak          the knob alone, lower
    intermittent  a unit is struck with probability 0.3 (0.4), with at most 0.7 of the easy strength
    ramp          strength grows over 20 steps
    delayed       as weak, from step 12 on

A weak effect is as large as what two runs differ by anyhow, so that a few pairs cannot tell its size; what
can is the response law through all measurements of a mechanism, the larger ones too (`campaign.response`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from robustops.bench.campaign.designs import Design
from robustops.bench.campaign.effects import EASY, HARD, Effect, Rows, change_of, paired_effect, unit_of
from robustops.bench.campaign.plan import STEPS
from robustops.bench.campaign.response import Response, solve
from robustops.bench.campaign.trials import Trial

#: What is sought.
EASY_D, HARD_D = 5.5, 1.1
EASY_RANGE = (EASY + 0.3, 8.0)
#: Onset of short runs and their steps; of late faults.
ONSET, SHORT, LATE = 3, 12, 12
RAMP = 20
SHARE, LARGER_SHARE, OF_EASY = 0.3, 0.4, 0.7
#: Seeds of a measurement that is large, and of one that is small.
FEW, MORE = 2, 3


@dataclass
class Search:
    """The search for one mechanism. controls: healthy runs by place; rows: of a trial."""

    design: Design
    controls: Sequence[Rows]
    rows: Callable[[Trial], Rows]
    response: Response = field(default_factory=Response)

    def modes(self) -> dict[str, dict[str, Any]]:
        """Values, effect and its error of each mode."""
        easy = self._easy()
        found = {"easy": self._told(easy, self._measure(easy, FEW), fitted=None, wanted=(EASY, math.inf))}
        found["weak"] = self._solved(self.response, self._base)
        found["intermittent"] = self._intermittent(easy.strength)
        for mode, ramp, onset in (("ramp", RAMP, ONSET), ("delayed", 0, LATE)):
            found[mode] = self._shifted(ramp, onset)
        return found

    def _easy(self) -> Trial:
        """The knob at its end, or where the effect is large enough."""
        full = self._measure(self._base(1.0), FEW)
        self.response.add(1.0, full.d, full.error)
        if full.d <= EASY_RANGE[1]:
            return self._base(1.0)
        measure = self._by_knob(self._base, FEW)
        return self._base(solve(self.response, measure, EASY_D, EASY_RANGE, tries=5))

    def _solved(self, response: Response, make: Callable[[float], Trial]) -> dict[str, Any]:
        """The knob of a weak effect, by as many seeds as a small one needs."""
        if not any(point.d > 0 for point in response.points):
            return self._told(make(1.0), self._measure(make(1.0), MORE), fitted=None)
        knob = solve(response, self._by_knob(make, MORE), HARD_D, HARD, tries=3)
        trial = make(knob)
        return self._told(trial, self._measure(trial, MORE), response.at(knob, HARD_D))

    def _intermittent(self, easy: float) -> dict[str, Any]:
        """As much of the mean effect as a share of the units can carry: strength is the knob."""
        of_easy = OF_EASY * easy
        own = Response(of_easy)
        share = SHARE
        for point in self.response.points:  # a mean over units is proportional to the share that is struck
            if self.design.knob == "strength":
                own.add(point.knob, point.d * share / self.design.probability, point.error)
            elif point.d > 0:
                own.add(min(of_easy, self.design.strength * point.knob / share), point.d, point.error)
        if all(point.d < HARD[0] for point in own.points if point.knob <= of_easy):
            share = LARGER_SHARE
        return self._solved(own, partial(self._of_share, share))

    def _shifted(self, ramp: int, onset: int) -> dict[str, Any]:
        """Knob of a ramp or a late onset, from the response to a constant one; measured once."""
        try:
            law = self.response.law(HARD_D)
        except ValueError:
            trial = self._base(1.0, ramp, onset)
            return self._told(trial, self._measure(trial, FEW), fitted=None)
        unit, late = self._unit(ONSET), self._unit(onset)
        levels = [min(1.0, (n + 1) / max(ramp, 1)) for n in range(STEPS - onset + 1)]
        share = math.fsum(level ** law[1] for level in levels) / len(levels) * unit / late
        knob = min(1.0, self.response.knob_for(HARD_D / share))
        trial = self._base(knob, ramp, onset)
        return self._told(trial, self._measure(trial, FEW), share * self.response.at(knob, HARD_D / share))

    def _base(self, knob: float, ramp: int = 0, onset: int = ONSET) -> Trial:
        """A run of the first seed at a knob."""
        design = self.design
        by_strength = design.knob == "strength"
        strength, probability = (knob, design.probability) if by_strength else (design.strength, knob)
        steps = STEPS if design.whole or ramp else SHORT + onset - ONSET
        return Trial(
            0, steps, design.fault, design.mechanism, _rounded(strength), _rounded(probability),
            design.unit, ramp, onset,
        )  # fmt: skip

    def _of_share(self, share: float, strength: float) -> Trial:
        trial = self._base(1.0)
        return dataclasses.replace(trial, strength=_rounded(strength), probability=share)

    def _by_knob(self, make: Callable[[float], Trial], pairs: int) -> Callable[[float], tuple[float, float]]:
        def measure(knob: float) -> tuple[float, float]:
            effect = self._measure(make(knob), pairs)
            return effect.d, effect.error

        return measure

    def _unit(self, onset: int) -> float:
        return unit_of(self.design.quantity, self.controls, onset)

    def _measure(self, trial: Trial, pairs: int) -> Effect:
        """Of the first seeds. Pairs of a short run are compared over its own steps."""
        column, changes = self.design.quantity, []
        for place in range(pairs):
            faulty = self.rows(dataclasses.replace(trial, place=place))
            control = self.controls[place][: len(faulty)]
            changes.append(change_of(column, faulty, control, trial.onset))
        if all(math.isnan(change) for change in changes):
            return Effect(0.0, math.nan, math.nan, self._unit(trial.onset), 0)
        return paired_effect(column, self.design.direction, changes, self._unit(trial.onset))

    def _told(
        self, trial: Trial, effect: Effect, fitted: float | None, wanted: Sequence[float] = HARD
    ) -> dict[str, Any]:
        value = effect.d if fitted is None else fitted
        return {
            "strength": trial.strength,
            "probability": trial.probability,
            "unit": trial.unit,
            "ramp": trial.ramp,
            "d": _shown(effect.d),
            "error": _shown(effect.error),
            "pairs": effect.pairs,
            "fitted": _shown(value),
            "reached": bool(wanted[0] <= value <= wanted[1]),
        }


def _rounded(value: float) -> float:
    """Three digits: what a config can show."""
    return float(f"{value:.3g}")


def _shown(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 2)
