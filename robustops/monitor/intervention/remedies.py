"""What to try against each type of run fault, best first: the table behind the `rules` planner.

A remedy is one attempt: one or two knobs of a family. `Scale` is a factor on the present value, other entries
are values. signals: columns whose evidence speaks for this remedy among those of its type; unless: columns
whose evidence speaks for another one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from robustops.monitor.intervention.actions import KNOBS, Change, Settings, same


@dataclass(frozen=True)
class Scale:
    """A factor on the present value of a setting."""

    factor: float


@dataclass(frozen=True)
class Remedy:
    """why: in words, for the journal; knobs: key -> value or `Scale`; signals: see above."""

    why: str
    knobs: tuple[tuple[str, Any], ...]
    signals: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()

    def place(self, columns: Sequence[str]) -> int:
        """Of the first column that speaks for it; that behind the last one where none does."""
        spoken = [place for place, column in enumerate(columns) if column in self.signals]
        return min(spoken) if spoken and not set(columns).intersection(self.unless) else len(columns)

    def changes(self, settings: Settings) -> tuple[Change, ...]:
        """As changes of these settings; knobs that are turned already, or do nothing, are left out."""
        found = []
        for key, value in self.knobs:
            if isinstance(value, Scale):
                now = settings.get(key)
                value = KNOBS[key].scaled(now, value.factor) if now else now
            if any(same(value, option.value) for option in KNOBS[key].options(settings)):
                found.append(Change(key, value))
        return tuple(found)


def _do(
    why: str, *knobs: tuple[str, Any], signals: tuple[str, ...] = (), unless: tuple[str, ...] = ()
) -> Remedy:
    return Remedy(why, knobs, signals, unless)


_WINSORISE, _NO_PROGRESS = ("reward.bounded", True), ("reward.progress", 0.0)
_RECHECK = ("reward.recheck", True)
_MUCH_SLOWER = ("grpo.learning_rate", Scale(0.1))
_LEARNED = _do(
    "reward parts are computed again, and held to their ranges: one of them may pay for it",
    _RECHECK,
    _WINSORISE,
    signals=("rewards.progress.mean", "rewards.progress.std"),
)

REMEDIES: dict[str, tuple[Remedy, ...]] = {
    "reward_spike": (
        _do("reward parts are computed again, and held to their ranges", _RECHECK, _WINSORISE),
        _do("parts are held to their ranges, that without a verifier is left out", _WINSORISE, _NO_PROGRESS),
        _do("only verified success is paid for", _NO_PROGRESS, ("reward.quality", 0.0)),
    ),
    "reward_collapse": (
        _do("reward parts are computed again", _RECHECK),
        _do("only success that is read off again is paid for", _RECHECK, _NO_PROGRESS),
    ),
    "reward_hacking": (
        _do("reward parts are computed again", _RECHECK),
        _do("the part that is gamed is left out", _NO_PROGRESS, signals=("rewards.progress.mean",)),
        _do("both", _NO_PROGRESS, _RECHECK),
    ),
    "empty_response": (
        # A floor above the shortest sound message, which may be a one-token answer, does harm of its own.
        _do("a message has at least one token", ("sampler.min_new_tokens", 1)),
        _LEARNED,
        _do("a message has at least a few tokens", ("sampler.min_new_tokens", 8)),
    ),
    "repetition_collapse": (
        _do("repeated tokens are made less likely", ("sampler.repetition_penalty", 2.0)),
        _do(
            "cut-off messages are short and teach nothing",
            ("grpo.overlong", "mask"),
            ("model.answer_tokens", Scale(0.5)),
            signals=("trunc_frac", "len_max"),
        ),
        _LEARNED,
        _do("repeated tokens are made unlikely", ("sampler.repetition_penalty", 20.0)),
    ),
    "length_short": (
        _do("a message has at least a few tokens", ("sampler.min_new_tokens", 8)),
        _do(
            "a message may have twice as many tokens",
            ("model.answer_tokens", Scale(2.0)),
            signals=("trunc_frac", "no_answer_frac"),
        ),
        _LEARNED,
    ),
    "length_long": (
        _do(
            "cut-off messages are short and teach nothing",
            ("grpo.overlong", "mask"),
            ("model.answer_tokens", Scale(0.5)),
        ),
        _LEARNED,
        _do("the budget of a message is cut", ("model.answer_tokens", Scale(0.25))),
    ),
    "kl_explosion": (
        # Not smaller ones as well: with the cause gone, that would only look like the next failure.
        _do("updates are those of the schedule", ("grpo.whole_updates", True), signals=("update_norm_rel",)),
        # Where a KL term drives the policy away, updates keep the size that their rate gives them.
        _do("no KL term", ("grpo.kl", 0.0), signals=("kl_ref_k3", "kl_ref_k1"), unless=("update_norm_rel",)),
        _do(
            "much smaller updates of clipped gradients",
            _MUCH_SLOWER,
            ("grpo.grad_clip", 0.3),
            signals=("grad_norm",),
        ),
    ),
    "update_freeze": (
        _do("updates are made whole, at the schedule's rate", ("grpo.whole_updates", True)),
        _do(
            "the sampler is given its weights again",
            ("grpo.sync_guard", "resync"),
            signals=("policy_lag_max", "policy_lag_mean", "samp_logp_absdiff_max", "samp_logp_absdiff_mean"),
        ),
        _do("larger updates", ("grpo.learning_rate", Scale(3.0))),
    ),
    "entropy_collapse": (
        # From small to large: a bonus beyond the penalty makes a policy random within a few steps.
        _do("a small entropy bonus", ("grpo.entropy", 0.05)),
        _do(
            "sampling at a higher temperature",
            ("sampler.temperature", Scale(1.5)),
            signals=("samp_logp_absdiff_max", "samp_logp_absdiff_mean", "is_ratio_ess"),
        ),
        _do("an entropy bonus", ("grpo.entropy", 0.3)),
        _do("a large entropy bonus", ("grpo.entropy", 2.0)),
    ),
    "value_mismatch": (
        _do(
            "values of the head are not believed", ("grpo.value_least_ev", 1.5), signals=("vf_loss", "vf_ev")
        ),
        _do(
            "groups are read off the episodes, their means subtracted",
            ("grpo.regroup", True),
            ("grpo.advantage_guard", "centre"),
        ),
        _do("the mean of the others is the baseline", ("grpo.baseline", "leave_one_out")),
    ),
    "advantage_instability": (
        _do("advantages are computed anew from the rewards", ("grpo.advantage_guard", "recompute")),
        _do(
            "advantages agree in sign with rewards and are clipped",
            ("grpo.advantage_guard", "consistent"),
            ("grpo.advantage_clip", 1.0),
        ),
        _do(
            "small deviations are floored, advantages clipped",
            ("grpo.std_floor", 0.1),
            ("grpo.advantage_clip", 1.0),
        ),
    ),
    "delayed_credit": (
        _do(
            "advantages are computed anew from the rewards, for all of an episode",
            ("grpo.advantage_guard", "recompute"),
            ("grpo.even_credit", True),
        ),
        _do(
            "reward parts are computed again for each episode",
            _RECHECK,
            signals=("reward_success_corr", "reward_success_gap"),
        ),
    ),
    "tool_call_error": (
        _do(
            "refused calls are made again, readable ones read again",
            ("domain.tool_retries", 2),
            ("domain.reread_calls", True),
        ),
        _do("refused calls are made again more often", ("domain.tool_retries", 5)),
    ),
    "observation_corruption": (
        _do(
            "replies are checked by their digest and fetched again",
            ("domain.check_replies", True),
            ("domain.tool_retries", 2),
        ),
    ),
    "termination_error": (
        _do(
            "an episode ends with its answer, not before",
            ("model.min_turns", 99),
            ("model.max_answers", 1),
        ),
        _do("more turns", ("model.max_turns", Scale(2.0))),
    ),
}


def ranked(kind: str, columns: Sequence[str]) -> list[Remedy]:
    """The remedies of a type, those first that the evidence speaks for. columns: of the evidence, the first
    mover first.
    """
    return sorted(REMEDIES.get(kind, ()), key=lambda remedy: remedy.place(columns))
