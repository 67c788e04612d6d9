"""Telemetry of what a step has sampled (scope `sampled` of the schema), from episodes alone.

Valid episodes of all sampled groups, before any group was filtered out. Group quantities are over groups of
at least two valid episodes.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence

from robustops.monitor.moments import deviation, mean, pearson, share
from robustops.monitor.schema import COMPONENTS
from robustops.records import CUT_OFF, Episode, Group, ToolResult, Turn, text_digest
from robustops.rewards.combine import RewardWeights, total

#: Rewards of a group that deviate less are equal.
SILENT = 1e-8


def rollout_statistics(
    groups: Sequence[Group],
    weights: RewardWeights | None = None,
    *,
    max_turns: int,
    policy_version: int,
) -> dict[str, float]:
    """All quantities of scope `sampled`.

    weights: of the reward parts (default: those of the source); max_turns: an episode's limit, inherited
    turns included; policy_version: updates behind the weights that are about to be trained.
    """
    members = [[e for e in group.episodes if e.error is None] for group in groups]
    episodes = [episode for group in members for episode in group]
    compared = [group for group in members if len(group) > 1]
    return {
        **reward_statistics(episodes, compared, weights or RewardWeights()),
        **generation_statistics(episodes, compared),
        **turn_statistics(episodes, max_turns),
        **tool_statistics(episodes),
        **lag_statistics(episodes, policy_version),
    }


def reward_statistics(
    episodes: Sequence[Episode], groups: Sequence[Sequence[Episode]], weights: RewardWeights
) -> dict[str, float]:
    """Rewards over episodes and within groups, beside the success that the state checks tell."""
    rated = [e for e in episodes if e.reward_parts is not None]
    rewards, success = _rewards(rated, weights), [float(e.success) for e in rated]
    numbers = {
        "reward_mean": mean(rewards),
        "reward_std": deviation(rewards),
        "reward_min": min(rewards, default=math.nan),
        "reward_max": max(rewards, default=math.nan),
    }
    for name in COMPONENTS:
        part = [float(getattr(e.reward_parts, name)) for e in rated]
        numbers[f"rewards.{name}.mean"] = mean(part)
        numbers[f"rewards.{name}.std"] = deviation(part)
    spread = [s for group in groups if not math.isnan(s := deviation(_rewards(group, weights)))]
    flawless = weights.success + weights.progress + weights.quality
    return numbers | {
        "success_mean": mean(success),
        "reward_success_gap": share(mean(rewards), flawless) - mean(success),
        "reward_success_corr": pearson(rewards, success),
        "group_reward_std_mean": mean(spread),
        "zero_signal_frac": mean([float(value < SILENT) for value in spread]),
    }


def generation_statistics(
    episodes: Sequence[Episode], groups: Sequence[Sequence[Episode]]
) -> dict[str, float]:
    """Lengths, ways to end, repetition and variety of what the policy wrote."""
    lengths = [sum(e.loss_mask) for e in episodes]
    texts = [[tuple(turn.text for turn in e.own_turns) for e in group] for group in groups]
    return {
        "len_mean": mean(lengths),
        "len_std": deviation(lengths),
        "len_min": min(lengths, default=math.nan),
        "len_max": max(lengths, default=math.nan),
        "trunc_frac": mean([float(e.stop in CUT_OFF) for e in episodes]),
        "empty_frac": mean([float(not any(t.text.strip() for t in e.own_turns)) for e in episodes]),
        "rep4": 1 - mean(_distinct(episodes, 4)),
        "distinct2": mean(_distinct(episodes, 2)),
        "group_unique_frac": mean([len(set(group)) / len(group) for group in texts]),
    }


def turn_statistics(episodes: Sequence[Episode], max_turns: int) -> dict[str, float]:
    """How many messages, and who ended the episode."""
    turns = [len(e.own_turns) for e in episodes]
    cut = [e.stop not in CUT_OFF | {"final_answer"} and len(e.turns) < max_turns for e in episodes]
    return {
        "turns_mean": mean(turns),
        "turns_max": max(turns, default=math.nan),
        "early_term_frac": mean([float(early) for early in cut]),
        "no_answer_frac": mean([float(e.stop != "final_answer") for e in episodes]),
    }


def tool_statistics(episodes: Sequence[Episode]) -> dict[str, float]:
    """Calls, their errors, and the replies: how long, and whether they are what the worlds said."""
    replied = list(_replies(episodes))
    calls = len(replied)
    unreadable = sum(t.call is None and t.result is not None for e in episodes for t in e.own_turns)
    lengths = [len(result.text) for _, result in replied]
    told = [(turn, result) for turn, result in replied if turn.said is not None]
    return {
        "tool_calls_mean": share(calls, len(episodes)),
        "tool_error_frac": share(sum(result.is_error for _, result in replied), calls),
        "invalid_call_frac": share(unreadable, calls + unreadable),
        "obs_len_mean": mean(lengths),
        "obs_len_std": deviation(lengths),
        "obs_roundtrip_mismatch_frac": share(
            sum(turn.said != text_digest(result.text) for turn, result in told), len(told)
        ),
    }


def lag_statistics(episodes: Sequence[Episode], policy_version: int) -> dict[str, float]:
    """Age of the weights that sampled, in optimiser updates."""
    lags = [policy_version - e.weight_version for e in episodes]
    return {"policy_lag_mean": mean(lags), "policy_lag_max": max(lags, default=math.nan)}


def observation_digest(groups: Sequence[Group]) -> str:
    """16 hex digits over what the worlds replied to the valid episodes, in order."""
    told = hashlib.sha256()
    for group in groups:
        for turn, _ in _replies([e for e in group.episodes if e.error is None]):
            told.update((turn.said or "").encode() + b"\n")
    return told.hexdigest()[:16]


def _replies(episodes: Sequence[Episode]) -> Iterator[tuple[Turn, ToolResult]]:
    """The episodes' own calls that got a reply."""
    for episode in episodes:
        for turn in episode.own_turns:
            if turn.call is not None and turn.result is not None:
                yield turn, turn.result


def _rewards(episodes: Sequence[Episode], weights: RewardWeights) -> list[float]:
    return [total(e.reward_parts, weights) for e in episodes if e.reward_parts is not None]


def _distinct(episodes: Sequence[Episode], n: int) -> list[float]:
    """Different / all n-grams of tokens within messages, of the episodes that have any."""
    shares = []
    for episode in episodes:
        grams: list[tuple[int, ...]] = []
        for turn in episode.own_turns:
            ids = episode.token_ids[turn.start : turn.end]
            grams += zip(*(ids[start:] for start in range(n)), strict=False)
        if grams:
            shares.append(len(set(grams)) / len(grams))
    return shares
