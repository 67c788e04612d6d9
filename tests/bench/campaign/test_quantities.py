"""Short real runs of the small policy: every mechanism moves the quantity that the catalogue declares."""

from __future__ import annotations

from pathlib import Path

import pytest

from robustops.bench.campaign.designs import STRENGTH, designs
from robustops.bench.campaign.effects import change_of
from robustops.bench.campaign.folders import folder_of
from robustops.bench.campaign.plan import PlannedRun, fault_overrides
from robustops.bench.campaign.rules import Evidence, moved, rules_of
from robustops.bench.campaign.worker import run_one
from robustops.bench.run_faults.catalog import all_mechanisms
from robustops.bench.run_faults.exposure import read_exposure
from robustops.commands.composition import composed_training
from robustops.monitor.telemetry import StepRecord

STEPS, ONSET, SEED = 4, 3, 5
SIZE = ("grpo.steps=4", "grpo.groups=4", "grpo.group_size=4")
#: Follows only as the policy learns; what it does to the loss stands in the exposure log.
SLOW = ("entropy_penalty",)
DESIGNS = {design.mechanism: design for design in designs()}
INFOS = {info.name: info for _, info in all_mechanisms()}


def made(folder: Path, planned: PlannedRun) -> tuple[list, list]:
    """Metrics of the steps, and the exposure."""
    run_one(planned, folder, composed_training)
    place = folder_of(folder, planned.run_id)
    lines = (place / "telemetry.jsonl").read_text(encoding="utf-8").splitlines()
    return [StepRecord.from_line(line).metrics for line in lines], read_exposure(place / "exposure.jsonl")


@pytest.fixture(scope="module")
def control(tmp_path_factory) -> list:
    return made(tmp_path_factory.mktemp("control"), PlannedRun("c", 0, "healthy", overrides=SIZE, seed=SEED))[
        0
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(DESIGNS))
def test_the_declared_quantity_moves_the_declared_way_at_full_strength(tmp_path, control, name):
    design, info = DESIGNS[name], INFOS[name]
    values = {"strength": design.strength, "probability": design.probability, "unit": design.unit, "ramp": 0}
    values["strength" if design.knob == STRENGTH else "probability"] = 1.0
    injected = fault_overrides("run_fault", design.fault, name, values, ONSET, 1)
    planned = PlannedRun("f", 0, "fault", design.fault, name, overrides=(*SIZE, *injected), seed=SEED)
    rows, exposure = made(tmp_path, planned)
    assert list(map(str, rows[: ONSET - 1])) == list(map(str, control[: ONSET - 1])), "before its onset"
    change = info.direction * change_of(info.quantity, rows, control, ONSET)
    evidence = Evidence(exposure[ONSET - 1 :], rows[ONSET - 1 :], control[ONSET - 1 :], change, "hard")
    skipped = (moved,) if name in SLOW else ()
    problems = [text for rule in rules_of(info) if rule not in skipped for text in rule(evidence)]
    assert not problems


def test_those_that_are_exempt_are_learned_from_the_loss():
    assert all(DESIGNS[name].whole and INFOS[name].site == "loss" for name in SLOW)
