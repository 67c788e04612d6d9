"""Lines of the episode log: which episodes, what a line tells, what a reader takes."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from typing import get_type_hints

import pytest

from robustops.errors import ConfigError
from robustops.monitor.episodes import ENDED_BY, choose, episode_row, read_episodes, to_line
from robustops.records import (
    Episode,
    EpisodeError,
    Group,
    RewardParts,
    ToolCall,
    ToolResult,
    Turn,
    text_digest,
)


def episode(**changes) -> Episode:
    said = text_digest("7")
    turns = (
        Turn("add 3 4", ToolCall("add", {"a": 3, "b": 4}), ToolResult("7"), 2, 4, said=said),
        Turn("add 1 1", ToolCall("add", {"a": 1, "b": 1}), ToolResult("9", is_error=True), 5, 6, said=said),
        Turn("done", None, None, 6, 7),
    )
    mask = (False, False, True, True, False, True, True)
    values = {
        "case_id": "case/oracle",
        "condition": "clean",
        "index": 1,
        "token_ids": (9, 8, 7, 6, 5, 4, 3),
        "loss_mask": mask,
        "old_log_probs": (0.0,) * 7,
        "turns": turns,
        "inherited_turns": 0,
        "stop": "final_answer",
        "checks_start": (False,),
        "checks_final": (True,),
        "reward_parts": RewardParts(1.0, 0.5, 0.25),
        "weight_version": 4,
    }
    return Episode(**{**values, **changes})


def groups(count: int, size: int) -> list[Group]:
    return [Group("case/oracle", "clean", (episode(),) * size) for _ in range(count)]


def test_a_line_tells_what_happened_and_holds_no_text():
    group = Group("case/oracle", "clean", (episode(stop="malformed"), episode()))
    row = episode_row(3, (2, 1), group, 0.5, trained=True)
    assert row["tokens"] == [7, 6, 4, 3] and row["length"] == 4
    assert row["reward"] == {"success": 1.0, "progress": 0.5, "quality": 0.25}
    assert row["tools"] == [
        {"tool": "add", "error": False, "intact": True},
        {"tool": "add", "error": True, "intact": False},
    ]
    assert (row["step"], row["group"], row["member"], row["weight_version"]) == (3, 2, 1, 4)
    assert (row["stop"], row["ended_by"], row["advantage"], row["trained"]) == (
        *("final_answer", "policy"),
        *(0.5, True),
    )
    assert "done" not in to_line(row) and json.loads(to_line(row)) == row


def test_an_invalid_episode_was_ended_by_the_infrastructure():
    broken = episode(stop="error", error=EpisodeError("sampler", "gone"), reward_parts=None, checks_final=())
    row = episode_row(1, (0, 0), Group("case/oracle", "clean", (broken,)), None, trained=False)
    assert row["ended_by"] == "infrastructure" and row["reward"] is None and row["advantage"] is None


def test_every_way_to_stop_has_somebody_who_did_it():
    ways = "final_answer | max_turns | context | answer_budget | malformed | error"
    assert ways in " ".join((Episode.__doc__ or "").split())
    assert set(ENDED_BY) == set(ways.split(" | ")) and "stop" in get_type_hints(Episode)


def test_an_advantage_that_is_not_finite_is_a_text():
    row = episode_row(1, (0, 0), groups(1, 1)[0], float("inf"), trained=True)
    assert json.loads(to_line(row))["advantage"] == "inf"


def test_the_choice_depends_on_seed_and_step_only_and_is_even():
    sampled = groups(8, 8)
    assert choose(sampled, 8, 1, 5) == choose(sampled, 8, 1, 5) != choose(sampled, 8, 1, 6)
    assert choose(sampled, 8, 1, 5) != choose(sampled, 8, 2, 5)
    assert choose(groups(2, 3), 99, 1, 1) == [(g, m) for g in range(2) for m in range(3)]
    counts = Counter(place for step in range(800) for place in choose(sampled, 8, 0, step))
    assert len(counts) == 64 and sum(counts.values()) == 6400
    # 100 each are expected, with a deviation of sqrt(800 * 1/8 * 7/8) = 9.4
    assert all(55 < count < 145 for count in counts.values())


def test_a_torn_last_line_is_left_out_and_another_file_refused(tmp_path):
    path = tmp_path / "episodes.jsonl"
    assert read_episodes(path) == []
    row = episode_row(1, (0, 0), groups(1, 1)[0], 0.5, trained=True)
    path.write_text(to_line(row) + to_line(row)[:40])
    assert read_episodes(path) == [row]
    path.write_text('{"step": 1}\n')
    with pytest.raises(ConfigError, match="line 1 is no episode"):
        read_episodes(path)


def test_episodes_are_told_apart_by_their_digest():
    one = episode_row(1, (0, 0), groups(1, 1)[0], None, trained=False)
    other = dataclasses.replace(episode().turns[0], said=text_digest("8"))
    changed = episode(turns=(other, *episode().turns[1:]))
    two = episode_row(1, (0, 0), Group("c", "clean", (changed,)), None, trained=False)
    assert one["obs_sha"] != two["obs_sha"] and len(one["obs_sha"]) == 16
