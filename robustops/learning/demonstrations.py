"""Demonstrations for SFT: the scripted expert's successful episodes, clean and with tool faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from robustops.errors import TrainingError
from robustops.faults.manifest import Manifest
from robustops.learning.data import Demonstration, demonstration
from robustops.records import Episode, Task
from robustops.rewards.parts import bad_turns, rewarded
from robustops.rollout.collector import Collector
from robustops.rollout.episode import EpisodeRun, EpisodeStart
from robustops.seeding import generator


def demonstration_starts(
    tasks: Sequence[Task], manifest: Manifest | None, fault_share: float, seed: int, index: int = 0
) -> list[EpisodeStart]:
    """One start a case; about `fault_share` of those that the manifest assigns a fault meet it."""
    starts = []
    for task in tasks:
        rng = generator(seed, "demonstration", task.case_id)
        plan = manifest.plan(task.case_id) if manifest is not None else None
        if rng.random() >= fault_share:
            plan = None
        condition = "clean" if plan is None else "fault"
        starts.append(EpisodeStart(task, condition, index, rng.getrandbits(62), plan))
    return starts


def collect_episodes(
    collector: Collector,
    starts: Sequence[EpisodeStart],
    on_done: Callable[[EpisodeRun], None] | None = None,
) -> list[Episode]:
    """Finished episodes with raw reward parts, in the order of the starts; invalid ones keep their error."""
    runs = collector.run(starts, on_done)
    return [
        rewarded(start.task, run.episode)
        for start, run in zip(starts, runs, strict=True)
        if run.episode is not None
    ]


def to_demonstrations(episodes: Sequence[Episode]) -> list[Demonstration]:
    """Successful episodes that ended with an answer; their bad calls get no loss (RobustOps, SFT masks)."""
    chosen = [
        demonstration(episode, [not bad for bad in bad_turns(episode)])
        for episode in episodes
        if episode.success and episode.stop == "final_answer"
    ]
    if not chosen:
        ends = Counter(e.stop or "error" for e in episodes)
        counts = ", ".join(f"{stop} {count}" for stop, count in ends.most_common())
        raise TrainingError(
            f"none of {len(episodes)} demonstrations was successful (how they ended: {counts}); give "
            "episodes more room with model.context_tokens, model.answer_tokens or model.max_turns, or "
            "check the expert with: robustops tasks verify=true"
        )
    return chosen
