"""An open run folder: its settings, tasks, records and policies.

checkpoints/<stage>/last.ckpt   where an interrupted stage goes on (Lightning)
checkpoints/<stage>/policy/     the stage's result (transformers layout); present = stage complete
manifests/<condition>.json      frozen tool faults of the evaluation
telemetry.jsonl, run.db, summary.json
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from lightning.pytorch.loggers import Logger
from rich.console import Console

from robustops.faults.manifest import Manifest, build_manifest
from robustops.faults.plan import HELD_OUT, TRAINED, fault_choices
from robustops.learning.policy import Policy, load_policy
from robustops.learning.samplers import SamplerPool
from robustops.monitor.rules import Alert, health
from robustops.monitor.telemetry import TelemetryWriter
from robustops.records import Task
from robustops.rollout.collector import Collector
from robustops.rollout.episode import Limits
from robustops.rollout.sampler import Sampler
from robustops.settings import PolicyCommandSettings
from robustops.tasks.opening import open_catalog
from robustops.tracking.loggers import close_loggers, make_loggers
from robustops.tracking.run_store import RunStore

BASE = "base"
#: Evaluation faults strike among a case's first so many opportunities for their mechanism: a policy whose
#: path differs from the expert's is then likelier to meet them.
EARLY_OPPORTUNITIES = 2


class Run:
    """Everything that the stages and the evaluation of one run share. Use as a context manager."""

    def __init__(self, settings: PolicyCommandSettings, folder: Path, config: Mapping[str, Any]) -> None:
        self.settings = settings
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.console = Console(stderr=settings.format == "json")
        self.domain, self.catalog = open_catalog(settings.domain)
        self.domains = {self.domain.name: self.domain}
        self.telemetry = TelemetryWriter(folder / "telemetry.jsonl")
        self.store = RunStore(folder / "run.db")
        kind = settings.logger.name
        self.loggers: list[Logger] = []
        if kind != "none":
            self.loggers += make_loggers(
                kind,
                folder,
                config,
                group=settings.logger.group,
                offline=settings.logger.offline,
                project=settings.logger.project,
            )
        #: Folders of policies that another run made.
        self.policies: dict[str, Path] = {}
        self.samplers = SamplerPool(settings.sampler, settings.model, self.domains, folder)

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

    def checkpoint(self, stage: str) -> Path:
        return self.folder / "checkpoints" / stage / "last.ckpt"

    def complete(self, stage: str) -> bool:
        """Whether the stage's policy is there."""
        return (self.policy_folder(stage) / "config.json").is_file()

    def load(self, stage: str) -> Policy:
        """The policy after a stage; `base` is the model that the settings name."""
        model = self.settings.model
        if stage == BASE:
            return load_policy(model, model.checkpoint)
        return load_policy(model, str(self.policies.get(stage, self.policy_folder(stage))))

    def save(self, stage: str, policy: Policy) -> None:
        """Put a stage's result in place in one move, and drop its intermediate checkpoint."""
        target = self.policy_folder(stage)
        partial = target.with_name("policy.partial")
        shutil.rmtree(partial, ignore_errors=True)
        policy.save(partial)
        os.replace(partial, target)
        self.checkpoint(stage).unlink(missing_ok=True)

    def alert(self, alert: Alert) -> None:
        """Keep an alert of the run monitor and say it once, in one line."""
        self.store.add_alert(
            alert.stage, alert.step, kind=alert.kind, severity=alert.severity, message=alert.message
        )
        self.console.print(f"alert: {alert.stage} step {alert.step}: {alert.message}", highlight=False)

    def health(self) -> dict[str, object]:
        """The `health` part of the summary, from all alerts of the run."""
        names = ("stage", "step", "kind", "severity", "message")
        return health([Alert(**{name: row[name] for name in names}) for row in self.store.alerts()])

    # rollouts -----------------------------------------------------------------------------------
    def collector(self, policy: Policy, sampler: Sampler) -> Collector:
        model = self.settings.model
        limits = Limits(model.context_tokens, model.answer_tokens, model.max_turns)
        flight = self.settings.sampler.max_in_flight
        return Collector(sampler, policy.renderer, self.domains, limits, max_in_flight=flight)

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
