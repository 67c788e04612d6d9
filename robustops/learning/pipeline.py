"""The main job: Base -> SFT -> GRPO -> paired evaluation, each part once, in one run folder."""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from robustops import __version__
from robustops.errors import ConfigError, RunPaused
from robustops.files import atomic_write_json
from robustops.learning.admission import Admission, admit
from robustops.learning.branching import STAGE
from robustops.learning.evaluation import EvaluationPlan, evaluate_policy
from robustops.learning.hardware import group_size, tell_deepspeed
from robustops.learning.hooks import NO_TRAINING_HOOKS, TrainingHooks
from robustops.learning.memory import reuse_freed_memory
from robustops.learning.processes import check_started, connected, leads
from robustops.learning.progress import progress
from robustops.learning.remediation import reinforce
from robustops.learning.run import BASE, Run
from robustops.learning.stages import STAGES, check_stages
from robustops.monitor.intervention.policy import Judge
from robustops.seeding import child_seed
from robustops.settings import EvaluateSettings, EvaluationSettings, PolicyCommandSettings, TrainSettings
from robustops.tasks.opening import open_catalog
from robustops.tracking.loggers import log_table
from robustops.tracking.results import build_summary
from robustops.tracking.tables import evaluation_cells, print_results


def run_training(
    settings: TrainSettings,
    run_dir: Path,
    config: Mapping[str, Any],
    overrides: Sequence[str] | None = None,
    hooks: TrainingHooks = NO_TRAINING_HOOKS,
    judge: Judge | None = None,
) -> dict[str, Any]:
    """Run the stages that are not complete yet, evaluate, and write `summary.json`; returns its content.

    overrides: of the command line, for a later `resume=`. A folder that was trained with other settings is
    refused, see `learning.admission`. hooks: of the GRPO stage, see `learning.hooks`; judge: of
    monitor=remediate, see `learning.remediation`.

    Where several processes train, each of them calls it; those that do not lead return an empty summary
    after the last stage.

    Raises:
        RunPaused: the monitor has stopped the run; `summary.json` says why, without an evaluation.
    """
    check_stages(settings)
    check_started(group_size(settings.hardware))
    _prepare(settings)
    opened = open_catalog(settings.domain)
    admission = admit(settings, run_dir, opened[1], overrides) if leads() else None
    with Run(settings, run_dir, config, opened) as run:
        if admission is not None:
            _admitted(run, admission)
        with connected(settings.hardware.accelerator, group_size(settings.hardware)):
            try:
                _train(run, settings, hooks, judge)
            except RunPaused:
                _summarise(run, settings, config)
                raise
        if not leads():
            return {}
        policies = [p for p in settings.evaluation.policies if p == BASE or p in settings.stages]
        return _evaluate(run, settings, settings.evaluation, policies, config)


def _admitted(run: Run, admission: Admission) -> None:
    """Tell what is new about this start, and make it the one that later starts are held against."""
    for line in admission.lines:
        run.say(line)
    run.resume_points.update(admission.points)
    if admission.evaluate_anew:
        run.forget_evaluation()
    admission.keep()


def _train(run: Run, settings: TrainSettings, hooks: TrainingHooks, judge: Judge | None = None) -> None:
    """The stages that are not complete yet, one after another."""
    before = BASE
    for stage in settings.stages:
        if not run.complete(stage):
            load, begin = partial(run.load, before), time.monotonic()
            if stage == STAGE:
                policy = reinforce(run, settings, load, hooks, judge)
            else:
                STAGES[stage](run, settings, policy := load(), hooks)
            run.save(stage, policy)
            run.store.add_timing(stage, "total", time.monotonic() - begin)
        elif leads():
            run.checkpoints(stage).remove()  # a kill may have come between its policy and this
        before = stage


def run_evaluation(settings: EvaluateSettings, run_dir: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Evaluate policies, those of a finished run if `settings.run` names its folder."""
    _prepare(settings)
    with Run(settings, run_dir, config) as run:
        source = Path(settings.run) if settings.run is not None else None
        for policy in settings.policies:
            if policy == BASE:
                continue
            if source is None:
                raise ConfigError(f"policy '{policy}' comes from a run; name its folder with run=FOLDER")
            folder = source / "checkpoints" / policy / "policy"
            if not (folder / "config.json").is_file():
                raise ConfigError(f"run {source} has no policy '{policy}' ({folder} is absent)")
            run.policies[policy] = folder
        return _evaluate(run, settings, settings.evaluation, settings.policies, config)


def _evaluate(
    run: Run,
    settings: PolicyCommandSettings,
    evaluation: EvaluationSettings,
    policies: Sequence[str],
    config: Mapping[str, Any],
) -> dict[str, Any]:
    """Evaluate what is not evaluated yet; summary, tables, loggers."""
    finished = [str(row["policy"]) for row in run.store.episodes(stage="evaluation")]
    plan = _plan(run, evaluation) if policies else None
    for place, policy in enumerate(policies):
        assert plan is not None
        if finished.count(policy) == plan.size:
            continue
        run.store.truncate("evaluation", place - 1)
        finished = [name for name in finished if name in policies[:place]]
        begin = time.monotonic()
        _evaluate_one(run, settings, plan, policy, place)
        run.store.add_timing("evaluation", policy, time.monotonic() - begin, step=place)
    summary = _summarise(run, settings, config)
    log_table(run.loggers, "evaluation", *evaluation_cells(summary))
    if policies:
        print_results(summary, run.console)
    return summary


def _summarise(run: Run, settings: PolicyCommandSettings, config: Mapping[str, Any]) -> dict[str, Any]:
    """Write `summary.json` from what the run's database holds; returns its content."""
    watched = isinstance(settings, TrainSettings) and settings.monitor.name != "off"
    summary = build_summary(
        run.store.evaluation_rows(),
        run=_facts(settings, config),
        timings=run.store.timings(),
        health=run.health() if watched else None,
        seed=settings.seed,
    )
    atomic_write_json(run.folder / "summary.json", summary)
    return summary


def _evaluate_one(
    run: Run, settings: PolicyCommandSettings, plan: EvaluationPlan, name: str, place: int
) -> None:
    policy = run.load(name)
    sampler = run.samplers.of(policy, temperature=settings.evaluation.temperature)
    collector = run.collector(policy, sampler)
    with progress(run.console, f"evaluate {name}", plan.size, enabled=settings.progress) as done:
        episodes = evaluate_policy(collector, plan, done)
    collector.close()
    run.store.add_episodes("evaluation", place, episodes, policy=name)


def _plan(run: Run, evaluation: EvaluationSettings) -> EvaluationPlan:
    cases = run.cases(evaluation.split)[: evaluation.cases]
    seed = child_seed(evaluation.manifest_seed, "evaluation")
    manifests = {
        name: run.manifest(name, cases, child_seed(seed, name))
        for name in evaluation.conditions
        if name != "clean"
    }
    return EvaluationPlan(cases, manifests, evaluation.conditions, evaluation.attempts, seed)


def _facts(settings: PolicyCommandSettings, config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "version": __version__,
        "seed": settings.seed,
        "domain": settings.domain.name,
        "database": settings.domain.database,
        "fault": settings.fault.name,
        "model": settings.model.name,
        "sampler": settings.sampler.name,
        "split": settings.evaluation.split,
        "platform": platform.platform(),
        "torch": torch.__version__,
        "config": dict(config),
    }


def _prepare(settings: PolicyCommandSettings) -> None:
    reuse_freed_memory()
    tell_deepspeed(settings.hardware)
    if settings.hardware.threads > 0:
        torch.set_num_threads(settings.hardware.threads)
