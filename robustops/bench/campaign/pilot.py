"""The pilot: measures every mechanism's effect and writes `strengths.yaml`, before any detector is fitted.

    <folder>/none.NN.jsonl       healthy runs of 40 steps with the campaign's varieties, see `campaign.trials`
    <folder>/<mechanism>.jsonl   the mechanism's trials
    <folder>/strengths.yaml      what was found

What to look for is in `campaign.search`. Each mechanism is searched by one worker process at a time; a pilot
that was interrupted goes on where it was.
"""

from __future__ import annotations

import multiprocessing
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from robustops.bench.campaign.designs import Design, design_of, designs
from robustops.bench.campaign.effects import FLOORS, Rows, unit_of
from robustops.bench.campaign.plan import STEPS
from robustops.bench.campaign.search import MORE, ONSET, SHORT, Search
from robustops.bench.campaign.strengths import written
from robustops.bench.campaign.trials import Trial, Trials, trained
from robustops.bench.campaign.worker import Compose
from robustops.errors import ConfigError
from robustops.files import atomic_write_text

NAME = "strengths.yaml"
#: Healthy runs: as many as a deviation within a fifth takes. The first few are the controls of faulty runs.
HEALTHY = 12
_CONTROL = "none.{:02d}.jsonl"


def run_pilot(
    folder: Path,
    compose: Compose,
    workers: int,
    mechanisms: Sequence[str] | None = None,
    tell: Callable[[str], None] = print,
    healthy: int = HEALTHY,
) -> dict[str, Any]:
    """Measure what is not measured yet and write the file; returns its content.

    Args:
        folder: of the pilot's files.
        compose: settings from overrides; workers get it by its name, so it must be a module's function.
        workers: processes, each single-threaded.
        mechanisms: only these; None: all of the catalogue.
        tell: is given a line for every mechanism that is done.
        healthy: number of healthy runs, at least `search.MORE`.

    Raises:
        ConfigError: an unknown mechanism, or one that cannot be measured.
    """
    wanted = designs() if mechanisms is None else [design_of(name) for name in mechanisms]
    wanted.sort(key=lambda design: not design.whole)  # the longest first, so that no worker waits in the end
    found: dict[str, dict[str, Any]] = {}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_alone) as pool:
        for place in pool.map(_healthy, *zip(*((folder, compose, n) for n in range(healthy)), strict=True)):
            tell(f"healthy run {place + 1} of {healthy}")
        jobs = {pool.submit(_searched, folder, compose, design, healthy): design for design in wanted}
        for number, job in enumerate(as_completed(jobs), start=1):
            design = jobs[job]
            found[design.mechanism] = job.result()
            tell(f"{number}/{len(jobs)} {_line(design, found[design.mechanism])}")
    body = _body({d.mechanism: found[d.mechanism] for d in designs() if d.mechanism in found}, healthy)
    atomic_write_text(folder / NAME, written(body))
    return body


def _alone() -> None:
    """A worker computes on one core."""
    import torch

    torch.set_num_threads(1)


def _trials(folder: Path, compose: Compose, name: str) -> Trials:
    return Trials(folder / name, lambda trial: trained(trial, compose))


def _healthy(folder: Path, compose: Compose, place: int) -> int:
    """Make one healthy run; returns its place."""
    _trials(folder, compose, _CONTROL.format(place)).rows(Trial(place, STEPS))
    return place


def _controls(folder: Path, compose: Compose, healthy: int) -> Iterator[Rows]:
    for place in range(healthy):
        yield _trials(folder, compose, _CONTROL.format(place)).rows(Trial(place, STEPS))


def _searched(folder: Path, compose: Compose, design: Design, healthy: int) -> dict[str, Any]:
    """Search one mechanism; what the file says of it."""
    controls = list(_controls(folder, compose, healthy))
    trials = _trials(folder, compose, f"{design.mechanism}.jsonl")
    try:
        modes = Search(design, controls, trials.rows).modes()
    except ConfigError as error:
        raise ConfigError(f"pilot of {design.mechanism}: {error}") from error
    return {
        "fault": design.fault,
        "quantity": design.quantity,
        "direction": design.direction,
        "knob": design.knob,
        "unit": float(f"{unit_of(design.quantity, controls, ONSET):.4g}"),
        "floor": FLOORS.get(design.quantity, 0.0),
        "steps": STEPS if design.whole else SHORT,
        "modes": modes,
    }


def _line(design: Design, found: dict[str, Any]) -> str:
    parts = [
        f"{mode} {values['strength']:g} x {values['probability']:g} d={values['d']}"
        + ("" if values["reached"] else " (!)")
        for mode, values in found["modes"].items()
    ]
    return f"{design.mechanism} [{design.quantity}]: " + ", ".join(parts)


def _body(found: dict[str, dict[str, Any]], healthy: int) -> dict[str, Any]:
    seeds = [Trial(place, STEPS).planned().seed for place in range(healthy)]
    return {
        "measured": True,
        "commit": _commit(),
        "seeds": seeds,
        "paired_seeds": seeds[:MORE],
        "healthy_steps": STEPS,
        "mechanisms": found,
    }


def _commit() -> str | None:
    """Of the code that measured; null outside a checkout."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None
