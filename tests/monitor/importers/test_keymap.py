"""The key map as a table: each key of a source, the column it has, or why it has none."""

import math

import pytest

from robustops.monitor import schema
from robustops.monitor.importers.keymap import KL_REF, MAPS, names_of, translate

#: Source, key, column, value 1.0 in the column's unit.
MAPPED = [
    ("trl", "reward", "reward_mean", 1.0),
    ("trl", "train/reward", "reward_mean", 1.0),
    ("trl", "rewards/accuracy_reward/mean", "rewards.accuracy_reward.mean", 1.0),
    ("trl", "rewards/accuracy_reward/std", "rewards.accuracy_reward.std", 1.0),
    ("trl", "rewards/accuracy_reward", "rewards.accuracy_reward.mean", 1.0),
    ("trl", "rewards/a.b/mean", "rewards.a_b.mean", 1.0),
    ("trl", "frac_reward_zero_std", "zero_signal_frac", 1.0),
    ("trl", "kl", "kl_ref_k3", 1.0),
    ("trl", "entropy", "entropy", 1.0),
    ("trl", "entropy/mean", "entropy", 1.0),
    ("trl", "clip_ratio", "clip_frac", 1.0),
    ("trl", "clip_ratio/region_mean", "clip_frac", 1.0),
    ("trl", "clip_ratio/low_mean", "clip_low", 1.0),
    ("trl", "clip_ratio/high_mean", "clip_high", 1.0),
    ("trl", "sampling/sampling_logp_difference/mean", "samp_logp_absdiff_mean", 1.0),
    ("trl", "sampling/sampling_logp_difference/max", "samp_logp_absdiff_max", 1.0),
    ("trl", "grad_norm", "grad_norm", 1.0),
    ("trl", "learning_rate", "lr", 1.0),
    ("trl", "completions/mean_length", "len_mean", 1.0),
    ("trl", "completion_length", "len_mean", 1.0),
    ("trl", "completions/clipped_ratio", "trunc_frac", 1.0),
    ("trl", "tools/failure_frequency", "tool_error_frac", 1.0),
    ("trl", "objective/scores", "reward_mean", 1.0),
    ("trl", "policy/entropy_avg", "entropy", 1.0),
    ("verl", "critic/rewards/mean", "reward_mean", 1.0),
    ("verl", "critic/rewards/max", "reward_max", 1.0),
    ("verl", "critic/advantages/min", "adv_min", 1.0),
    ("verl", "actor/entropy", "entropy", 1.0),
    ("verl", "actor/entropy_loss", "entropy", 1.0),
    ("verl", "actor/ppo_kl", "kl_old", 1.0),
    ("verl", "actor/pg_clipfrac", "clip_frac", 1.0),
    ("verl", "actor/grad_norm", "grad_norm", 1.0),
    ("verl", "actor/lr", "lr", 1.0),
    ("verl", "response_length/mean", "len_mean", 1.0),
    ("verl", "response_length/clip_ratio", "trunc_frac", 1.0),
    ("verl", "response/aborted_ratio", "empty_frac", 1.0),
    ("verl", "num_turns/mean", "turns_mean", 0.5),
    ("verl", "tool_call_counts/mean", "tool_calls_mean", 1.0),
    ("openrlhf", "train/reward", "reward_mean", 1.0),
    ("openrlhf", "group_reward_std", "group_reward_std_mean", 1.0),
    ("openrlhf", "ppo_kl", "kl_old", 1.0),
    ("openrlhf", "ppo_clip_ratio", "clip_frac", 1.0),
    ("openrlhf", "entropy_loss", "entropy", 1.0),
    ("openrlhf", "actor_grad_norm", "grad_norm", 1.0),
    ("openrlhf", "response_length", "len_mean", 1.0),
    ("openrlhf", "response_clip_ratio", "trunc_frac", 1.0),
    ("ours", "grpo/reward_mean", "reward_mean", 1.0),
    ("ours", "rewards.success.mean", "rewards.success.mean", 1.0),
    ("other", "clipped_ratio", "trunc_frac", 1.0),
    ("other", "retrieval_reward", "rewards.retrieval.mean", 1.0),
]
#: Keys that look like a column and are another quantity.
OTHERS = [
    ("trl", "loss"),
    ("trl", "reward_std"),
    ("trl", "sampling/importance_sampling_ratio/mean"),
    ("trl", "objective/kl"),
    ("trl", "objective/entropy"),
    ("trl", "eval_reward"),
    ("trl", "eval/reward"),
    ("verl", "actor/kl_loss"),
    ("verl", "actor/reward_kl_penalty"),
    ("verl", "critic/returns/mean"),
    ("verl", "critic/vf_loss"),
    ("verl", "actor/pg_clipfrac_lower"),
    ("verl", "rollout_corr/rollout_is_mean"),
    ("verl", "rollout_corr/kl"),
    ("verl", "training/rollout_probs_diff_mean"),
    ("verl", "val-core/math/acc/mean@1"),
    ("openrlhf", "kl"),
    ("openrlhf", "vllm_kl"),
    ("openrlhf", "return"),
    ("openrlhf", "dynamic_filtering_pass_rate"),
    ("ours", "sft/entropy"),
]


@pytest.mark.parametrize(("names", "key", "column", "value"), MAPPED)
def test_a_key_has_its_column(names: str, key: str, column: str, value: float):
    assert translate(names, {key: 1.0}) == ({column: value}, {})


@pytest.mark.parametrize(("names", "key"), OTHERS)
def test_another_quantity_has_none_and_a_reason(names: str, key: str):
    columns, unmapped = translate(names, {key: 1.0})
    assert columns == {} and len(unmapped[key]) > 10


@pytest.mark.parametrize("names", sorted(MAPS))
def test_every_column_is_in_the_schema(names: str):
    columns = {entry.column for entry in MAPS[names] if entry.column not in (None, KL_REF)}
    assert columns - {"rewards.*.mean", "rewards.*.std", "rewards.score.mean"} <= set(schema.names())
    assert all(entry.note for entry in MAPS[names] if entry.column is None)


@pytest.mark.parametrize(("names", "key"), [("verl", "actor/kl_loss"), ("openrlhf", "kl"), ("other", "kl")])
def test_a_kl_is_mapped_only_by_the_estimator_that_is_known(names: str, key: str):
    assert translate(names, {key: 0.2}, "k1")[0] == {"kl_ref_k1": 0.2}
    assert translate(names, {key: 0.2}, "k3")[0] == {"kl_ref_k3": 0.2}
    assert "kl_estimator=k1 or k3" in translate(names, {key: 0.2})[1][key]


def test_of_two_keys_for_one_column_the_earlier_entry_counts_in_any_order():
    both = {"completion_length": 1.0, "completions/mean_length": 2.0}
    assert translate("trl", both)[0] == {"len_mean": 2.0}
    assert translate("trl", dict(reversed(both.items())))[0] == {"len_mean": 2.0}
    rewards = {"critic/score/mean": 1.0, "critic/score/max": 5.0, "critic/rewards/max": 4.0}
    assert translate("verl", rewards)[0] == {
        "rewards.score.mean": 1.0,
        "reward_mean": 1.0,
        "reward_max": 4.0,
    }
    assert translate("verl", {**rewards, "critic/rewards/mean": 0.5})[0]["reward_mean"] == 0.5


def test_an_error_share_of_no_call_was_not_observed():
    columns, _ = translate("trl", {"tools/call_frequency": 0.0, "tools/failure_frequency": 0.0})
    assert columns["tool_calls_mean"] == 0 and math.isnan(columns["tool_error_frac"])
    columns, _ = translate("trl", {"tools/call_frequency": 2.0, "tools/failure_frequency": 0.0})
    assert columns["tool_error_frac"] == 0


@pytest.mark.parametrize(
    ("keys", "names"),
    [
        (["loss", "grad_norm", "learning_rate", "reward", "kl"], "trl"),
        (["train/reward", "train/completions/mean_length"], "trl"),
        (["actor/entropy", "critic/score/mean", "response_length/mean"], "verl"),
        (["policy_loss", "actor_lr", "reward", "response_length", "kl"], "openrlhf"),
        (["grpo/reward_mean", "grpo/kl_ref_k3", "grpo/grad_norm"], "ours"),
        (["reward", "valid_action", "retrieval_reward"], "other"),
        (["loss", "grad_norm", "reward_mean", "clipped_ratio", "mean_length"], "other"),
        (["reward"], "other"),
        ([], "other"),
    ],
)
def test_whose_names_keys_are(keys: list[str], names: str):
    assert names_of(keys) == names
