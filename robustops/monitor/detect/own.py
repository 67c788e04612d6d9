"""Our detector: exact invariants first, then running statistics of residuals, made comparable and joined.

    1. exact      invariants that all runs of the profile hold (`invariants_exact`): one broken step is enough
    2. residuals  of each signal: level, partial, across (`residuals`)
    3. statistics of each of them: scans over windows of several lengths, two-sided cumulative sums; of the
                  whole step: T2 and Q (`statistics`)
    4. surprise   of each statistic: by its largest value in profile runs that its residuals were not learned
                  from (`tails`), by cross-fitting. A statistic that is wild in healthy runs says little
    5. parts      the largest surprise within each kind of statistic, again held against profile runs: kinds
                  of few statistics are not drowned by those of many
    6. score      of a step: the largest part; of a run: its largest step

Every statistic is causal, so that the score of a step depends on no later one. A score is about -log p of the
part; a broken exact invariant adds `EXACT`. Thresholds are the business of `conformal`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from robustops.errors import ConfigError
from robustops.monitor.detect import invariants_exact
from robustops.monitor.detect.explain import Explanation, explain
from robustops.monitor.detect.files import read_versioned, write_versioned
from robustops.monitor.detect.model import KINDS, Model
from robustops.monitor.detect.tails import Tails
from robustops.monitor.panel import Panel, Series
from robustops.monitor.verdict import Evidence

VERSION = 1
KIND = "fitted detector"
#: What a broken exact invariant adds to a score: far more than any statistic has.
EXACT = 1000.0
#: Parts of the profile that are scored by the others in turn.
FOLDS = 5
#: Profile runs below which there is nothing to cross-fit.
LEAST_RUNS = 6


@dataclass(frozen=True)
class Fitted:
    """model; tails: of the statistics of each kind; parts: of the kinds' largest surprises, in the order of
    `kinds`; armed: exact invariants.
    """

    model: Model
    tails: Mapping[str, Tails]
    parts: Tails
    armed: tuple[str, ...]

    def surprises(self, panel: Panel) -> dict[str, Series]:
        """(T, K) of each kind of statistic."""
        found = self.model.statistics(panel)
        return {kind: self.tails[kind].surprise(values) for kind, values in found.items()}


class OwnDetector:
    """A `monitor.detector.OnlineDetector`.

    kinds: of statistics that are used, of `KINDS`; exact: whether exact invariants are; own_start: levels are
    held against the mean of so many steps at the run's own start (0: against the profile), for a
    configuration that the profile does not know. These steps must be healthy, since no level tells of them.
    """

    name = "own"

    def __init__(self, kinds: Sequence[str] = KINDS, *, exact: bool = True, own_start: int = 0) -> None:
        unknown = [kind for kind in kinds if kind not in KINDS]
        if unknown or not kinds:
            raise ConfigError(
                f"kinds of statistics are {', '.join(KINDS)}, not {', '.join(unknown) or 'none'}"
            )
        self.kinds = tuple(kinds)
        self.exact = exact
        self.own_start = own_start
        self._fitted: Fitted | None = None

    @property
    def fitted(self) -> Fitted:
        """ConfigError before `fit`."""
        if self._fitted is None:
            raise ConfigError("the detector has no profile yet; call fit with panels of healthy runs")
        return self._fitted

    def fit(self, profile: Sequence[Panel]) -> None:
        """Learn from panels of healthy runs; ConfigError for fewer than six."""
        if len(profile) < LEAST_RUNS:
            raise ConfigError(f"{len(profile)} healthy runs are too few; give {LEAST_RUNS}, better 50")
        model = Model.fit(profile, own=self.own_start)
        maxima = _cross_fitted(profile, model)
        tails = {kind: Tails.fit(values) for kind, values in maxima.items()}
        made = {kind: tails[kind].surprise(values) for kind, values in maxima.items()}
        armed = invariants_exact.armed(profile) if self.exact else ()
        parts = Tails.fit(self._joined(made), least=1.0, scale=1.0)
        self._fitted = Fitted(model, tails, parts, armed)

    def parts(self, panel: Panel) -> Series:
        """(T, parts) in the order of `kinds`: about -log of the share of healthy runs that have as much at
        any of their steps.
        """
        return self.fitted.parts.surprise(self._joined(self.fitted.surprises(panel)))

    def step_scores(self, panel: Panel) -> Series:
        """(T,) the score of each step, from what was known by then."""
        if not any(panel.observed(column) for column in panel.columns):
            return np.full(len(panel), -np.inf)
        found: Series = self.parts(panel).max(axis=1)
        for steps in invariants_exact.broken(panel, self.fitted.armed).values():
            found = found + EXACT * steps
        return found

    def score(self, panel: Panel) -> float:
        """The largest of the step scores; -inf for a panel of which nothing is known."""
        return float(self.step_scores(panel).max(initial=-np.inf))

    def explain(self, panel: Panel) -> Explanation:
        """Onset and evidence: what broke, what moved, in order of steps."""
        fitted = self.fitted
        broken = invariants_exact.violations(panel, fitted.armed)
        return explain(fitted.model, fitted.surprises(panel), panel, broken)

    def evidence(self, panel: Panel) -> tuple[Evidence, ...]:
        """Of `explain`."""
        return self.explain(panel).evidence

    def to_dict(self) -> dict[str, Any]:
        """What was learned, in JSON values; ConfigError before `fit`."""
        fitted = self.fitted
        return {
            "kinds": list(self.kinds),
            "exact": self.exact,
            "model": fitted.model.to_dict(),
            "tails": {kind: tails.to_dict() for kind, tails in fitted.tails.items()},
            "parts": fitted.parts.to_dict(),
            "armed": list(fitted.armed),
        }

    @classmethod
    def from_dict(cls, body: Mapping[str, Any]) -> OwnDetector:
        """The inverse of `to_dict`."""
        model = Model.from_dict(body["model"])
        detector = cls(body["kinds"], exact=body["exact"], own_start=model.own)
        detector._fitted = Fitted(
            model,
            {kind: Tails.from_dict(tails) for kind, tails in body["tails"].items()},
            Tails.from_dict(body["parts"]),
            tuple(name for name in body["armed"] if name in invariants_exact.BY_NAME),
        )
        return detector

    def save(self, path: Path | str) -> None:
        """Write what was learned as JSON; the file is whole or absent."""
        write_versioned(path, KIND, VERSION, self.to_dict())

    @classmethod
    def load(cls, path: Path | str) -> OwnDetector:
        """ConfigError for a file that is no detector of this version."""
        return cls.from_dict(read_versioned(path, KIND, VERSION))

    def _joined(self, surprises: Mapping[str, Series]) -> Series:
        """(..., K) of each kind -> (..., parts)."""
        return np.stack([surprises[kind].max(axis=-1) for kind in self.kinds], axis=-1)


def _cross_fitted(profile: Sequence[Panel], whole: Model) -> dict[str, Series]:
    """(runs, K) by kind: each run's largest statistics by a model like `whole`, but of other runs."""
    made: list[dict[str, Series]] = [{} for _ in profile]
    folds = min(FOLDS, len(profile) // 2)
    for fold in range(folds):
        others = [panel for place, panel in enumerate(profile) if place % folds != fold]
        model = Model.fit(others, whole.signals, whole.own)
        for place in range(fold, len(profile), folds):
            found = model.statistics(profile[place])
            made[place] = {kind: values.max(axis=0) for kind, values in found.items()}
    return {kind: np.stack([own[kind] for own in made]) for kind in made[0]}
