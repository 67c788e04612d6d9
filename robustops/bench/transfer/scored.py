"""Detectors and diagnosers on a set of runs, with two things to hold it against.

    as learned      everything is the arithmetic campaign's: profile, threshold, diagnoser
    re-calibrated   what is healthy comes from the set's own few healthy runs; nothing else is learned there

Detectors, re-calibrated: each healthy run is left out once, the detector learns from the others, and a run's
p-value is the share of the healthy ones whose score, by the fit that left them out, is at least the run's by
that same fit (cross-conformal with one run a fold: Vovk 2015; jackknife+: Barber et al. 2021). n runs give no
p below 1 / (n + 1). Diagnosers, re-calibrated: the set's runs are aligned by healthy runs (`align`).

Only columns that both kinds of runs have are looked at, by everyone and in both ways: another trainer logs
fewer, and which ones is known before any fault.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from robustops.bench.evaluation.protocol import LEVEL, conformal_threshold
from robustops.bench.evaluation.registry import Method
from robustops.bench.transfer.align import Alignment, common_columns
from robustops.bench.transfer.tried import Tried
from robustops.errors import ConfigError
from robustops.monitor.detect.conformal import Calibration
from robustops.monitor.diagnoser import likeliest
from robustops.monitor.panel import Panel, Series
from robustops.monitor.verdict import UNKNOWN
from robustops.seeding import child_seed

AS_LEARNED, RECALIBRATED = "as learned", "re-calibrated"
BASES = (AS_LEARNED, RECALIBRATED)
#: Healthy runs of a set below which leaving one out means little: our detector needs six to learn from.
LEAST_HEALTHY = 8


@dataclass(frozen=True)
class Known:
    """The campaign's runs: healthy ones to learn from and to calibrate on, faulty ones with their types."""

    profile: Sequence[Panel]
    calibration: Sequence[Panel]
    faulty: Sequence[Panel]
    types: Sequence[str]

    def only(self, columns: Sequence[str]) -> Known:
        """With no other columns."""
        profile, calibration, faulty = (
            [panel.only(columns) for panel in side] for side in (self.profile, self.calibration, self.faulty)
        )
        return Known(profile, calibration, faulty, self.types)


@dataclass(frozen=True)
class RunSet:
    """A set: its healthy and its faulty runs, with a tier's columns; name: of the set; tier: of `TIERS`."""

    name: str
    tier: str
    healthy: Sequence[Tried]
    faulty: Sequence[Tried]
    columns: Sequence[str] = field(default=())

    def panels(self, runs: Sequence[Tried]) -> list[Panel]:
        """Of these runs."""
        return [run.panel.only(self.columns) for run in runs]

    @classmethod
    def of(cls, name: str, tier: str, allowed: Sequence[str], runs: Sequence[Tried], known: Known) -> RunSet:
        """allowed: the tier's columns. ConfigError for fewer than `LEAST_HEALTHY` healthy runs or no faulty
        one.
        """
        healthy = [run for run in runs if not run.faulty]
        faulty = [run for run in runs if run.faulty]
        if len(healthy) < LEAST_HEALTHY or not faulty:
            raise ConfigError(
                f"set {name} has {len(healthy)} healthy and {len(faulty)} faulty runs; it takes "
                f"{LEAST_HEALTHY} healthy ones and one with a fault: raise transfer.healthy or "
                "transfer.repeats"
            )
        ours = [panel.only(allowed) for panel in known.profile]
        theirs = [run.panel.only(allowed) for run in healthy]
        return cls(name, tier, healthy, faulty, common_columns(ours, theirs))


@dataclass(frozen=True)
class Detected:
    """won: (faulty, healthy) 1, 0.5 or 0: whether a faulty run scores above a healthy one; p_faulty,
    p_healthy: p-values of the runs; level: the false-alarm rate that alarms stand for; alarm_step: of each
    faulty run, the first step with an alarm while it went on, 0: none, None: the detector sees whole runs.
    """

    method: str
    basis: str
    won: Series
    p_faulty: Series
    p_healthy: Series
    level: float
    alarm_step: np.ndarray | None

    @property
    def alarms(self) -> np.ndarray:
        """(faulty,) whether a run has an alarm."""
        return np.asarray(self.p_faulty <= self.level + 1e-9)

    @property
    def false_alarms(self) -> np.ndarray:
        """(healthy,) likewise. Re-calibrated, each is held against the others: one in n by construction."""
        return np.asarray(self.p_healthy <= self.level + 1e-9)


@dataclass(frozen=True)
class Diagnosed:
    """said: likeliest type of each faulty run; sure: its probability, unknown: that it is none that was
    learned; three: whether the truth is among the three likeliest types.
    """

    method: str
    basis: str
    said: tuple[str, ...]
    sure: Series
    unknown: Series
    three: np.ndarray


def detected(method: Method, known: Known, tested: RunSet, seed: int) -> list[Detected]:
    """Both ways. ConfigError where the detector cannot learn from these runs."""
    known = known.only(tested.columns)
    return [_as_learned(method, known, tested, seed), _left_out(method, tested, seed)]


def diagnosed(method: Method, known: Known, tested: RunSet, seed: int) -> list[Diagnosed]:
    """Both ways, by one and the same fitted diagnoser."""
    alignment = Alignment.fit(
        [panel.only(tested.columns) for panel in known.profile], tested.panels(tested.healthy)
    )
    known = known.only(tested.columns)
    diagnoser = method.make(child_seed(seed, "transfer", tested.name, tested.tier))
    diagnoser.fit(known.faulty, known.types, known.profile)
    plain = tested.panels(tested.faulty)
    aligned = [alignment(panel) for panel in plain]
    truth = [run.planned.fault for run in tested.faulty]
    found = []
    for basis, panels in zip(BASES, (plain, aligned), strict=True):
        answers = [diagnoser.probabilities(panel) for panel in panels]
        said = tuple(likeliest(one) for one in answers)
        three = np.array([name in _likeliest(one, 3) for name, one in zip(truth, answers, strict=True)])
        sure = np.array([one.get(name, 0.0) for name, one in zip(said, answers, strict=True)])
        unknown = np.array([one.get(UNKNOWN, 0.0) for one in answers])
        found.append(Diagnosed(method.name, basis, said, sure, unknown, three))
    return found


def _likeliest(answer: Mapping[str, float], count: int) -> list[str]:
    """So many types, as `likeliest` ranks them."""
    known = [name for name in answer if name != UNKNOWN]
    return sorted(known, key=lambda name: (-answer[name], name))[:count]


def cross_conformal(healthy: Series, faulty: Series) -> tuple[Series, Series]:
    """p-values of (faulty,) runs, and of (healthy,) runs each held against the others.

    healthy: (H,) score of each healthy run by the fit that left it out; faulty: (F, H) of each faulty run by
    those same fits.
    """
    count = len(healthy)
    p_faulty = (1 + (healthy >= faulty).sum(axis=1)) / (count + 1)
    at_least = (healthy[None, :] >= healthy[:, None]).sum(axis=1)  # itself counted
    return np.asarray(p_faulty), np.asarray(at_least / count)


def _as_learned(method: Method, known: Known, tested: RunSet, seed: int) -> Detected:
    detector = method.make(child_seed(seed, "transfer", tested.name, tested.tier))
    detector.fit(known.profile)
    calibration = _scores(detector, known.calibration)
    healthy = _scores(detector, tested.panels(tested.healthy))
    faulty = _scores(detector, tested.panels(tested.faulty))
    return Detected(
        method.name,
        AS_LEARNED,
        _won(faulty[:, None], healthy[None, :]),
        _p_values(calibration, faulty),
        _p_values(calibration, healthy),
        max(conformal_threshold(calibration, LEVEL).level, LEVEL),
        _first_steps(detector, known.calibration, tested),
    )


def _left_out(method: Method, tested: RunSet, seed: int) -> Detected:
    healthy, faulty = tested.panels(tested.healthy), tested.panels(tested.faulty)
    own, others = np.empty(len(healthy)), np.empty((len(faulty), len(healthy)))
    highest = np.empty(len(healthy))
    detector = None
    for place, panel in enumerate(healthy):
        detector = method.make(child_seed(seed, "transfer", tested.name, tested.tier, "without", place))
        detector.fit([other for at, other in enumerate(healthy) if at != place])
        own[place] = _scores(detector, [panel])[0]
        others[:, place] = _scores(detector, faulty)
        if hasattr(detector, "step_scores"):
            highest[place] = detector.step_scores(panel).max(initial=-np.inf)
    p_faulty, p_healthy = cross_conformal(own, others)
    level = max(LEVEL, 1 / (len(healthy) + 1))
    steps = None
    if hasattr(detector, "step_scores"):
        detector = method.make(child_seed(seed, "transfer", tested.name, tested.tier))
        detector.fit(healthy)
        bound = conformal_threshold(highest, LEVEL).value
        steps = np.array([_first(detector.step_scores(panel), panel, bound) for panel in faulty])
    return Detected(method.name, RECALIBRATED, _won(others, own[None, :]), p_faulty, p_healthy, level, steps)


def _scores(detector: object, panels: Sequence[Panel]) -> Series:
    """(runs,); some detectors score several runs at once, see `evaluation.units`."""
    many = getattr(detector, "scores", None)
    if many is not None:
        return np.asarray(many(panels), dtype=np.float64)
    return np.array([detector.score(panel) for panel in panels], dtype=np.float64)  # type: ignore[attr-defined]


def _p_values(calibration: Series, scores: Series) -> Series:
    found = Calibration.of(calibration)
    return np.array([found.p_value(float(score)) for score in scores])


def _won(higher: Series, lower: Series) -> Series:
    return np.asarray((higher > lower) + 0.5 * (higher == lower), dtype=np.float64)


def _first_steps(detector: object, calibration: Sequence[Panel], tested: RunSet) -> np.ndarray | None:
    scores = getattr(detector, "step_scores", None)
    if scores is None:
        return None
    highest = np.array([scores(panel).max(initial=-np.inf) for panel in calibration])
    bound = conformal_threshold(highest, LEVEL).value
    return np.array([_first(scores(p), p, bound) for p in tested.panels(tested.faulty)])


def _first(scores: Series, panel: Panel, bound: float) -> int:
    """Step of the first score above a bound, 0 where there is none."""
    above = np.flatnonzero(scores > bound)
    return int(panel.steps[above[0]]) if len(above) else 0
