"""The state machine of intervention: verdict -> plan -> rollback -> canary -> accept or revert.

    watching --anomalous--> rollback to the newest checkpoint that was healthy before the onset, with changes
    canary   --healthy, success kept--> accept: the changes stay, alarms are passed over for `cooldown` steps
             --otherwise--> revert: the changes go, the next plan is tried from the same checkpoint
    attempts, budget or plans used up, or a type that nobody knows: pause, for a person to look

A canary lasts `canary` steps, counted from the step at which things went wrong before, and at least to the
step at which that was noticed: a checkpoint may be older than the onset.

The machine is a function of the panel, the checkpoints and the journal. It touches nothing but the journal:
whoever drives it takes training where its `Jump` says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from robustops.monitor.intervention.actions import Settings, check_changes, comparable, diff
from robustops.monitor.intervention.journal import Entry, Journal, State, verdict_of
from robustops.monitor.intervention.planners import Plan, Planner, Situation
from robustops.monitor.panel import Panel
from robustops.monitor.verdict import UNKNOWN, Verdict

#: What says of a panel how the run is.
Judge = Callable[[Panel], Verdict]
#: Batches after which there is a checkpoint, in any order.
Checkpoints = Callable[[], Sequence[int]]
#: Steps before the onset without which success cannot be compared.
LEAST_BEFORE = 5
SUCCESS = "success_mean"


@dataclass(frozen=True)
class Bounds:
    """attempts: at one diagnosis; canary, cooldown: steps; alpha: largest p-value of an alarm; healthy_p,
    healthy_steps: p-value that a checkpoint's last steps must have had; budget: most steps that are done
    again (None: as many as the stage has); apply: false only says what would be done.
    """

    attempts: int = 3
    canary: int = 6
    cooldown: int = 6
    alpha: float = 0.05
    healthy_p: float = 0.2
    healthy_steps: int = 3
    budget: int | None = None
    apply: bool = True


@dataclass(frozen=True)
class Jump:
    """Training stops after this step. target: step to go back to (0: the beginning of the stage), None: it
    stays where it is; pauses: it does not go on; number: of the journal's entry.
    """

    target: int | None
    pauses: bool
    number: int


class Remediation:
    """Decides after every step. settings: the run's own, by dotted key; steps: of the stage; say: is told
    each decision in one line.
    """

    def __init__(
        self,
        judge: Judge,
        planner: Planner,
        journal: Journal,
        settings: Settings,
        steps: int,
        bounds: Bounds | None = None,
        say: Callable[[str], None] = lambda line: None,
        stage: str = "grpo",
    ) -> None:
        self.judge = judge
        self.planner = planner
        self.journal = journal
        self.settings = settings
        self.steps = steps
        self.bounds = bounds or Bounds()
        self.say = say
        self.stage = stage

    @property
    def pinned(self) -> int | None:
        """Batches of the checkpoint that the attempt on trial goes back to if it fails; None: no attempt."""
        trial = self.journal.state().trial
        return None if trial is None else trial.target

    def after_step(self, panel: Panel, checkpoints: Checkpoints) -> Jump | None:
        """What to do after the panel's last step; None: go on. Decisions are in the journal on return."""
        state, step = self.journal.state(), int(panel.steps[-1])
        panel = self._comparable(panel, state)
        if state.trial is not None:
            return self._canary(state.trial, state, panel) if step >= state.trial.until else None
        if step <= state.quiet:
            return None
        verdict = self.judge(panel)
        return self._alarm(verdict, state, panel, checkpoints) if self.alarming(verdict) else None

    def after_failure(self, panel: Panel, checkpoints: Checkpoints, message: str) -> Jump | None:
        """The step after the panel's last one could not be completed. None: it has nothing to do with what
        is watched, and the failure stands.
        """
        state = self.journal.state()
        panel = self._comparable(panel, state)
        if state.trial is not None:
            return self._revert(state.trial, state, len(panel) and int(panel.steps[-1]), message)
        verdict = self.judge(panel) if len(panel) else Verdict("not_observed")
        if not self.alarming(verdict) or not self.planner.acts or not self.bounds.apply:
            return None
        return self._alarm(verdict, state, panel, checkpoints)

    def alarming(self, verdict: Verdict) -> bool:
        """Whether a verdict is a reason to act. Where there is no p-value, its word counts."""
        return verdict.verdict == "anomalous" and not verdict.p_value > self.bounds.alpha

    def _comparable(self, panel: Panel, state: State) -> Panel:
        """As the run would show with its own settings."""
        return comparable(panel, state.forced, self.settings)

    # an alarm -----------------------------------------------------------------------------------
    def _alarm(self, verdict: Verdict, state: State, panel: Panel, checkpoints: Checkpoints) -> Jump | None:
        step = int(panel.steps[-1])
        onset = min(verdict.onset or step, step)
        label = label_of(verdict)
        if not self.planner.acts:
            return self._pass_over(verdict, step, "nothing is planned")
        if self.planner.needs_type and label is None:
            return self._pause(verdict, step, label, None, "no single cause fits: a person has to look")
        # Advice costs no steps: it is given as if the last step were a checkpoint.
        target = self._healthy(panel, onset, checkpoints()) if self.bounds.apply else step
        entry = Entry(
            "rollback",
            step,
            self.stage,
            label=label,
            target=target,
            verdict=verdict.to_dict(),
            detail={"onset": onset, "before": _before(panel, onset)},
        )
        return self._attempt(entry, state, panel)

    def _attempt(self, entry: Entry, state: State, panel: Panel) -> Jump | None:
        """The next attempt at what the entry is about; pause where there is none."""
        verdict = verdict_of(entry.verdict)
        tried = tuple(attempt for attempt in state.tried if attempt.label == entry.label)
        attempt, target = len(tried) + 1, entry.target or 0
        back, name = target if tried else None, entry.label or UNKNOWN
        if attempt > self.bounds.attempts:
            reason = f"{len(tried)} attempts at {name} did not help"
            return self._pause(verdict, entry.step, entry.label, back, reason)
        again = entry.step - target
        budget = self.steps if self.bounds.budget is None else self.bounds.budget
        if state.repeated + again > budget:
            reason = (
                f"going back {again} steps after {state.repeated} would go beyond the budget of {budget} "
                "steps done again (monitor.budget)"
            )
            return self._pause(verdict, entry.step, entry.label, back, reason)
        now = {**self.settings, **state.changes}
        plan = self.planner.plan(Situation(verdict, now, attempt, entry.step, panel, tried))
        if plan is None:
            return self._pause(verdict, entry.step, entry.label, back, f"nothing is left to try at {name}")
        if plan.changes:
            check_changes(plan.changes, now)
        if not self.bounds.apply:
            return self._pass_over(verdict, entry.step, f"advice: {described(plan, now)}")
        return self._go_back(entry, plan, now, attempt)

    def _go_back(self, entry: Entry, plan: Plan, now: Settings, attempt: int) -> Jump:
        target, onset = entry.target or 0, int(entry.detail["onset"])
        until = max(max(onset - 1, target) + self.bounds.canary, entry.step)
        begun = Entry(
            "rollback",
            entry.step,
            self.stage,
            attempt,
            entry.label,
            target,
            min(until, self.steps),
            {change.key: change.value for change in plan.changes},
            plan.why,
            plan.source,
            entry.verdict,
            {**entry.detail, "diff": diff(plan.changes, now)},
            applied=False,
        )
        self.journal.add(begun)
        self.say(
            f"monitor: {entry.label or UNKNOWN} since step {onset}, seen at step {entry.step}: back to step "
            f"{target}, attempt {attempt} of {self.bounds.attempts}: {described(plan, now)}; on trial up to "
            f"step {begun.until}"
        )
        return Jump(target, False, len(self.journal))

    def _healthy(self, panel: Panel, onset: int, checkpoints: Sequence[int]) -> int:
        """The newest checkpoint before the onset whose last steps were healthy; 0: the stage's beginning."""
        for step in sorted(checkpoints, reverse=True):
            if 0 < step < onset and all(
                self._was_healthy(panel, earlier)
                for earlier in range(max(1, step - self.bounds.healthy_steps + 1), step + 1)
            ):
                return step
        return 0

    def _was_healthy(self, panel: Panel, step: int) -> bool:
        past = panel.until(step)
        if not len(past):
            return True
        verdict = self.judge(past)
        return verdict.verdict != "anomalous" and not verdict.p_value <= self.bounds.healthy_p

    # the canary ---------------------------------------------------------------------------------
    def _canary(self, trial: Entry, state: State, panel: Panel) -> Jump | None:
        """The verdict on an attempt, after its last step on trial."""
        step, verdict = int(panel.steps[-1]), self.judge(panel)
        success = _success_after(panel, trial)
        if self.alarming(verdict):
            return self._revert(trial, state, step, f"still {verdict.type or UNKNOWN}", panel, verdict)
        if not success.kept:
            return self._revert(trial, state, step, success.text, panel, verdict)
        accepted = Entry(
            "accept",
            step,
            self.stage,
            trial.attempt,
            trial.label,
            until=step + self.bounds.cooldown,
            reason=success.text,
            planner=trial.planner,
            verdict=verdict.to_dict(),
        )
        self.journal.add(accepted)
        self.say(f"monitor: attempt {trial.attempt} at {trial.label or UNKNOWN} is kept: {success.text}")
        return None

    def _revert(
        self,
        trial: Entry,
        state: State,
        step: int,
        reason: str,
        panel: Panel | None = None,
        verdict: Verdict | None = None,
    ) -> Jump | None:
        """Take the attempt back and go on to the next one."""
        body = verdict.to_dict() if verdict is not None else {}
        undone = Entry(
            "revert",
            step,
            self.stage,
            trial.attempt,
            trial.label,
            trial.target,
            reason=reason,
            planner=trial.planner,
            verdict=body,
        )
        self.journal.add(undone)
        self.say(f"monitor: attempt {trial.attempt} at {trial.label or UNKNOWN} is taken back: {reason}")
        again = Entry(
            "rollback",
            step,
            self.stage,
            label=trial.label,
            target=trial.target,
            verdict=trial.verdict,
            detail=trial.detail,
        )
        empty = Panel(np.empty(0, dtype=np.int64))
        return self._attempt(again, state.after(undone), empty if panel is None else panel)

    # the other ends -----------------------------------------------------------------------------
    def _pause(
        self, verdict: Verdict, step: int, label: str | None, target: int | None, reason: str
    ) -> Jump | None:
        """Stop for a person to look; with apply=false, only say that it would be time to."""
        if not self.bounds.apply:
            return self._pass_over(verdict, step, f"advice: pause, {reason}")
        entry = Entry(
            "pause",
            step,
            self.stage,
            label=label,
            target=target,
            reason=reason,
            planner=self.planner.name,
            verdict=verdict.to_dict(),
            applied=False,
        )
        self.journal.add(entry)
        self.say(f"monitor: paused at step {step}: {reason}")
        return Jump(target, True, len(self.journal))

    def _pass_over(self, verdict: Verdict, step: int, reason: str) -> Jump | None:
        """Journal an alarm that nothing is done about; None."""
        until = step + self.bounds.cooldown
        entry = Entry(
            "none",
            step,
            self.stage,
            label=label_of(verdict),
            until=until,
            reason=reason,
            planner=self.planner.name,
            verdict=verdict.to_dict(),
        )
        self.journal.add(entry)
        self.say(f"monitor: {entry.label or UNKNOWN} seen at step {step}: {reason}")
        return None


def label_of(verdict: Verdict) -> str | None:
    """The type to act on first; None where nothing that is known fits, or several types fit as well."""
    return None if verdict.type == UNKNOWN else verdict.type


def described(plan: Plan, settings: Settings) -> str:
    """A plan in one line."""
    return f"{'; '.join(diff(plan.changes, settings)) or 'no change'} ({plan.why})"


@dataclass(frozen=True)
class Success:
    """Whether success is not below what it was before the onset, less one deviation of a step."""

    kept: bool
    text: str


def _before(panel: Panel, onset: int) -> dict[str, float] | None:
    """Mean and deviation of the steps' success before the onset, None: too few of them to tell."""
    values = panel[SUCCESS][panel.steps < onset]
    values = values[np.isfinite(values)]
    if len(values) < LEAST_BEFORE:
        return None
    return {"mean": float(values.mean()), "deviation": float(values.std(ddof=1)), "steps": len(values)}


def _success_after(panel: Panel, trial: Entry) -> Success:
    """Of the steps on trial from the onset on, against what was kept of the time before."""
    before = trial.detail.get("before")
    first = max(int(trial.detail["onset"]), (trial.target or 0) + 1)
    values = panel[SUCCESS][panel.steps >= first]
    values = values[np.isfinite(values)]
    if before is None or not len(values):
        return Success(True, "no alarm; success before the onset is not known")
    mean, least = float(values.mean()), before["mean"] - before["deviation"]
    text = f"success {mean:.3g} where {before['mean']:.3g} +- {before['deviation']:.2g} came before the onset"
    return Success(mean >= least or math.isclose(mean, least), text)
