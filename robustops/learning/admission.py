"""Whether a run folder may go on with the settings that a start asks for.

`run.json` in the folder holds what the last accepted start was made with. Each later start is held against
it. A change that nothing depends on is reported. A change to what a stage was trained with, be it half done
or complete, is refused: the result would not be what its settings say. Settings of a stage that has not
begun are free. An evaluation whose settings or tasks changed begins anew.

Refused for a stage that has begun                 Reported
every setting that is not named on the right:      format, progress, logger, monitor, checkpoint_every,
seed, domain, fault, model; sft for SFT; grpo,     what only speed, memory or rounding depend on (`HARMLESS`),
sampler, reward, reward_norm, run faults for GRPO  evaluation, domain.val, domain.test, fault.manifest
tasks of the training split, database file,        tasks of the evaluation's split, versions of packages
weights and tokenizer of the base model
hardware, while the stage is half done             hardware.name, hardware.threads; afterwards all of it
the stages before it                               stages after it
grpo.steps where GRPO is complete, fewer than      grpo.steps otherwise
are done, or grpo.schedule=linear

A linear schedule spreads its decay over grpo.steps: the steps done were taken at the rates of another
schedule. A change to an optimiser's rate, decay or epsilon would even be without effect, since its state
brings them along.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from robustops.errors import ConfigError
from robustops.learning import branching
from robustops.learning.branching import STAGE, find_parent, take_over
from robustops.learning.checkpoints import Checkpoints, ResumePoint
from robustops.learning.fingerprint import (
    EVALUATION_TASKS,
    MANIFEST,
    PLACES,
    Fingerprint,
    fingerprint,
)
from robustops.settings import TrainSettings
from robustops.tasks.catalog import Catalog
from robustops.tracking.run_record import NAME, read_record, write_record

#: Keys and sections that change nothing of what is learned, at most its speed, its memory, or rounding.
HARMLESS = (
    *("format", "progress", "logger", "monitor", "hardware.name", "hardware.threads"),
    *("model.gradient_checkpointing", "sft.name", "sft.micro_batch_tokens", "sft.checkpoint_every"),
    *("grpo.name", "grpo.micro_batch_tokens", "grpo.checkpoint_every", "grpo.sync_tolerance"),
    *("grpo.share_prefix", "grpo.keep_checkpoints"),
    *("sampler.max_in_flight", "sampler.prefill_tokens", "sampler.memory_fraction", "sampler.api_key_env"),
    *("sampler.timeout_s", "sampler.retries", "sampler.base_url", "sampler.urls", "sampler.sleep_level"),
    *("sampler.weight_transfer", "sampler.sync_folder", "fault.name", "reward.name"),
)
#: Keys that concern the evaluation only.
EVALUATION = ("evaluation", "domain.val", "domain.test", EVALUATION_TASKS, MANIFEST)
#: Sections that one stage uses; every other section is used by all.
USED_BY = {
    **{"sft": "sft", "grpo": "grpo", "sampler": "grpo", "reward": "grpo", "reward_norm": "grpo"},
    **{"run_fault": "grpo", "second_run_fault": "grpo"},
}
_LISTED = 4


@dataclass(frozen=True)
class StageState:
    """How far a stage is. batches: trained on, in the checkpoint that it goes on from."""

    complete: bool = False
    batches: int = 0

    @property
    def begun(self) -> bool:
        return self.complete or self.batches > 0

    def __str__(self) -> str:
        return "complete" if self.complete else f"half done ({self.batches} steps)"


@dataclass
class Verdict:
    """What became of the changes. refused, reported: one phrase each; evaluate_anew: kept evaluations are
    of other settings.
    """

    refused: list[str] = field(default_factory=list)
    reported: list[str] = field(default_factory=list)
    evaluate_anew: bool = False


@dataclass
class Admission:
    """A start that may go on. lines: what to tell; points: where incomplete stages go on from."""

    record: dict[str, Any]
    folder: Path
    lines: list[str]
    points: dict[str, ResumePoint | None]
    evaluate_anew: bool

    def keep(self) -> None:
        """Make this start the one that later starts are held against."""
        write_record(self.folder, self.record)


def admit(
    settings: TrainSettings, folder: Path, catalog: Catalog, overrides: Sequence[str] | None = None
) -> Admission:
    """Hold a start against the run folder; changes nothing there but leftovers of killed saves.

    overrides: of the command line, kept for `resume=`; None where there was none.

    Raises:
        ConfigError: the settings differ from what was trained with them; or no checkpoint is readable.
    """
    lines: list[str] = []
    kept = read_record(folder)
    branched = kept is not None and "branch" in kept
    if settings.branch is not None and not branched:
        return _admit_branch(settings, folder, catalog, overrides)
    points, states = _stages(settings, folder, lines)
    mine, verdict = fingerprint(settings, catalog), Verdict()
    if kept is not None:
        before = Fingerprint.from_dict(kept)
        mine = Fingerprint(mine.settings, _known(before.contents, mine.contents), mine.versions)
        verdict = compare(before, mine, states)
        if verdict.refused:
            raise ConfigError(_refusal(folder, verdict.refused))
    elif any(state.begun for state in states.values()):
        lines.append(f"{folder / NAME} is absent: whether settings changed since then cannot be told")
    if verdict.reported:
        again = "; evaluations begin anew" if verdict.evaluate_anew else ""
        lines.append(f"changed since the last start: {', '.join(verdict.reported)}{again}")
    origin = {"branch": kept["branch"]} if kept is not None and branched else {}
    record = {"overrides": None if overrides is None else list(overrides), **origin, **mine.to_dict()}
    return Admission(record, folder, lines, points, verdict.evaluate_anew)


def _admit_branch(
    settings: TrainSettings, folder: Path, catalog: Catalog, overrides: Sequence[str] | None
) -> Admission:
    """Hold the first start of a branch against the run that it branches from, and take over its state."""
    parent = find_parent(settings, folder)
    before, mine = Fingerprint.from_dict(parent.record), fingerprint(settings, catalog)
    mine = Fingerprint(mine.settings, _known(before.contents, mine.contents), mine.versions)
    states = {stage: StageState(complete=True) for stage in settings.stages}
    states[STAGE] = StageState(batches=parent.point.batches)
    verdict = compare(before, mine, states, branches=True)
    if verdict.refused:
        raise ConfigError(_refusal(parent.folder, verdict.refused))
    take_over(parent, settings, folder)
    lines = [f"branched from {parent.folder} after GRPO step {parent.point.batches}"]
    if verdict.reported:
        lines.append(f"changed: {', '.join(verdict.reported)}")
    points, _ = _stages(settings, folder, lines)
    changes = _changes(before, mine)
    changed = {key: [was, now] for key, (was, now) in changes.items() if not _within(key, HARMLESS)}
    origin = {"parent": str(parent.folder.resolve()), "step": parent.point.batches, "changed": changed}
    given = None if overrides is None else list(overrides)
    record = {"overrides": given, "branch": origin, **mine.to_dict()}
    return Admission(record, folder, lines, points, evaluate_anew=True)


def _stages(
    settings: TrainSettings, folder: Path, lines: list[str]
) -> tuple[dict[str, ResumePoint | None], dict[str, StageState]]:
    """Where incomplete stages go on, and how far each one is, also those that this start leaves out."""
    points: dict[str, ResumePoint | None] = {}
    states: dict[str, StageState] = {}
    places = folder / "checkpoints"
    found = sorted(path.name for path in places.iterdir()) if places.is_dir() else []
    for stage in dict.fromkeys([*settings.stages, *found]):
        if stage_complete(folder, stage):
            states[stage] = StageState(complete=True)
            continue
        point = points[stage] = Checkpoints(places / stage).recover(lines.append)
        states[stage] = StageState(batches=point.batches if point is not None else 0)
    return points, states


def stage_complete(folder: Path, stage: str) -> bool:
    """Whether a stage's policy is in the run folder."""
    return (folder / "checkpoints" / stage / "policy" / "config.json").is_file()


def compare(
    old: Fingerprint, new: Fingerprint, states: Mapping[str, StageState], *, branches: bool = False
) -> Verdict:
    """Sort the changes between two starts. states: of the stages of either; one not named has not begun;
    branches: the later one is a run of its own, which may change the knobs of `learning.branching`.
    """
    verdict = Verdict()
    for key, (was, now) in _changes(old, new).items():
        phrase = f"{key} {_short(was)} -> {_short(now)}"
        reason = None
        if not (branches and branching.allowed(key, new.settings)):
            reason = _objection(key, was, now, new, states)
        elif key == "grpo.steps" and now < states[STAGE].batches:
            reason = f"{states[STAGE].batches} steps are done; at least so many remain"
        if reason is not None:
            verdict.refused.append(f"{phrase}, but {reason}")
            continue
        verdict.reported.append(phrase)
        verdict.evaluate_anew |= _evaluation_depends(key)
    for package in sorted({*old.versions, *new.versions}):
        pair = old.versions.get(package, "absent"), new.versions.get(package, "absent")
        if pair[0] != pair[1]:
            verdict.reported.append(f"version of {package} {pair[0]} -> {pair[1]}")
    return verdict


def _changes(old: Fingerprint, new: Fingerprint) -> dict[str, tuple[Any, Any]]:
    """Key -> (old, new) value. A setting that only one of two versions knows is no change, nor is a digest
    that could not be taken.
    """
    found = {}
    for key in new.settings:
        if key in old.settings and key not in PLACES and old.settings[key] != new.settings[key]:
            found[key] = old.settings[key], new.settings[key]
    for key, now in new.contents.items():
        was = old.contents.get(key)
        given = key == MANIFEST or (was is not None and now is not None)
        if given and was != now:
            found[key] = was, now
    return found


def _objection(
    key: str, was: Any, now: Any, new: Fingerprint, states: Mapping[str, StageState]
) -> str | None:
    """Why a change would make a begun stage something else than its settings say; None where it does not."""
    if _within(key, (*HARMLESS, *EVALUATION)):
        return None
    if key == "stages":
        return _reordered(was, now, states)
    section = key.partition(".")[0]
    users = [USED_BY[section]] if section in USED_BY else list(states)
    begun = {name: states[name] for name in users if name in states and states[name].begun}
    if section == "hardware":
        begun = {name: state for name, state in begun.items() if not state.complete}
    if key == "grpo.steps" and begun:
        return _other_length(now, new, begun["grpo"])
    for name, state in begun.items():
        return f"stage {name} is {state}"
    return None


def _other_length(steps: int, new: Fingerprint, state: StageState) -> str | None:
    """Objections to another number of GRPO steps."""
    if state.complete:
        return "stage grpo is complete"
    if new.settings.get("grpo.schedule") == "linear":
        return f"the learning rates of the {state.batches} steps done depend on it (grpo.schedule=linear)"
    if steps < state.batches:
        return f"{state.batches} steps are done; at least so many remain"
    return None


def _reordered(was: list[str], now: list[str], states: Mapping[str, StageState]) -> str | None:
    """A begun stage needs the same stages before it, since it starts from their policy."""
    for name, state in states.items():
        if (
            state.begun
            and name in was
            and name in now
            and was[: was.index(name) + 1] != now[: now.index(name) + 1]
        ):
            return f"stage {name}, which is {state}, began from the policy of the stages before it"
    return None


def _evaluation_depends(key: str) -> bool:
    """Whether evaluations that are done hold no longer. New policies to evaluate only add to them; other
    sizes of the splits show in the digest of the tasks.
    """
    if _within(key, (*HARMLESS, "evaluation.policies", "domain.val", "domain.test", "hardware", "stages")):
        return False
    section = key.partition(".")[0]
    return section == "sampler" or section not in USED_BY


def _within(key: str, names: Sequence[str]) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in names)


def _known(old: Mapping[str, str | None], new: Mapping[str, str | None]) -> dict[str, str | None]:
    """Digests that could not be taken this time stay as they were."""
    return {key: old.get(key) if now is None and key != MANIFEST else now for key, now in new.items()}


def _short(value: Any) -> str:
    """A value in a message; digests by their beginning."""
    if value is None:
        return "null"
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text[:12] if len(text) == 64 and set(text) <= set("0123456789abcdef") else text


def _refusal(folder: Path, refused: Sequence[str]) -> str:
    more = f"; and {len(refused) - _LISTED} more" if len(refused) > _LISTED else ""
    return (
        f"cannot go on with {folder}: {'; '.join(refused[:_LISTED])}{more}; keep the old values, or start a "
        "run folder of its own (without resume=)"
    )
