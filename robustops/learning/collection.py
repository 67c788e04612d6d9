"""Collect demonstrations from the scripted expert or an endpoint, and export them as SFT data."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from robustops.faults.manifest import build_manifest
from robustops.files import atomic_write_text
from robustops.learning.demonstrations import collect_episodes, demonstration_starts
from robustops.learning.progress import progress
from robustops.learning.run import BASE, Run
from robustops.records import Episode, Task, canonical_json
from robustops.rewards.parts import bad_turns
from robustops.seeding import child_seed, generator
from robustops.settings import CollectSettings


def run_collection(settings: CollectSettings, run_dir: Path, config: dict[str, Any]) -> dict[str, Any]:
    """Run the sampler on cases of a split; write successful episodes, one JSON object a line.

    Returns counts and the file. Episodes of all outcomes are in run.db under the stage `collect`.
    """
    with Run(settings, run_dir, config) as run:
        policy = run.load(BASE)
        cases = _cases(run, settings)
        seed = child_seed(settings.seed, "collect")
        manifest = None
        if settings.fault.subtypes and settings.fault_share > 0:
            manifest = build_manifest(cases, run.domains, settings.fault.subtypes, seed, settings.fault.caps)
        starts = [
            start
            for attempt in range(settings.attempts)
            for start in demonstration_starts(
                cases, manifest, settings.fault_share, child_seed(seed, attempt), index=attempt
            )
        ]
        collector = run.collector(policy, run.samplers.of(policy))
        with progress(run.console, "collect", len(starts), enabled=settings.progress) as done:
            episodes = collect_episodes(collector, starts, done)
        collector.close()
        run.store.truncate("collect", -1)
        run.store.add_episodes("collect", 0, episodes, policy=settings.sampler.name)
        kept = [
            (start.task, episode)
            for start, episode in zip(starts, episodes, strict=True)
            if episode.success and episode.stop == "final_answer"
        ]
        out = run_dir / settings.out
        atomic_write_text(out, "".join(canonical_json(sft_record(t, e)) + "\n" for t, e in kept))
        return {
            "out": str(out),
            "episodes": len(episodes),
            "exported": len(kept),
            "conditions": dict(Counter(episode.condition for _, episode in kept)),
            "invalid": dict(Counter(e.error.boundary for e in episodes if e.error is not None)),
        }


def sft_record(task: Task, episode: Episode) -> dict[str, Any]:
    """One exported demonstration: messages with a loss flag each, and the tokens with their mask.

    An assistant message is trained unless its call is confirmed as bad (`rewards.parts.bad_turns`).
    """
    bad = bad_turns(episode)
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": task.policy, "train": False},
        {"role": "user", "content": task.prompt, "train": False},
    ]
    mask = list(episode.loss_mask)
    for turn, is_bad in zip(episode.turns, bad, strict=True):
        messages.append({"role": "assistant", "content": turn.text, "train": not is_bad})
        if is_bad:
            mask[turn.start : turn.end] = [False] * (turn.end - turn.start)
        if turn.result is not None:
            messages.append({"role": "tool", "content": turn.result.text, "train": False})
    return {
        "case_id": episode.case_id,
        "condition": episode.condition,
        "tools": list(task.allowed_tools),
        "faults": [fault.to_dict() for fault in episode.faults],
        "messages": messages,
        "token_ids": list(episode.token_ids),
        "loss_mask": mask,
    }


def _cases(run: Run, settings: CollectSettings) -> list[Task]:
    cases = list(run.cases(settings.split))
    generator(child_seed(settings.seed, "collect"), "order").shuffle(cases)
    return cases[: settings.tasks]
