"""An open run folder: its settings, tasks, records and policies.

checkpoints/<stage>/step-*/     where an interrupted stage goes on, see `learning.checkpoints`
checkpoints/<stage>/policy/     the stage's result (transformers layout); present = stage complete
manifests/<condition>.json      frozen tool faults of the evaluation
run.json                        what the last start was made with, see `learning.admission`
telemetry.jsonl, run.db, summary.json
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from functools import cached_property, partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from lightning.pytorch.loggers import Logger
from rich.console import Console

from robustops.faults.manifest import Manifest, build_manifest
from robustops.faults.plan import HELD_OUT, TRAINED, fault_choices
from robustops.learning.admission import stage_complete
from robustops.learning.checkpoints import Checkpoints, ResumePoint, move_into_place
from robustops.learning.fingerprint import flat_settings
from robustops.learning.hardware import device_of
from robustops.learning.policy import Policy, load_policy
from robustops.learning.processes import barrier, gather_objects, leads, rank
from robustops.learning.samplers import SamplerPool
from robustops.monitor import profiles
from robustops.monitor.alerts import Alert, health
from robustops.monitor.fitted import FittedMonitor
from robustops.monitor.intervention.journal import Journal
from robustops.monitor.intervention.report import interventions
from robustops.monitor.telemetry import TelemetryWriter
from robustops.records import Task
from robustops.rollout.collector import Collector
from robustops.rollout.episode import Limits
from robustops.rollout.hooks import NO_HOOKS, RolloutHooks
from robustops.rollout.sampler import Sampler
from robustops.settings import PolicyCommandSettings, TrainSettings
from robustops.tasks.catalog import Catalog
from robustops.tasks.opening import open_catalog
from robustops.tracking.loggers import close_loggers, make_loggers
from robustops.tracking.run_store import RunStore
from robustops.tracking.silent import SilentStore, SilentTelemetry
from robustops.worlds.domain import Domain
from robustops.worlds.environment import LocalWorld

BASE = "base"
#: Evaluation faults strike among a case's first so many opportunities for their mechanism: a policy whose
#: path differs from the expert's is then likelier to meet them.
EARLY_OPPORTUNITIES = 2


class Run:
    """Everything that the stages and the evaluation of one run share. Use as a context manager.

    opened: domain and catalogue of the settings, where they are open already.
    """

    def __init__(
        self,
        settings: PolicyCommandSettings,
        folder: Path,
        config: Mapping[str, Any],
        opened: tuple[Domain, Catalog] | None = None,
    ) -> None:
        self.settings = settings
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.console = Console(stderr=settings.format == "json", quiet=not leads())
        self.domain, self.catalog = opened or open_catalog(settings.domain)
        self.domains = {self.domain.name: self.domain}
        self.telemetry, self.store, self.loggers = self._writers(config)
        self.journal = Journal(self.store.db)
        #: Where incomplete stages go on, as far as it was looked up before the run was opened.
        self.resume_points: dict[str, ResumePoint | None] = {}
        #: Folders of policies that another run made.
        self.policies: dict[str, Path] = {}
        work_dir = folder if leads() else folder / "processes" / str(rank())
        self.samplers = SamplerPool(settings.sampler, settings.model, self.domains, work_dir)

    def _writers(self, config: Mapping[str, Any]) -> tuple[TelemetryWriter, RunStore, list[Logger]]:
        """Where the run's records go; one process of a run keeps them, its other processes keep none."""
        if not leads():
            return SilentTelemetry(), SilentStore(), []
        logger = self.settings.logger
        loggers: list[Logger] = []
        if logger.name != "none":
            loggers += make_loggers(
                logger.name,
                self.folder,
                config,
                group=logger.group,
                offline=logger.offline,
                project=logger.project,
            )
        return TelemetryWriter(self.folder / "telemetry.jsonl"), RunStore(self.folder / "run.db"), loggers

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.samplers.close()
        self.telemetry.close()
        self.store.close()
        close_loggers(self.loggers, "success" if error is None else "failed")

    # policies -----------------------------------------------------------------------------------
    def policy_folder(self, stage: str) -> Path:
        return self.folder / "checkpoints" / stage / "policy"

    def checkpoints(self, stage: str) -> Checkpoints:
        settings = self.settings
        keep_all = (
            stage == "grpo"
            and isinstance(settings, TrainSettings)
            and settings.grpo.keep_checkpoints == "all"
        )
        remediates = isinstance(settings, TrainSettings) and settings.monitor.name == "remediate"
        keep = settings.monitor.ring if remediates and stage == "grpo" else 2  # type: ignore[attr-defined]
        return Checkpoints(self.folder / "checkpoints" / stage, keep_all=keep_all, keep=keep)

    def complete(self, stage: str) -> bool:
        """Whether the stage's policy is there."""
        return stage_complete(self.folder, stage)

    def resume_point(self, stage: str) -> ResumePoint | None:
        """Where a stage that is not complete goes on (None: at its beginning); every process calls it."""
        found = None
        if leads():
            known = stage in self.resume_points
            found = self.resume_points.pop(stage) if known else self.checkpoints(stage).recover(self.say)
        return gather_objects([found])[0][0]

    def load(self, stage: str) -> Policy:
        """The policy after a stage; `base` is the model that the settings name."""
        model = self.settings.model
        place = model.checkpoint
        if stage != BASE:
            place = str(self.policies.get(stage, self.policy_folder(stage)))
        policy = load_policy(model, place)
        if self.settings.sampler.name == "hf":  # it computes where the model is
            policy.model.to(device_of(self.settings.hardware))  # type: ignore[arg-type]
        return policy

    def save(self, stage: str, policy: Policy) -> None:
        """Put a stage's result in place in one move, and drop its intermediate checkpoints.

        Every process of the run calls it; on return the policy is there for each of them.
        """
        if leads():
            target = self.policy_folder(stage)
            partial = target.with_name("policy.partial")
            shutil.rmtree(partial, ignore_errors=True)
            policy.save(partial)
            move_into_place(partial, target)
            self.checkpoints(stage).remove()
        barrier()

    def forget_evaluation(self) -> None:
        """Drop the evaluations that are done, and their frozen faults, so that they are made anew."""
        self.store.truncate("evaluation", -1)
        given = self.settings.fault.manifest
        for path in (self.folder / "manifests").glob("*.json"):
            if given is None or not path.samefile(given):
                path.unlink()

    def say(self, line: str) -> None:
        """One line for the user."""
        self.console.print(line, highlight=False, soft_wrap=True)

    @cached_property
    def healthy_runs(self) -> FittedMonitor | None:
        """What the run monitor judges GRPO by, None: by rules alone. ConfigError for a folder that holds no
        profile.
        """
        settings = self.settings
        if not isinstance(settings, TrainSettings) or settings.monitor.profile is None:
            return None
        flat = flat_settings(settings)
        if settings.monitor.profile == "auto":
            return profiles.shipped(flat)
        fitted = FittedMonitor.load(settings.monitor.profile)
        if other := profiles.misfits(fitted.about, flat):
            self.say(f"monitor.profile is of runs that differ from this one: {'; '.join(other)}")
        return fitted

    def alert(self, alert: Alert) -> None:
        """Keep an alert of the run monitor and say it once, in one line."""
        self.store.add_alert(
            alert.stage, alert.step, kind=alert.kind, severity=alert.severity, message=alert.message
        )
        self.console.print(f"alert: {alert.stage} step {alert.step}: {alert.message}", highlight=False)

    def health(self) -> dict[str, object]:
        """The `health` part of the summary, from all alerts of the run and what was done about them."""
        names = ("stage", "step", "kind", "severity", "message")
        found = health([Alert(**{name: row[name] for name in names}) for row in self.store.alerts()])
        return {**found, **interventions(self.journal.entries())}

    def decisions(self) -> int:
        """Entries of the journal of interventions."""
        return len(self.journal)

    # rollouts -----------------------------------------------------------------------------------
    def collector(
        self,
        policy: Policy,
        sampler: Sampler,
        hooks: RolloutHooks = NO_HOOKS,
        given: PolicyCommandSettings | None = None,
    ) -> Collector:
        """given: settings in force, where the monitor has changed some; None: the run's own."""
        given = given or self.settings
        model, settings, domain = given.model, given.sampler, given.domain
        limits = Limits(
            model.context_tokens,
            model.answer_tokens,
            model.max_turns,
            settings.min_new_tokens,
            settings.repetition_penalty,
            model.min_turns,
            domain.tool_retries,
            domain.check_replies,
            model.max_answers,
            domain.reread_calls,
        )
        return Collector(
            sampler,
            policy.renderer,
            self.domains,
            limits,
            max_in_flight=settings.max_in_flight,
            retries=settings.episode_retries,
            retry_share=settings.retry_share,
            world_factory=partial(LocalWorld, tool_timeout_s=domain.tool_timeout_s),
            hooks=hooks,
        )

    def cases(self, split: str) -> tuple[Task, ...]:
        return self.catalog.cases(split, self.settings.domain.tool_configs)

    def manifest(self, condition: str, cases: tuple[Task, ...], seed: int) -> Manifest:
        """The frozen faults of an evaluation condition: read from the run folder, or made and kept there."""
        given = self.settings.fault.manifest
        if condition == "fault" and given is not None:
            return Manifest.load(given)
        path = self.folder / "manifests" / f"{condition}.json"
        if path.is_file():
            return Manifest.load(path)
        families = HELD_OUT if condition == "heldout" else TRAINED
        subtypes = [name for family in families for name in fault_choices(family)]
        caps = self.settings.fault.caps
        manifest = build_manifest(
            cases, self.domains, subtypes, seed, caps, max_opportunity=EARLY_OPPORTUNITIES
        )
        manifest.save(path)
        return manifest
