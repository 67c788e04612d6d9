"""`episodes.jsonl`: a few of each step's episodes, one line an episode, for a look at what a number hides.

    {"step":3,"case_id":"a/oracle","condition":"clean","group":2,"member":5,"weight_version":4,"trained":true,
     "advantage":0.77,"reward":{"success":1.0,"progress":1.0,"quality":1.0},"length":21,"tokens":[5,9],
     "stop":"final_answer","ended_by":"policy","tools":[{"tool":"add","error":false,"intact":true}],
     "obs_sha":"7d0c..."}

group, member: places among the groups sampled in the step and in the group; advantage: normalised, before
local credit, null where the episode was not trained on, a text ("nan", "inf") where it is not finite; tokens:
ids that the policy wrote, length: how many; tools: replies in order, intact false where a reply is not what
the world said; obs_sha: digest of what the world said. No text: ids and digests only. A run writes it where
`monitor.episodes` > 0.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from robustops.errors import ConfigError
from robustops.monitor.rollouts import observation_digest
from robustops.records import Episode, Group
from robustops.records import text_digest as digest
from robustops.seeding import generator

NAME = "episodes.jsonl"

#: Whose doing ends an episode: `Episode.stop` -> policy | environment | infrastructure. An environment that
#: ends an episode early says max_turns as well.
ENDED_BY = {
    "final_answer": "policy",
    "malformed": "policy",
    "answer_budget": "policy",
    "context": "policy",
    "max_turns": "environment",
    "error": "infrastructure",
}


def choose(groups: Sequence[Group], count: int, seed: int, step: int) -> list[tuple[int, int]]:
    """Places (group, member) of at most `count` of a step's episodes, in order; each is as likely."""
    places = [(g, m) for g, group in enumerate(groups) for m in range(len(group.episodes))]
    return sorted(generator(seed, "episode log", step).sample(places, min(count, len(places))))


def episode_row(
    step: int, place: tuple[int, int], group: Group, advantage: float | None, *, trained: bool
) -> dict[str, Any]:
    """The line of one episode; see the module."""
    episode = group.episodes[place[1]]
    parts = episode.reward_parts
    tokens = [i for i, own in zip(episode.token_ids, episode.loss_mask, strict=True) if own]
    return {
        "step": step,
        "case_id": episode.case_id,
        "condition": episode.condition,
        "group": place[0],
        "member": place[1],
        "weight_version": episode.weight_version,
        "trained": trained,
        "advantage": advantage if advantage is None or math.isfinite(advantage) else str(advantage),
        "reward": None if parts is None else parts.to_dict(),
        "length": len(tokens),
        "tokens": tokens,
        "stop": episode.stop,
        "ended_by": "infrastructure" if episode.error is not None else ENDED_BY[episode.stop],
        "tools": _tools(episode),
        "obs_sha": observation_digest([Group(episode.case_id, episode.condition, (episode,))]),
    }


def read_episodes(path: Path) -> list[dict[str, Any]]:
    """All complete lines; [] where there is no such file. ConfigError for a file of another kind."""
    if not path.is_file():
        return []
    found = []
    lines = path.read_text(encoding="utf-8").split("\n")
    for number, line in enumerate(lines[:-1], start=1):  # what follows the last newline is torn
        try:
            row = json.loads(line)
            found.append({**row, "step": int(row["step"]), "ended_by": str(row["ended_by"])})
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path} line {number} is no episode; is it another file?") from error
    return found


def to_line(row: dict[str, Any]) -> str:
    """One JSON line with its newline."""
    return json.dumps(row, separators=(",", ":"), allow_nan=False) + "\n"


def _tools(episode: Episode) -> list[dict[str, Any]]:
    return [
        {
            "tool": turn.call.name,
            "error": turn.result.is_error,
            "intact": turn.said is None or turn.said == digest(turn.result.text),
        }
        for turn in episode.own_turns
        if turn.call is not None and turn.result is not None
    ]
