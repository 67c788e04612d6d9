"""What the keys of other trainers mean in our schema: one table a source, read from their source code.

A key stands for a column only where both are the same quantity; `scale` and `note` say what differs by a
factor, or in how it is averaged. `column=None`: the key is known and is another quantity, `note` says which.
TRL: trl/trainer/grpo_trainer.py (1.16) and older names; verl: verl/trainer/ppo/{metric_utils,
rollout_corr_helper}.py and workers/actor/dp_actor.py; OpenRLHF: trainer/ray/ppo_actor.py and
ppo_utils/experience_maker.py; ms-swift has TRL's names.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Literal

from robustops.monitor import schema

#: Stands for the column of a KL to the reference whose estimator the log itself does not tell.
KL_REF = "kl_ref_?"
Estimator = Literal["k1", "k3"]

_EVALUATION = re.compile(r"(eval[_/]|validation[_/]|val-|val/(?!clipfrac|ratio|num_eos)|test/)")
_ESTIMATOR_UNKNOWN = (
    "a KL to the reference whose estimator the log does not tell; name it: kl_estimator=k1 or k3"
)
_UNKNOWN = "not in the key map"
_CUT = "importance weights after they were cut; ours are uncut"


@dataclass(frozen=True)
class Entry:
    """One key of a source. key: `*` is a name without `/`, which then stands in `column` too; column: of the
    schema, None: another quantity; note: how it differs, or what it is; scale: column = scale x value.
    """

    key: str
    column: str | None
    note: str = ""
    scale: float = 1.0


_TRL = (
    Entry("reward", "reward_mean"),
    Entry("rewards/*/mean", "rewards.*.mean"),
    Entry("rewards/*/std", "rewards.*.std"),
    Entry("rewards/*", "rewards.*.mean", "name in older versions"),
    # Whether it is over the batch or a mean over groups differs between versions: `assemble.spread` decides.
    Entry("reward_std", None, "deviation over the batch or within groups, by version; the log does not tell"),
    Entry("frac_reward_zero_std", "zero_signal_frac"),
    Entry("kl", "kl_ref_k3", "absent with beta=0"),
    Entry("entropy", "entropy"),
    Entry("entropy/mean", "entropy", "ms-swift"),
    Entry("clip_ratio/region_mean", "clip_frac"),
    Entry("clip_ratio", "clip_frac", "name in older versions"),
    Entry("clip_ratio/low_mean", "clip_low"),
    Entry("clip_ratio/high_mean", "clip_high"),
    Entry("sampling/sampling_logp_difference/mean", "samp_logp_absdiff_mean"),
    Entry("sampling/sampling_logp_difference/max", "samp_logp_absdiff_max"),
    Entry("sampling/importance_sampling_ratio/mean", None, _CUT),
    Entry("sampling/importance_sampling_ratio/max", None, _CUT),
    Entry("sampling/importance_sampling_ratio/min", None, _CUT),
    Entry("grad_norm", "grad_norm"),
    Entry("learning_rate", "lr"),
    Entry("policy_loss", "policy_loss"),
    Entry("loss", None, "policy loss with its KL and entropy terms"),
    Entry("completions/mean_length", "len_mean"),
    Entry("completion_length", "len_mean", "name in older versions"),
    Entry("completions/min_length", "len_min"),
    Entry("completions/max_length", "len_max"),
    Entry("completions/clipped_ratio", "trunc_frac"),
    Entry("tools/call_frequency", "tool_calls_mean"),
    Entry("tools/failure_frequency", "tool_error_frac", "0 where there was no call, which is not observed"),
    # PPOTrainer
    Entry("objective/scores", "reward_mean"),
    Entry("policy/entropy_avg", "entropy"),
    Entry("policy/clipfrac_avg", "clip_frac"),
    Entry("loss/policy_avg", "policy_loss"),
    Entry("lr", "lr"),
    Entry("objective/kl", None, "k1 summed over a sequence, not a mean over tokens"),
    Entry("objective/entropy", None, "entropy summed over a sequence"),
    Entry("policy/approxkl_avg", None, "half the mean squared difference, another estimator"),
)

_VERL = (
    Entry("critic/rewards/mean", "reward_mean", "without responses of length 0"),
    Entry("critic/rewards/max", "reward_max", "without responses of length 0"),
    Entry("critic/rewards/min", "reward_min", "without responses of length 0"),
    Entry("critic/score/mean", "rewards.score.mean", "reward before a KL penalty; stands in for reward_mean"),
    Entry("critic/score/max", "reward_max", "where critic/rewards is absent"),
    Entry("critic/score/min", "reward_min", "where critic/rewards is absent"),
    Entry("critic/advantages/mean", "adv_mean", "over tokens: a long response counts more"),
    Entry("critic/advantages/max", "adv_max"),
    Entry("critic/advantages/min", "adv_min"),
    Entry("critic/returns/*", None, "advantages (GRPO) or lambda returns (GAE), not the rewards"),
    Entry("critic/values/*", None, "values over tokens; the schema has their explained variance"),
    Entry("critic/vf_explained_var", "vf_ev", "over tokens"),
    Entry("critic/vf_loss", None, "half the squared error, clipped"),
    Entry("actor/entropy", "entropy", "at the sampling temperature"),
    Entry("actor/entropy_loss", "entropy", "name in older versions; the entropy itself"),
    Entry("actor/kl_loss", KL_REF, "actor.kl_loss_type"),
    Entry("actor/reward_kl_penalty", KL_REF, "algorithm.kl_penalty"),
    Entry("actor/kl_coef", "kl_coef"),
    Entry("actor/ppo_kl", "kl_old"),
    Entry("actor/pg_clipfrac", "clip_frac"),
    Entry("actor/pg_clipfrac_lower", None, "share at which the second, dual clip binds"),
    Entry("actor/pg_loss", "policy_loss"),
    Entry("actor/grad_norm", "grad_norm"),
    Entry("actor/lr", "lr"),
    Entry("response_length/mean", "len_mean"),
    Entry("response_length/max", "len_max"),
    Entry("response_length/min", "len_min"),
    Entry("response_length/clip_ratio", "trunc_frac"),
    Entry("response/aborted_ratio", "empty_frac", "share of responses without a token"),
    # An agent loop counts the prompt, its own messages and the replies: 2 k for k own messages.
    Entry("num_turns/mean", "turns_mean", "messages of both sides", 0.5),
    Entry("num_turns/max", "turns_max", "messages of both sides", 0.5),
    Entry("tool_call_counts/mean", "tool_calls_mean"),
    Entry("rollout_corr/rollout_is_*", None, _CUT),
    Entry("rollout_corr/*", None, "a signed or sequence-level gap between sampler and trainer"),
    Entry("training/rollout_probs_diff_*", None, "difference of probabilities, not of their logarithms"),
)

_OPENRLHF = (
    Entry("reward", "reward_mean"),
    Entry("score", "rewards.score.mean"),
    Entry("group_reward_std", "group_reward_std_mean"),
    Entry("kl", KL_REF, "--kl_estimator"),
    Entry("ppo_kl", "kl_old"),
    Entry("vllm_kl", None, "signed gap between sampler and trainer"),
    Entry("entropy_loss", "entropy", "the entropy itself"),
    Entry("ppo_clip_ratio", "clip_frac"),
    Entry("actor_grad_norm", "grad_norm"),
    Entry("actor_lr", "lr"),
    Entry("policy_loss", "policy_loss"),
    Entry("response_length", "len_mean"),
    Entry("response_clip_ratio", "trunc_frac"),
    Entry("return", None, "shaped rewards: less a baseline, over a deviation"),
    Entry("total_length", None, "tokens of prompt and response"),
    Entry("critic_loss", None, "clipped value loss"),
    Entry("values", None, "mean value; the schema has its explained variance"),
    Entry("dynamic_filtering_pass_rate", None, "share of groups that the filter kept"),
)

#: Names that tables and hand-made loops use for what TRL logs.
_OTHER = (
    Entry("reward", "reward_mean"),
    Entry("reward_mean", "reward_mean"),
    Entry("*_reward", "rewards.*.mean", "a part of the reward, by its name"),
    Entry("clipped_ratio", "trunc_frac"),
    Entry("mean_length", "len_mean"),
    Entry("completion_length", "len_mean"),
    Entry("learning_rate", "lr"),
    Entry("loss", None, "policy loss with whatever else is in it"),
    Entry("kl", KL_REF),
)

_OURS = (
    *(Entry(name, name) for name in schema.names()),
    Entry("rewards.*.mean", "rewards.*.mean"),
    Entry("rewards.*.std", "rewards.*.std"),
)

#: Whose names -> table. Where two keys of a row have one column, the earlier entry counts.
MAPS: dict[str, tuple[Entry, ...]] = {
    "ours": _OURS,
    "trl": _TRL,
    "verl": _VERL,
    "openrlhf": _OPENRLHF,
    "other": _OTHER + tuple(entry for entry in _OURS if entry.key != "reward_mean"),
}


def strip(key: str) -> str:
    """A key without what loggers put before it: `train/`, or the stage in our own."""
    return re.sub(r"^(?:train|grpo)/", "", key)


def names_of(keys: Iterable[str]) -> str:
    """Whose names these are: the table that gives most of them a column; `other` where none knows two."""
    plain = {strip(key) for key in keys if not _EVALUATION.match(key)}
    counts = {
        names: sum(1 for key in plain if (found := entry(names, key)) is not None and found.column)
        for names in MAPS
    }
    best = max((name for name in MAPS if name != "other"), key=lambda name: counts[name])
    return best if counts[best] >= 2 and counts[best] >= counts["other"] else "other"


def translate(
    names: str, values: Mapping[str, float], estimator: str | None = None
) -> tuple[dict[str, float], dict[str, str]]:
    """(column -> value, key -> why it has no column) of one row.

    estimator: k1 or k3 where it is known which KL to the reference the source logs.
    """
    found: dict[str, tuple[int, float]] = {}
    unmapped: dict[str, str] = {}
    for key, value in values.items():
        plain = strip(key)
        known = None if _EVALUATION.match(key) else entry(names, plain)
        column = _column(known, plain, estimator) if known else None
        if known is None or column is None:
            unmapped[key] = _reason(key, known)
            continue
        place = MAPS[names].index(known)
        if column not in found or place < found[column][0]:
            found[column] = (place, known.scale * value)
    columns = {column: value for column, (_, value) in found.items()}
    return _adjusted(columns), unmapped


@lru_cache(maxsize=10_000)
def entry(names: str, key: str) -> Entry | None:
    """The first entry that knows a key (without prefix)."""
    return next((known for known in MAPS[names] if _pattern(known.key).fullmatch(key)), None)


def _column(known: Entry, key: str, estimator: str | None) -> str | None:
    if known.column == KL_REF:
        return f"kl_ref_{estimator}" if estimator else None
    match = _pattern(known.key).fullmatch(key)
    if known.column is None or match is None or "*" not in known.key:
        return known.column
    return known.column.replace("*", match.group(1).replace(".", "_").replace("/", "_"))


def _reason(key: str, known: Entry | None) -> str:
    if _EVALUATION.match(key):
        return "of an evaluation, not of training"
    if known is None:
        return _UNKNOWN
    return f"{_ESTIMATOR_UNKNOWN} ({known.note})" if known.column == KL_REF else known.note


def _adjusted(columns: dict[str, float]) -> dict[str, float]:
    """What one column says about another."""
    if "reward_mean" not in columns and "rewards.score.mean" in columns:
        columns["reward_mean"] = columns["rewards.score.mean"]
    if columns.get("tool_calls_mean") == 0 and columns.get("tool_error_frac") == 0:
        columns["tool_error_frac"] = math.nan
    return columns


@cache
def _pattern(key: str) -> re.Pattern[str]:
    return re.compile(re.escape(key).replace(r"\*", "([^/]+)"))
