"""The seven invariants of a healthy run: which columns speak for which.

Five are the paper's (RFT-FM, section IV-A): reward trajectory, KL, entropy, return stability, generation
quality. Two are added (research note, 3.1): tools and environment, consistency of the optimisation.
"""

from __future__ import annotations

from collections.abc import Iterable

PAPER = ("reward_trajectory", "kl", "entropy", "return_stability", "generation_quality")
INVARIANTS = (*PAPER, "tool_environment", "optimisation")

_MEMBERS = {
    "reward_trajectory": "reward_mean reward_std reward_min reward_max success_mean reward_success_gap "
    "reward_success_corr group_reward_std_mean zero_signal_frac",
    "kl": "kl_ref_k1 kl_ref_k3 kl_old",
    "entropy": "entropy group_unique_frac",
    "return_stability": "adv_mean adv_std adv_min adv_max adv_absmax adv_kurt adv_group_mean_absmax "
    "adv_reward_corr adv_reward_lag1_corr adv_token_gap return_mean baseline_bias baseline_mae ev_loo "
    "vf_loss vf_ev",
    "generation_quality": "len_mean len_std len_min len_max trunc_frac empty_frac rep4 distinct2",
    "tool_environment": "turns_mean turns_max early_term_frac no_answer_frac tool_calls_mean tool_error_frac "
    "invalid_call_frac obs_len_mean obs_len_std obs_roundtrip_mismatch_frac",
    "optimisation": "clip_frac clip_low clip_high ratio_mean ratio_max ratio_p99 samp_logp_absdiff_mean "
    "samp_logp_absdiff_max is_ratio_mean is_ratio_min is_ratio_max is_ratio_ess grad_norm grad_nonfinite "
    "update_norm_rel policy_loss policy_lag_mean policy_lag_max nan_count skipped_updates lr kl_coef",
}
_OF = {column: name for name, members in _MEMBERS.items() for column in members.split()}


def invariant_of(column: str) -> str:
    """Of a column of the schema or of a reward part (`rewards.<part>.mean`); ValueError for any other."""
    if column.startswith("rewards."):
        return "reward_trajectory"
    if column not in _OF:
        raise ValueError(f"'{column}' is no telemetry column; see monitor.schema.names()")
    return _OF[column]


def members(invariant: str, columns: Iterable[str]) -> list[str]:
    """Those of the columns that speak for an invariant, in their order."""
    return [column for column in columns if invariant_of(column) == invariant]


#: What happens in a step, one after the other: episodes, what they are worth, what is learned from that.
STAGES = ("behaviour", "signal", "policy")
_STAGE_OF = {
    "reward_trajectory": "signal",
    "return_stability": "signal",
    "generation_quality": "behaviour",
    "tool_environment": "behaviour",
    "kl": "policy",
    "entropy": "policy",
    "optimisation": "policy",
}
#: The verifier tells what episodes did, whatever the reward function makes of it; variety is of episodes,
#: too.
_BEHAVIOUR = {"success_mean", "group_unique_frac"}


def stage_of(column: str) -> str:
    """The stage of a step that a column describes; ValueError as of `invariant_of`."""
    return "behaviour" if column in _BEHAVIOUR else _STAGE_OF[invariant_of(column)]
