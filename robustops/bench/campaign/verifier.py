"""Post-hoc verification of a run: was it exposed as planned, and did its mechanism touch what it should.

    every run  T lines, nothing infinite; equal to its control before the onset
    healthy    no exposure
    faulty     V0: one line of the exposure log a step with the planned level, nothing eligible outside the
               window, touched / eligible within 3 binomial standard errors of the probability; then the
               mechanism's own rules (`campaign.rules`)

A run that fails stays in the data set with verified=false and the reason. Nothing here reads a detector's
score: keeping only those runs whose telemetry shows a signature would flatter every detector.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from robustops.bench.campaign.effects import Rows, change_of
from robustops.bench.campaign.plan import STEPS, PlannedRun
from robustops.bench.campaign.rules import Evidence, Line, rules_of
from robustops.bench.run_faults.catalog import fault_type
from robustops.bench.run_faults.entries import MechanismInfo
from robustops.bench.run_faults.spec import RunFaultSpec
from robustops.errors import ConfigError

#: Binomial standard errors that touched / eligible may be off.
SIGMAS = 3.0
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Verification:
    """verified: no check failed; reason: what failed, "" if nothing did. Of the (first) fault, NaN without
    one: eligible, touched units in the window; share: touched / eligible; differing: values that changed;
    change: paired mean change of the mechanism's quantity from the onset on; d: the same in healthy
    deviations, in the declared direction.
    """

    verified: bool
    reason: str = ""
    eligible: int = 0
    touched: int = 0
    share: float = math.nan
    differing: int = 0
    change: float = math.nan
    d: float = math.nan


@dataclass(frozen=True)
class _Numbers:
    eligible: int
    touched: int
    share: float
    differing: int
    change: float
    d: float


def verify(
    planned: PlannedRun,
    telemetry: Rows,
    control: Rows,
    exposure: Sequence[Line],
    units: Mapping[str, float],
    *,
    second: Sequence[Line] = (),
    steps: int = STEPS,
) -> Verification:
    """Check one run.

    Args:
        planned: the run; its overrides say what was injected.
        telemetry: metrics of its steps.
        control: those of its seed group's control; none for a healthy or benign run that is alone in its group.
        exposure: lines of exposure.jsonl.
        second: lines of exposure_2.jsonl, of a double fault.
        units: healthy deviation of each column's mean from the onset on, see `effects.unit_of`.
        steps: of every run.

    Raises:
        ConfigError: a faulty run without control or unit, or overrides that name no fault.
    """
    problems = list(_of_rows(telemetry, steps))
    if not problems and control:
        problems += _before_onset(telemetry, control, planned.onset or steps + 1)
    faults = _faults(planned)
    logs = (exposure, second)[: len(faults)] if faults else ()
    if not faults and (exposure or second):
        problems.append("exposure: a run without a fault was exposed")
    if len(faults) < 2 and second:
        problems.append("exposure: there is a second log, but no second fault")
    if faults and not control:
        raise ConfigError(f"run {planned.run_id} has a fault; verify it beside the control of its seed group")
    numbers: list[_Numbers] = []
    for (spec, info), lines in zip(faults, logs, strict=True):
        if len(telemetry) == len(control) == steps:
            own, found = _of_fault(planned, spec, info, lines, telemetry, control, units)
            numbers.append(found)
            problems += own
    facts = vars(numbers[0]) if numbers else {}
    return Verification(not problems, "; ".join(problems), **facts)


def _of_rows(rows: Rows, steps: int) -> Iterator[str]:
    """What is wrong with the telemetry as such."""
    if len(rows) != steps:
        yield f"length: {len(rows)} steps, planned are {steps}"
    for step, row in enumerate(rows, start=1):
        bad = [name for name, value in row.items() if math.isinf(value)]
        bad += [name for name in ("nan_count", "grad_nonfinite") if row.get(name, 0.0) > 0]
        if bad:
            yield f"finite: step {step} has {', '.join(bad)}"
            return


def _before_onset(rows: Rows, control: Rows, onset: int) -> Iterator[str]:
    """A run is its control until its fault sets in."""
    for step, (own, other) in enumerate(zip(rows[: onset - 1], control, strict=False), start=1):
        differing = [name for name in other if not _same(own.get(name, math.nan), other[name])]
        if differing:
            yield f"control: step {step}, before onset {onset}, differs in {', '.join(differing[:3])}"
            return


def _same(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))


def _of_fault(
    planned: PlannedRun,
    spec: RunFaultSpec,
    info: MechanismInfo,
    lines: Sequence[Line],
    rows: Rows,
    control: Rows,
    units: Mapping[str, float],
) -> tuple[list[str], _Numbers]:
    """Exposure and mechanical effect of one fault."""
    start, end = spec.onset - 1, len(rows) if spec.end is None else spec.end - 1
    if info.quantity not in units:
        raise ConfigError(f"no healthy deviation of '{info.quantity}', the quantity of {info.name}; give it")
    change = change_of(info.quantity, rows, control, spec.onset)
    d = info.direction * change / units[info.quantity]
    inside = [line for line in lines if spec.level(line["step"]) > 0]
    eligible, touched = (int(sum(line[name] for line in inside)) for name in ("eligible", "touched"))
    share = touched / eligible if eligible else math.nan
    numbers = _Numbers(eligible, touched, share, sum(line["differing"] for line in inside), change, d)
    problems = list(_exposed(spec, lines, len(rows), eligible, touched))
    if not problems:
        evidence = Evidence(inside, rows[start:end], control[start:end], d, planned.difficulty or "hard")
        for rule in rules_of(info):
            problems += rule(evidence)
    return [f"{info.name} {problem}" for problem in problems], numbers


def _exposed(
    spec: RunFaultSpec, lines: Sequence[Line], steps: int, eligible: int, touched: int
) -> Iterator[str]:
    """V0 of the exposure log."""
    if [line["step"] for line in lines] != list(range(1, steps + 1)):
        yield f"exposure: {len(lines)} lines, not one for each of {steps} steps"
        return
    for line in lines:
        level = spec.level(line["step"])
        if (line["fault"], line["mechanism"]) != (spec.fault, spec.mechanism):
            yield f"exposure: step {line['step']} is of {line['fault']}/{line['mechanism']}"
            return
        if abs(line["level"] - level) > _ROUNDING:
            yield f"exposure: step {line['step']} has level {line['level']:.4g}, planned is {level:.4g}"
            return
        if level == 0 and (line["eligible"] or line["touched"]):
            yield f"exposure: step {line['step']} lies outside the window and was exposed"
            return
    if not eligible:
        yield "exposure: nothing was eligible"
        return
    room = SIGMAS * math.sqrt(spec.probability * (1 - spec.probability) / eligible) + _ROUNDING
    if abs(touched / eligible - spec.probability) > room:
        yield (
            f"exposure: {touched} of {eligible} units were touched, planned are "
            f"{spec.probability:.3g} +- {room:.2g}"
        )


def _faults(planned: PlannedRun) -> list[tuple[RunFaultSpec, MechanismInfo]]:
    """What a run's overrides inject: one fault, two, or none."""
    wanted = [
        ("run_fault", planned.fault, planned.mechanism),
        ("second_run_fault", planned.second_fault, planned.second_mechanism),
    ]
    return [_spec(planned, key, fault, name) for key, fault, name in wanted if fault != "none"]


def _spec(planned: PlannedRun, key: str, fault: str, mechanism: str) -> tuple[RunFaultSpec, MechanismInfo]:
    info = {known.name: known for known in fault_type(fault).mechanisms}.get(mechanism)
    values = dict(text.split("=", 1) for text in planned.overrides)
    given = {
        name.removeprefix(f"{key}."): value for name, value in values.items() if name.startswith(f"{key}.")
    }
    if info is None or "onset" not in given:
        raise ConfigError(
            f"run {planned.run_id} plans {fault}/{mechanism}, its overrides inject no such fault"
        )
    return _made(fault, info, given), info


def _made(fault: str, info: MechanismInfo, given: Mapping[str, str]) -> RunFaultSpec:
    """The injection that the values of one section describe; what is missing is as in the config."""
    known: dict[str, Any] = {name: value for name, value in given.items() if value != "null"}
    return RunFaultSpec(
        fault,
        info.name,
        strength=float(known.get("strength", 1.0)),
        probability=float(known.get("probability", 1.0)),
        unit=known.get("unit", info.units[0]),
        onset=int(known["onset"]),
        ramp=int(known.get("ramp", 0)),
        end=int(known["end"]) if "end" in known else None,
        seed=int(known.get("seed", 0)),
    )
