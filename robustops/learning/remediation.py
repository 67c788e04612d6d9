"""The GRPO stage of a run that may go back in time and on with other knobs, in the same run folder.

The watch stops a fit after the step at which something was decided. What then goes on is a new fit: the
policy of the stage before is loaded, every part is made from the settings in force, and the checkpoint brings
back weights, optimiser, random state, sampling and queue, injectors; telemetry and database are cut back to
it, as after a kill. Steps that are taken back are kept in `discarded/<number of the decision>.jsonl`.

Whatever moment the process is killed at, the next start finds the decision in the journal, done or to be
done, and the same steps come after it. The evaluation has the run's own settings, whatever was changed.
"""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Callable, Mapping
from typing import Any

from robustops.errors import RunPaused, SamplerError, TrainingError
from robustops.files import atomic_write_text
from robustops.learning.branching import STAGE
from robustops.learning.fingerprint import flat_settings
from robustops.learning.hardware import group_size
from robustops.learning.hooks import TrainingHooks
from robustops.learning.policy import Policy
from robustops.learning.run import Run
from robustops.learning.stages import train_grpo
from robustops.learning.watch import Watch
from robustops.monitor.intervention.journal import Entry, Journal
from robustops.monitor.intervention.planners import make_planner
from robustops.monitor.intervention.policy import Bounds, Judge, Jump, Remediation
from robustops.monitor.judge import judge as judged
from robustops.monitor.panel import Panel
from robustops.monitor.telemetry import StepRecord, read_telemetry
from robustops.monitor.verdict import Verdict
from robustops.settings import TrainSettings
from robustops.tracking.run_record import read_record

DISCARDED = "discarded"


def reinforce(
    run: Run,
    settings: TrainSettings,
    load: Callable[[], Policy],
    hooks: TrainingHooks,
    judge: Judge | None = None,
) -> Policy:
    """Train the stage to its end and return its policy. load: the policy of the stage before; judge: says
    what state a run is in (None: the run monitor, by healthy runs where it has a profile of such runs).

    Raises:
        RunPaused: a person has to look; the run can be gone on with.
    """
    if group_size(settings.hardware) > 1:  # nothing was ever decided in such a run
        policy = load()
        train_grpo(run, settings, policy, hooks)
        return policy
    watches = settings.monitor.name == "remediate"
    remediation = None
    if watches:
        remediation = remediation_of(settings, run.journal, judge or _judge(run), run.say)
    fresh = hooks.state_dict()
    _settle(run, settings)
    while True:
        policy = load()
        jump = _fit(run, with_changes(settings, _in_force(run)), policy, hooks, remediation)
        if jump is None:
            return policy
        del policy
        gc.collect()  # a model less, before the next one is loaded: trainers and modules refer to each other
        _go(run, settings, jump.number)
        if jump.target == 0:  # there is no checkpoint to bring their state back
            hooks.load_state_dict(fresh)


def remediation_of(
    settings: TrainSettings,
    journal: Journal,
    judge: Judge,
    say: Callable[[str], None] = lambda line: None,
) -> Remediation:
    """The state machine that settings ask for."""
    monitor = settings.monitor
    faults = (settings.run_fault.name, settings.second_run_fault.name)
    planner = make_planner(
        monitor.planner,
        seed=settings.seed,
        injected=[name for name in faults if name != "none"],
        llm=dataclasses.asdict(monitor.llm),
    )
    bounds = Bounds(
        attempts=monitor.attempts,
        canary=monitor.canary,
        cooldown=monitor.cooldown,
        alpha=monitor.alpha,
        budget=monitor.budget,
        apply=monitor.apply,
    )
    flat, steps = flat_settings(settings), settings.grpo.steps
    return Remediation(judge, planner, journal, flat, steps, bounds, say, STAGE)


def _judge(run: Run) -> Judge:
    profile = run.healthy_runs or ()

    def growing(panel: Panel) -> Verdict:
        return judged(panel, profile=profile, growing=True)

    return growing


def _fit(
    run: Run,
    settings: TrainSettings,
    policy: Policy,
    hooks: TrainingHooks,
    remediation: Remediation | None,
) -> Jump | None:
    """One fit; what it was stopped for. A step that cannot be completed may be a reason to go back, too."""
    if remediation is None:
        train_grpo(run, settings, policy, hooks)
        return None
    watch = Watch(remediation)
    try:
        train_grpo(run, settings, policy, hooks, watch)
    except (TrainingError, SamplerError) as error:
        panel = Panel.of(_records(run), str(run.telemetry.path))
        jump = remediation.after_failure(panel, watch.checkpoints, " ".join(str(error).split()))
        if jump is None:
            raise
        return jump
    return watch.jump


def _settle(run: Run, settings: TrainSettings) -> None:
    """Make journal and checkpoints agree after whatever ended the last start."""
    jump = run.journal.newest_jump()
    if jump is None and not len(run.journal):
        return
    if jump is not None and not jump.applied:
        run.resume_points.pop(STAGE, None)
        _go(run, settings, jump.number)
    point = run.resume_point(STAGE)
    run.resume_points[STAGE] = point
    count, step = (point.decisions, point.batches) if point is not None else (0, 0)
    run.journal.settle(count, step)
    if settings.monitor.name == "remediate" and run.journal.state().paused is not None:
        until = step + settings.monitor.cooldown
        reason = "started again by a person"
        run.journal.add(Entry("resume", step, STAGE, until=until, reason=reason))


def _go(run: Run, settings: TrainSettings, number: int) -> None:
    """Do what a decision of the journal says; may be done again after a kill.

    Raises:
        RunPaused: it says to stop.
    """
    entry = run.journal.entries()[number - 1]
    if entry.target is not None:
        records = [record for record in _records(run) if record.step > entry.target]
        if records:
            lines = "".join(record.to_line() + "\n" for record in records)
            (run.folder / DISCARDED).mkdir(exist_ok=True)
            atomic_write_text(run.folder / DISCARDED / f"{number:03d}.jsonl", lines)
        run.checkpoints(STAGE).discard_after(entry.target)
    run.journal.mark_applied(number)
    if entry.kind == "pause":
        raise RunPaused(
            f"the run is paused at step {entry.step}: {entry.reason}; what was seen and done is in the table "
            f"interventions of {run.folder / 'run.db'}. Go on without intervention: resume={run.folder} "
            f"monitor=observe; or try other knobs in a folder of its own: branch={run.folder} KEY=VALUE"
        )


def _records(run: Run) -> list[StepRecord]:
    """The stage's steps as they are on disk."""
    return [record for record in read_telemetry(run.telemetry.path) if record.stage == STAGE]


def _in_force(run: Run) -> dict[str, Any]:
    """Changes of the journal; a branch's own word on a setting comes before what its parent's monitor did."""
    record = read_record(run.folder) or {}
    own = record.get("branch", {}).get("changed", {})
    return {key: value for key, value in run.journal.state().changes.items() if key not in own}


def with_changes(settings: TrainSettings, changes: Mapping[str, Any]) -> TrainSettings:
    """Settings with other values at dotted keys."""
    for key, value in changes.items():
        settings = _replaced(settings, key.split("."), value)
    return settings


def _replaced(section: Any, path: list[str], value: Any) -> Any:
    name, *rest = path
    inner = _replaced(getattr(section, name), rest, value) if rest else value
    return dataclasses.replace(section, **{name: inner})
