"""Local credit: an episode's advantage laid on its tokens, with caps on marked spans (RobustOps).

    bad calls and no-progress repeated reads:   A' = min(A, -0.5)
    native stop span of a failed episode:       A' = min(A, 0)
    message cut off at its token budget:        A' = min(A, 0)

The last rule is not the source's: a message that never ended did no work, and would otherwise be
reinforced wherever the episode had got further than its group. Every other token keeps the episode's
advantage. The source also mentions a temporal allocation of quality credit without stating it; here the
quality part is spread evenly, like the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from robustops.errors import TrainingError
from robustops.records import Episode


@dataclass(frozen=True)
class LocalCredit:
    """The two caps; None switches one off. bad_cap: on bad turns; stop_cap: on failed endings."""

    bad_cap: float | None = -0.5
    stop_cap: float | None = 0.0


def failed_ending(episode: Episode) -> tuple[int, int] | None:
    """Span of the message that ended a failed episode: the agent's own stop, or one cut off at its
    budget. None for a success, and where the number of turns or the context ended it.
    """
    if episode.success or episode.stop not in ("final_answer", "answer_budget") or not episode.own_turns:
        return None
    return episode.turns[-1].start, episode.turns[-1].end


def token_advantages(
    advantage: float, episode: Episode, bad: Sequence[bool], rule: LocalCredit | None = None
) -> Tensor:
    """(tokens,) float32 advantages of one episode: 0 where `loss_mask` is False.

    Args:
        advantage: the episode's advantage after normalisation.
        episode: gives the tokens, the turns' spans and how it ended.
        bad: one bool a turn (`rewards.parts.bad_turns`, which includes repeated reads).
        rule: the caps.

    Raises:
        TrainingError: `bad` does not fit the turns, or a capped span lies outside the tokens.
    """
    rule = rule or LocalCredit()
    if len(bad) != len(episode.turns):
        raise TrainingError(f"{len(bad)} bad-turn flags for {len(episode.turns)} turns of {episode.case_id}")
    values = torch.full((len(episode.token_ids),), float(advantage))
    if rule.bad_cap is not None:
        for turn, is_bad in zip(episode.turns, bad, strict=True):
            if is_bad:
                _cap(values, (turn.start, turn.end), rule.bad_cap, episode)
    ending = failed_ending(episode)
    if rule.stop_cap is not None and ending is not None:
        _cap(values, ending, rule.stop_cap, episode)
    mask = torch.tensor(episode.loss_mask, dtype=torch.bool)
    return torch.where(mask, values, torch.zeros_like(values))


def spread(
    advantages: Tensor | Sequence[float],
    episodes: Sequence[Episode],
    bad: Sequence[Sequence[bool]],
    rule: LocalCredit | None = None,
) -> list[Tensor]:
    """`token_advantages` of every episode, in order; lengths differ from episode to episode."""
    numbers = advantages.tolist() if isinstance(advantages, Tensor) else list(advantages)
    if not len(numbers) == len(episodes) == len(bad):
        raise TrainingError(
            f"{len(numbers)} advantages, {len(episodes)} episodes, {len(bad)} bad-turn rows: "
            "give one of each an episode"
        )
    return [token_advantages(a, e, b, rule) for a, e, b in zip(numbers, episodes, bad, strict=True)]


def _cap(values: Tensor, span: tuple[int, int], cap: float, episode: Episode) -> None:
    start, end = span
    if not 0 <= start < end <= len(values):
        raise TrainingError(
            f"turn span {start}:{end} of {episode.case_id} lies outside its {len(values)} tokens; "
            "spans must index Episode.token_ids"
        )
    values[start:end].clamp_(max=cap)
