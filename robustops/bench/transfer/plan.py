"""The two small sets of runs on which what was learned on the arithmetic campaign is tried.

    source   domain       trainer            episodes   healthy   faulty
    itsm     itsm         ours               4 x 4      20        16 types x repeats
    trl      arithmetic   TRL GRPOTrainer    8 x 8      20        16 types x repeats

Runs are the campaign's own `PlannedRun`, of experiment=faultbench with other values. A set has one
configuration: its runs differ by seed and fault only. Every healthy run has a seed of its own, and the faulty
runs of a repeat share one that no healthy run has, so that no pre-onset prefix stands in a profile. A repeat
takes the next mechanism of each type. With 20 healthy runs, leave-one-out p-values reach 1/21: fewer than 19
cannot tell a false-alarm rate of 5 %.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from robustops.bench.campaign import strengths
from robustops.bench.campaign.designs import design_of
from robustops.bench.campaign.plan import ONSETS, PlannedRun, fault_overrides
from robustops.bench.run_faults.catalog import CATALOG
from robustops.bench.run_faults.entries import FaultType, MechanismInfo
from robustops.bench.transfer.reach import BY_STEP, IN_TRL, UNITS_IN_TRL
from robustops.errors import unknown_name
from robustops.seeding import child_seed, generator

#: Templates of itsm of three or four calls, which the quickstart's policy solves neither always nor never: a
#: run of 16 episodes a step is then a matter of a minute.
SHORT = ("resolve_incident", "close_problem", "join_group", "escalate_item")
#: By name: what differs from experiment=faultbench.
SOURCES: dict[str, tuple[str, ...]] = {
    "itsm": (
        *("domain=itsm", "domain.size=tiny", "domain.tool_configs=[oracle]", "domain.tool_timeout_s=null"),
        *("domain.train=240", "domain.test=8", "model=tiny", "model.answer_tokens=72", "model.max_turns=6"),
        *("grpo.groups=4", "grpo.group_size=4", "grpo.learning_rate=1.5e-4"),
        f"grpo.curriculum=[{{step:1,weights:{{{','.join(f'{name}:1' for name in SHORT)}}}}}]",
    ),
    "trl": ("model.answer_tokens=16",),
}
#: Of a run: the horizon of RFT-FaultBench, at which the campaign's runs are evaluated as well. An itsm
#: run then takes about 40 core-seconds, one of TRL 30; both sets 42 core-minutes.
STEPS = 20
#: easy: the campaign's strengths of easy faults, which were measured on arithmetic; full: as strong as the
#: mechanism can be.
STRENGTHS = ("easy", "full")
_SEEDS = 2**31
#: Number of the first faulty seed group; healthy ones begin at 0.
_FAULTY = 1000


def transfer_plan(
    source: str,
    *,
    healthy: int = 20,
    repeats: int = 1,
    steps: int = STEPS,
    strength: str = "easy",
    root: int = 0,
) -> list[PlannedRun]:
    """The runs of a set. The same run has the same id whatever the numbers of the others.

    Args:
        source: of `SOURCES`.
        healthy: runs without a fault.
        repeats: faulty runs a type.
        steps: of each run.
        strength: of `STRENGTHS`.
        root: another one gives another set of the same design.

    Raises:
        ConfigError: a source that there is not.
    """
    if source not in SOURCES:
        raise unknown_name("source of a transfer", source, SOURCES)
    runs = [_run(source, root, group, "healthy", steps) for group in range(healthy)]
    for repeat in range(repeats):
        for fault in CATALOG.values():
            mechanism = _mechanism(source, fault, repeat)
            runs.append(_faulty(source, root, repeat, fault.name, mechanism, steps, strength))
    return runs


def mechanisms(source: str, fault: FaultType) -> Iterator[MechanismInfo]:
    """Of a type, those that can be injected into runs of this source."""
    for info in fault.mechanisms:
        if not info.needs_critic and (source != "trl" or info.name in IN_TRL):
            yield info


def _mechanism(source: str, fault: FaultType, repeat: int) -> MechanismInfo:
    known = list(mechanisms(source, fault))
    return known[repeat % len(known)]


def _faulty(
    source: str, root: int, repeat: int, fault: str, info: MechanismInfo, steps: int, strength: str
) -> PlannedRun:
    group = _FAULTY + repeat
    onset = generator(root, "transfer", source, "onset", group, fault).randint(*ONSETS)
    seed = child_seed(root, "transfer", source, "injector", group, fault) % _SEEDS
    full = strengths.guessed(design_of(info.name), "easy")
    values = dict(strengths.injection(fault, info.name, "easy") if strength == "easy" else full)
    if source == "trl" and info.site in UNITS_IN_TRL:
        values["unit"] = UNITS_IN_TRL[info.site]
    if source == "trl" and info.name in BY_STEP:  # for all episodes at once, or hardly ever
        values |= {"probability": 1.0}
    return _run(
        *(source, root, group, "fault", steps),
        *fault_overrides("run_fault", fault, info.name, values, min(onset, steps), seed),
        fault=fault,
        mechanism=info.name,
        difficulty="easy",
        mode="easy",
        onset=min(onset, steps),
        injector_seed=seed,
    )


def _run(
    source: str, root: int, group: int, kind: str, steps: int, *overrides: str, **facts: object
) -> PlannedRun:
    fault, mechanism = str(facts.get("fault", "none")), str(facts.get("mechanism", "none"))
    text = "\x1f".join(map(str, (root, source, group, kind, fault, mechanism)))
    run_id = hashlib.blake2b(text.encode(), digest_size=6, person=b"transfer").hexdigest()
    return PlannedRun(
        run_id,
        group,
        kind,
        variant=source,
        overrides=(*SOURCES[source], f"grpo.steps={steps}", *overrides),
        seed=child_seed(root, "transfer", source, "seed", group) % _SEEDS,
        **facts,  # type: ignore[arg-type]
    )
