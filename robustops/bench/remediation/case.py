"""A case: a run of the campaign on which one arm steps in. It is an ordinary planned run, made by the
campaign's runner, in <campaign>/remediation/<validation|final>/:

    runs/<run_id>-<arm>/telemetry.jsonl   steps 1 .. 40 as they are in the end, each once
                        journal.jsonl     the decisions, one a line (`monitor.intervention.journal`)
                        discarded/        steps that were taken back, by the number of the decision
                        case.json         what of it was trained, and how it ended
                        and what a run of the campaign has

| arm | steps in |
|---|---|
| rules, llm, random, rollback, oracle | the planners of `monitor.planner` |
| noop | nobody: alarms are journaled |
| rerun | nobody: the faulty run once more, with another seed |

Nothing is trained that is known already. Until somebody steps in, a run is the recorded one to the byte:
where the judge gives no alarm in the recorded run, or only a pause follows, that run is the case. A case that
is paused with no change in force goes on as the recorded run did, since going back is exact (arm rollback
shows it); one with changes in force is gone on with under observation.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from sqlite_utils import Database

from robustops.bench.campaign.folders import folder_of
from robustops.bench.campaign.plan import PlannedRun
from robustops.bench.campaign.recorded import EXPOSURES
from robustops.bench.campaign.worker import Compose, train_overrides, train_run
from robustops.bench.run_faults.injector import training_hooks
from robustops.errors import RunPaused, SamplerError, TrainingError
from robustops.files import atomic_write_bytes, atomic_write_json, atomic_write_text
from robustops.learning.pipeline import run_training
from robustops.learning.remediation import remediation_of
from robustops.monitor.intervention.journal import COLUMNS, Entry, Journal
from robustops.monitor.intervention.planners import Plan, Planner, Situation
from robustops.monitor.intervention.policy import Judge
from robustops.monitor.intervention.report import interventions
from robustops.monitor.panel import Panel
from robustops.monitor.telemetry import read_telemetry
from robustops.monitor.verdict import Verdict
from robustops.seeding import child_seed
from robustops.settings import TrainSettings
from robustops.tracking.run_store import RunStore

CASE, JOURNAL, TELEMETRY, DISCARDED = "case.json", "journal.jsonl", "telemetry.jsonl", "discarded"
RERUN = "rerun"
#: Seeds of runs are smaller than this, as in a campaign's plan.
_SEEDS = 2**31


def planned_case(run: PlannedRun, arm: str, overrides: Sequence[str] = ()) -> PlannedRun:
    """The run with an arm. overrides: of `monitor`, for arms that watch."""
    name = f"{run.run_id}-{arm}"
    if arm == RERUN:
        return dataclasses.replace(run, run_id=name, seed=child_seed(run.seed, RERUN) % _SEEDS)
    watched = ("monitor=remediate", "monitor.episodes=0", f"monitor.planner={arm}", *overrides)
    return dataclasses.replace(run, run_id=name, overrides=(*run.overrides, *watched))


def parts_of(name: str) -> tuple[str, str]:
    """run_id of the recorded run, and arm, of a case's name."""
    run_id, _, arm = name.rpartition("-")
    return run_id, arm


class Remembering:
    """A judge that says the same of the same panel without judging it again: the arms of a run, which follow
    each other, ask of the same steps.
    """

    def __init__(self, judge: Judge, most: int = 400) -> None:
        self.judge = judge
        self.most = most
        self._said: dict[bytes, Verdict] = {}

    def __call__(self, panel: Panel) -> Verdict:
        names = sorted(panel.columns)
        digest = hashlib.blake2b(repr(names).encode() + panel.steps.tobytes())
        digest.update(panel.matrix(names).tobytes())
        key = digest.digest()
        if key not in self._said:
            if len(self._said) >= self.most:
                del self._said[next(iter(self._said))]
            self._said[key] = self.judge(panel)
        return self._said[key]


class CaseMaker:
    """A `campaign.worker.Make` for cases. campaign: of the recorded runs; judge: that gives the alarms."""

    def __init__(self, campaign: Path, judge: Judge) -> None:
        self.campaign = campaign
        self.judge = Remembering(judge)

    def __call__(self, planned: PlannedRun, folder: Path, compose: Compose) -> None:
        """Leave the case in the folder."""
        run_id, arm = parts_of(planned.run_id)
        if arm == RERUN:
            train_run(planned, folder, compose)
            _write(folder, [], {"trained": True, "same_prefix": True, "broke_off": ""})
            return
        overrides = train_overrides(planned, folder)
        settings, config = compose(overrides)
        recorded = folder_of(self.campaign, run_id)
        entries = foreseen(settings, recorded, self.judge)
        if entries is not None:
            _copy_run(recorded, folder)
            _write(folder, entries, {"trained": False, "same_prefix": True, "broke_off": ""})
            return
        _train(settings, config, overrides, folder, recorded, self.judge)


def foreseen(settings: TrainSettings, recorded: Path, judge: Judge) -> list[Entry] | None:
    """The journal of a case that is the recorded run; None where somebody steps in, so that it is trained."""
    journal = Journal(Database(memory=True))
    remediation = remediation_of(settings, journal, judge)
    remediation.planner = _Asked(remediation.planner)
    panel = _panel(recorded)
    every = min(settings.grpo.checkpoint_every, settings.monitor.checkpoint_every or len(panel))
    for step in map(int, panel.steps):
        there = list(range(every, step, every))[-settings.monitor.ring :]
        jump = remediation.after_step(panel.until(step), there.copy)
        if jump is not None:
            return journal.entries() if jump.pauses else None
    return journal.entries()


class _Asked:
    """Stands in for a planner, to see whether it is asked; a model is not asked twice."""

    def __init__(self, planner: Planner) -> None:
        self.name, self.acts, self.needs_type = planner.name, planner.acts, planner.needs_type

    def plan(self, situation: Situation) -> Plan | None:
        return Plan((), "asked", self.name)


def _train(
    settings: TrainSettings,
    config: Any,
    overrides: Sequence[str],
    folder: Path,
    recorded: Path,
    judge: Judge,
) -> None:
    """Train the case; a run that breaks off is a result, too."""
    broke_off = ""
    try:
        try:
            run_training(settings, folder, config, overrides, training_hooks(settings, folder), judge)
        except RunPaused:
            entries = _entries(folder)
            if not interventions(entries)["in_force"] and same_prefix(folder, recorded, entries):
                _copy_run(recorded, folder)
            else:
                monitor = dataclasses.replace(settings.monitor, name="observe")
                on = dataclasses.replace(settings, monitor=monitor)
                run_training(on, folder, config, overrides, training_hooks(on, folder))
    except (TrainingError, SamplerError) as error:
        broke_off = " ".join(str(error).split())
    entries = _entries(folder)
    same = same_prefix(folder, recorded, entries)
    _write(folder, entries, {"trained": True, "same_prefix": same, "broke_off": broke_off})


def same_prefix(folder: Path, recorded: Path, entries: Sequence[Entry]) -> bool:
    """Whether the case was the recorded run, to the byte, until somebody first stepped in."""
    lines, mine = _lines(recorded / TELEMETRY), _lines(folder / TELEMETRY)
    jumps = [entry for entry in entries if entry.kind == "rollback"]
    if not jumps:
        return mine == lines[: len(mine)]
    kept = min(entry.target or 0 for entry in jumps)  # later attempts may go back further
    first, target = jumps[0], jumps[0].target or 0
    (taken_back, *_) = sorted((folder / DISCARDED).glob("*.jsonl"))
    return mine[:kept] == lines[:kept] and _lines(taken_back) == lines[target : first.step]


def _copy_run(recorded: Path, folder: Path) -> None:
    """What a case takes over that is, or goes on as, the recorded run."""
    for name in (TELEMETRY, *EXPOSURES, "run.json"):
        if (recorded / name).is_file():
            atomic_write_bytes(folder / name, (recorded / name).read_bytes())


def _write(folder: Path, entries: Sequence[Entry], facts: dict[str, Any]) -> None:
    """Journal and facts; no clock, so that equal cases have equal files."""
    names = [name for name in COLUMNS if name != "at"]
    bodies = [{name: getattr(entry, name) for name in names} for entry in entries]
    lines = [json.dumps({"number": n, **body}, allow_nan=False) for n, body in enumerate(bodies, start=1)]
    atomic_write_text(folder / JOURNAL, "".join(f"{line}\n" for line in lines))
    atomic_write_json(folder / CASE, facts)


def read_journal(path: Path) -> list[Entry]:
    """Of a case's folder."""
    return [Entry(**json.loads(line)) for line in _lines(path / JOURNAL)]


def _entries(folder: Path) -> list[Entry]:
    with RunStore(folder / "run.db") as store:
        return Journal(store.db).entries()


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.is_file() else []


@cache
def _panel(recorded: Path) -> Panel:
    """Of a recorded run; several arms of it follow each other."""
    records = [r for r in read_telemetry(recorded / TELEMETRY) if r.stage == "grpo"]
    return Panel.of(records, str(recorded))
