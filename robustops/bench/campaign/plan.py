"""Which runs the campaign consists of: a pure function of a root seed.

    kind      seed groups   runs   what
    healthy   0..47           48   the control of each group
    fault     0..47          768   16 types in each group: 20 groups of a type are easy, 28 hard, 7 a mode
    benign    0..47           60   15 of each shift (see `shifts`): something changes, and nothing is wrong
    double    0..39           40   two types at once; every type is in five of them
    healthy   48..259        212   each a group of its own, which no fault shares

The runs of a group have one seed and one variety of the configuration, so that before its onset a run equals
its control to the byte. A detector learns from the first mechanism of a type, which half of its runs have,
and is tested on the others, too.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from robustops.bench.campaign import strengths
from robustops.bench.campaign.doubles import fault_pairs
from robustops.bench.campaign.layout import BASE_GROUPS, mechanisms_of, modes_of
from robustops.bench.campaign.shifts import SHIFT_ONSETS, shift_groups, shift_overrides
from robustops.bench.campaign.variety import variety
from robustops.bench.run_faults.catalog import CATALOG
from robustops.errors import ConfigError, unknown_name
from robustops.seeding import child_seed, generator

KINDS = ("healthy", "fault", "benign", "double")
#: Steps of every run, whatever becomes of it: a run's length must not tell its label.
STEPS = 40
FURTHER_HEALTHY = 212
#: First and last step at which a fault may set in.
ONSETS, LATE_ONSETS = (3, 6), (10, 14)
#: Seeds of runs are smaller than this, which every generator takes.
_SEEDS = 2**31
#: Values of `run_fault.*` (strength, probability, unit, ramp) by type, mechanism and mode.
Injection = Callable[[str, str, str], Mapping[str, float | int | str | None]]


@dataclass(frozen=True)
class PlannedRun:
    """One run of the campaign.

    run_id: tells nothing about what is planned; seed_group: its control and what else is compared with it;
    kind: of `KINDS`; fault, mechanism, second_fault, second_mechanism: "none" where there is none;
    difficulty: easy | hard, mode: easy | weak | intermittent | ramp | delayed, both "" without a fault;
    shift: what changes in a benign run, see `shifts`, "" elsewhere; variant: the group's variety of the
    configuration; overrides: of experiment=faultbench; onset: first step that may differ from the control (0:
    none does); seed, injector_seed: of the run and of its (first) injector.
    """

    run_id: str
    seed_group: int
    kind: str
    fault: str = "none"
    mechanism: str = "none"
    second_fault: str = "none"
    second_mechanism: str = "none"
    difficulty: str = ""
    mode: str = ""
    shift: str = ""
    variant: str = ""
    overrides: tuple[str, ...] = ()
    onset: int = 0
    seed: int = 0
    injector_seed: int = 0

    def to_dict(self) -> dict[str, Any]:
        """In JSON values."""
        return {**dataclasses.asdict(self), "overrides": list(self.overrides)}

    @classmethod
    def from_dict(cls, body: Mapping[str, Any]) -> PlannedRun:
        """The inverse of `to_dict`; ConfigError where that is no planned run."""
        try:
            return cls(**{**body, "overrides": tuple(body["overrides"])})
        except (TypeError, KeyError) as error:
            raise ConfigError(f"no planned run: {error}; was it written by another version?") from error


def planned(
    types: Sequence[str] | None = None,
    seeds: int | None = None,
    *,
    root: int = 0,
    injection: Injection = strengths.injection,
) -> list[PlannedRun]:
    """The runs of the campaign, group by group. A run is the same whatever part of them is asked for.

    Args:
        types: of the 16 types (faulty runs of these) and of `KINDS` (all of that kind); None: everything.
            The controls of the 48 base groups come along.
        seeds: only the first so many seed groups; None: all.
        root: another one gives another campaign of the same design.
        injection: strengths by type, mechanism and mode.
    """
    for name in types or ():
        if name not in CATALOG and name not in KINDS:
            raise unknown_name("type of runs", name, [*CATALOG, *KINDS])
    return [
        run
        for run in _everything(root, injection)
        if _wanted(run, types) and (seeds is None or run.seed_group < seeds)
    ]


def _wanted(run: PlannedRun, types: Sequence[str] | None) -> bool:
    control = run.kind == "healthy" and run.seed_group < BASE_GROUPS
    return types is None or control or run.kind in types or (run.kind == "fault" and run.fault in types)


def _everything(root: int, injection: Injection) -> Iterator[PlannedRun]:
    modes = {name: modes_of(place) for place, name in enumerate(CATALOG)}
    mechanisms = {name: mechanisms_of(fault, modes[name]) for name, fault in CATALOG.items()}
    shifts, pairs = shift_groups(), fault_pairs()
    for group in range(BASE_GROUPS):
        yield _run(root, group, "healthy")
        for name in CATALOG:
            yield _faulty(root, group, name, mechanisms[name][group].name, modes[name][group], injection)
        for shift in (shift for own, shift in shifts if own == group):
            yield _benign(root, group, shift)
        if group < len(pairs):
            yield _double(root, group, *pairs[group], injection)
    for group in range(BASE_GROUPS, BASE_GROUPS + FURTHER_HEALTHY):
        yield _run(root, group, "healthy")


def _faulty(root: int, group: int, fault: str, mechanism: str, mode: str, injection: Injection) -> PlannedRun:
    onset = _onset(root, group, fault, LATE_ONSETS if mode == "delayed" else ONSETS)
    seed = child_seed(root, "faultbench", "injector", group, fault) % _SEEDS
    return _run(
        root,
        group,
        "fault",
        *fault_overrides("run_fault", fault, mechanism, injection(fault, mechanism, mode), onset, seed),
        fault=fault,
        mechanism=mechanism,
        difficulty="easy" if mode == "easy" else "hard",
        mode=mode,
        onset=onset,
        injector_seed=seed,
    )


def _benign(root: int, group: int, shift: str) -> PlannedRun:
    onset = _onset(root, group, shift, SHIFT_ONSETS)
    return _run(root, group, "benign", *shift_overrides(shift, onset), shift=shift, onset=onset)


def _double(root: int, group: int, fault: str, second: str, injection: Injection) -> PlannedRun:
    """Main mechanisms at their easy strengths, each with its own onset."""
    overrides: list[str] = []
    onsets, seeds, mechanisms = [], [], []
    for key, name in (("run_fault", fault), ("second_run_fault", second)):
        mechanisms.append(CATALOG[name].mechanisms[0].name)
        onsets.append(_onset(root, group, f"double {name}", ONSETS))
        seeds.append(child_seed(root, "faultbench", "injector", group, "double", name) % _SEEDS)
        values = injection(name, mechanisms[-1], "easy")
        overrides += fault_overrides(key, name, mechanisms[-1], values, onsets[-1], seeds[-1])
    return _run(
        root,
        group,
        "double",
        *overrides,
        fault=fault,
        mechanism=mechanisms[0],
        second_fault=second,
        second_mechanism=mechanisms[1],
        difficulty="easy",
        mode="easy",
        onset=min(onsets),
        injector_seed=seeds[0],
    )


def fault_overrides(
    key: str,
    fault: str,
    mechanism: str,
    values: Mapping[str, float | int | str | None],
    onset: int,
    seed: int,
) -> tuple[str, ...]:
    """The overrides of one injection. key: run_fault or second_run_fault."""
    group = key if key == "run_fault" else f"run_fault@{key}"
    given = {"mechanism": mechanism, **values, "onset": onset, "seed": seed}
    texts = {name: "null" if value is None else value for name, value in given.items()}
    return (f"{group}={fault}", *(f"{key}.{name}={value}" for name, value in texts.items()))


def _onset(root: int, group: int, name: str, bounds: tuple[int, int]) -> int:
    return generator(root, "faultbench", "onset", group, name).randint(*bounds)


def _run(root: int, group: int, kind: str, *overrides: str, **facts: Any) -> PlannedRun:
    seed = child_seed(root, "faultbench", "seed group", group) % _SEEDS
    variant, own = variety(root, group)
    what = [facts.get(name, "none") for name in ("fault", "second_fault", "shift")]
    text = "\x1f".join(map(str, (root, group, kind, *what)))
    run_id = hashlib.blake2b(text.encode(), digest_size=6, person=b"faultbench").hexdigest()
    return PlannedRun(run_id, group, kind, variant=variant, overrides=(*own, *overrides), seed=seed, **facts)
