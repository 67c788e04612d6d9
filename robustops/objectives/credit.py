"""Local credit: an episode's advantage laid on its tokens, with caps on marked spans (RobustOps).

    bad calls and no-progress repeated reads:   A' = min(A, -0.5)
    native stop span of a failed episode:       A' = min(A, 0)
    message cut off at its token budget:        A' = min(A, 0)

The last rule is not the source's: a message that never ended did no work, and would otherwise be
reinforced wherever the episode had got further than its group.

Before the caps every token has the episode's advantage, except for the share that quality brought in. The
source allocates that share over time without saying how. Here a message is credited with the calls that it
can still have influenced, its own and later ones: where quality was worse than the group's, tokens get
shares in proportion to the bad calls still to come; where it was better, to the good ones. The mean over
the episode's tokens stays what it was. `uniform` spreads the share evenly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from robustops.errors import TrainingError
from robustops.objectives.advantages import Advantages
from robustops.records import Episode
from robustops.rewards.parts import CallEvidence

QualityCredit = Literal["to_go", "uniform"]


@dataclass(frozen=True)
class LocalCredit:
    """The caps; None switches one off. bad_cap: on bad calls; stop_cap: on the stop of a failed episode;
    cut_cap: on a message cut off at its budget; quality: how the quality share is spread.
    """

    bad_cap: float | None = -0.5
    stop_cap: float | None = 0.0
    cut_cap: float | None = 0.0
    quality: QualityCredit = "to_go"


#: The advantage evenly on all tokens.
NO_LOCAL_CREDIT = LocalCredit(None, None, None, "uniform")


def quality_weights(episode: Episode, evidence: CallEvidence, *, better: bool) -> Tensor:
    """(tokens,) float32 weights of the quality share, of mean 1 over the trained tokens, 0 elsewhere.

    A message weighs as many calls as still follow from it, itself included: good attempts where the
    episode's quality was `better` than its group's, bad ones otherwise. Even where there is no such call.
    """
    mask = torch.tensor(episode.loss_mask, dtype=torch.bool)
    weights, to_go = torch.zeros(len(mask)), 0
    flags = zip(episode.turns, evidence.attempted, evidence.bad, strict=True)
    for turn, attempted, bad in reversed(list(flags)):
        to_go += attempted and bad != better
        weights[turn.start : turn.end] = to_go
    weights = torch.where(mask, weights, 0.0)
    if weights.sum() == 0:
        return mask.float()
    return weights * (mask.sum() / weights.sum())


def token_advantages(
    advantage: float,
    episode: Episode,
    evidence: CallEvidence,
    rule: LocalCredit | None = None,
    *,
    quality: float = 0.0,
) -> Tensor:
    """(tokens,) float32 advantages of one episode: 0 where `loss_mask` is False.

    Args:
        advantage: the episode's advantage after normalisation.
        episode: gives the tokens, the turns' spans and how it ended.
        evidence: of its calls (`rewards.parts.call_evidence`).
        rule: caps and quality credit.
        quality: the share of `advantage` that quality has brought in.

    Raises:
        TrainingError: the evidence does not fit the turns, or a span lies outside the tokens.
    """
    rule = rule or LocalCredit()
    if not len(evidence.bad) == len(evidence.attempted) == len(episode.turns):
        raise TrainingError(
            f"evidence of {len(evidence.bad)} turns for {len(episode.turns)} turns of {episode.case_id}"
        )
    for turn in episode.turns:
        if not 0 <= turn.start < turn.end <= len(episode.token_ids):
            raise TrainingError(
                f"turn span {turn.start}:{turn.end} of {episode.case_id} lies outside its "
                f"{len(episode.token_ids)} tokens; spans must index Episode.token_ids"
            )
    values = torch.full((len(episode.token_ids),), float(advantage))
    if rule.quality == "to_go" and quality != 0:
        values += quality * (quality_weights(episode, evidence, better=quality > 0) - 1)
    for start, end, cap in _capped(episode, evidence.bad, rule):
        values[start:end].clamp_(max=cap)
    mask = torch.tensor(episode.loss_mask, dtype=torch.bool)
    return torch.where(mask, values, torch.zeros_like(values))


def spread(
    advantages: Advantages,
    episodes: Sequence[Episode],
    evidence: Sequence[CallEvidence],
    rule: LocalCredit | None = None,
) -> list[Tensor]:
    """`token_advantages` of every episode, in order; lengths differ from episode to episode."""
    values, quality = advantages.values.tolist(), advantages.quality.tolist()
    if not len(values) == len(episodes) == len(evidence):
        raise TrainingError(
            f"{len(values)} advantages, {len(episodes)} episodes, evidence of {len(evidence)}: "
            "give one of each an episode"
        )
    return [
        token_advantages(a, e, c, rule, quality=q)
        for a, q, e, c in zip(values, quality, episodes, evidence, strict=True)
    ]


def _capped(episode: Episode, bad: Sequence[bool], rule: LocalCredit) -> list[tuple[int, int, float]]:
    """Spans with their caps: bad calls, and the message that ended a failed episode."""
    spans = [(t.start, t.end, rule.bad_cap) for t, is_bad in zip(episode.turns, bad, strict=True) if is_bad]
    ending = {"final_answer": rule.stop_cap, "answer_budget": rule.cut_cap}.get(episode.stop)
    if not episode.success and episode.own_turns:
        spans.append((episode.turns[-1].start, episode.turns[-1].end, ending))
    return [(start, end, cap) for start, end, cap in spans if cap is not None]
