"""Catalogue of what falsifies the training signal: rewards, credit, tools and environment."""

from __future__ import annotations

from robustops.bench.run_faults.entries import FaultType, MechanismInfo, disconnects, weakens

_EPISODES = ("episode", "group", "step")
_NO_PROGRESS, _BOUNDED = disconnects("reward.progress", 0.0), weakens("reward.bounded", True)
_RECHECK = disconnects("reward.recheck", True)
_REPAIRS = (_RECHECK, _NO_PROGRESS, _BOUNDED)
_CENTRE = disconnects("grpo.advantage_guard", "centre")
_RECOMPUTED = disconnects("grpo.advantage_guard", "recompute")
_RETRIES, _CHECKED = weakens("domain.tool_retries", 2), disconnects("domain.check_replies", True)
_BELIEVED = disconnects("model.min_turns", 99)
_EVEN = disconnects("grpo.even_credit", True)
_REGROUP = disconnects("grpo.regroup", True)


def _critic(name: str, units: tuple[str, ...]) -> MechanismInfo:
    knobs = (disconnects("grpo.value_least_ev", 1.5),)
    return MechanismInfo(name, "critic", units, "vf_loss", 1, knobs, learned=True, needs_critic=True)


def _grouping(name: str) -> MechanismInfo:
    knobs = (_REGROUP, weakens("grpo.advantage_guard", "centre"))
    return MechanismInfo(name, "grouping", ("group", "step"), "adv_group_mean_absmax", 1, knobs)


REWARD = (
    FaultType(
        "reward_spike",
        "RF-1",
        "reward",
        "reward mean, deviation and maximum up, success flat, advantages of single episodes extreme",
        (
            MechanismInfo("episode_spike", "reward", _EPISODES, "reward_mean", 1, _REPAIRS),
            MechanismInfo("component_scale", "reward", _EPISODES, "reward_std", 1, _REPAIRS),
            MechanismInfo(
                "uniform_spike",
                "reward",
                ("group",),
                "reward_mean",
                1,
                (_RECHECK, _NO_PROGRESS),
                grad_effect=False,
            ),
        ),
    ),
    FaultType(
        "reward_collapse",
        "RF-2",
        "reward",
        "reward and its deviation to 0, groups without signal up, gradient norm down, KL flat",
        (
            MechanismInfo("zeroed_episodes", "reward", _EPISODES, "reward_mean", -1, (_RECHECK,)),
            MechanismInfo("verifier_down", "reward", ("step", "group"), "reward_mean", -1, (_RECHECK,)),
        ),
    ),
    FaultType(
        "reward_hacking",
        "RF-3",
        "reward",
        "reward up while success is flat or falls, their correlation down, entropy and length drift",
        (
            MechanismInfo(
                "echo_bonus",
                "reward",
                _EPISODES,
                "rewards.progress.mean",
                1,
                _REPAIRS,
                learned=True,
            ),
            MechanismInfo(
                "lenient_verifier", "reward", _EPISODES, "rewards.success.mean", 1, (_RECHECK,), learned=True
            ),
        ),
    ),
)

CREDIT = (
    FaultType(
        "value_mismatch",
        "CA-1",
        "credit",
        "advantages of a group do not sum to 0, baselines far from rewards; reward, KL, entropy normal",
        (
            MechanismInfo(
                "swapped_baseline", "advantage", ("group", "step"), "adv_group_mean_absmax", 1, (_CENTRE,)
            ),
            MechanismInfo("offset_baseline", "advantage", ("step", "group"), "adv_mean", -1, (_CENTRE,)),
            _grouping("merged_groups"),
            _grouping("singleton_groups"),
            _critic("permuted_targets", _EPISODES),
            _critic("frozen_critic", ("step",)),
        ),
    ),
    FaultType(
        "advantage_instability",
        "CA-2",
        "credit",
        "deviation, extremes and kurtosis of advantages up, their correlation with rewards down",
        (
            MechanismInfo(
                "heavy_noise",
                "advantage",
                _EPISODES,
                "adv_reward_corr",
                -1,
                (weakens("grpo.advantage_clip", 1.0), _RECOMPUTED),
            ),
            MechanismInfo("sign_flips", "advantage", _EPISODES, "adv_reward_corr", -1, (_RECOMPUTED,)),
        ),
    ),
    FaultType(
        "delayed_credit",
        "CA-3",
        "credit",
        "advantages as usual by themselves, but unrelated to their own rewards; reward grows slower",
        (
            MechanismInfo(
                "lagged_advantages", "advantage", ("episode", "step"), "adv_reward_corr", -1, (_RECOMPUTED,)
            ),
            MechanismInfo(
                "rolled_rewards", "reward", ("group", "step"), "reward_success_corr", -1, (_RECHECK,)
            ),
            MechanismInfo("late_credit", "credit", _EPISODES, "adv_token_gap", 1, (_EVEN,)),
        ),
    ),
)

ENVIRONMENT = (
    FaultType(
        "tool_call_error",
        "TE-1",
        "environment",
        "tool errors (or unreadable calls) up, more turns, success down",
        (
            MechanismInfo("tool_outage", "tool call", ("turn", "episode"), "tool_error_frac", 1, (_RETRIES,)),
            MechanismInfo(
                "rejected_call",
                "tool call",
                ("turn", "episode"),
                "invalid_call_frac",
                1,
                (disconnects("domain.reread_calls", True), weakens("grpo.credit.bad_cap", None)),
            ),
        ),
    ),
    FaultType(
        "observation_corruption",
        "TE-2",
        "environment",
        "replies differ from what worlds said, tool errors flat, success down",
        tuple(
            MechanismInfo(
                name, "tool reply", ("turn", "episode"), "obs_roundtrip_mismatch_frac", 1, (_CHECKED,)
            )
            for name in ("digit_noise", "stale_reply", "truncated_reply")
        ),
    ),
    FaultType(
        "termination_error",
        "TE-3",
        "environment",
        "turns and length down (up where stops are ignored), no answer more often, unreadable calls flat",
        (
            MechanismInfo(
                "early_done",
                "episode end",
                _EPISODES,
                "turns_mean",
                -1,
                (_BELIEVED,),
            ),
            MechanismInfo(
                "turn_limit",
                "episode end",
                _EPISODES,
                "turns_mean",
                -1,
                (_BELIEVED, weakens("model.max_turns", 28)),
            ),
            MechanismInfo(
                "stop_ignored",
                "answer",
                ("episode", "turn", "group", "step"),
                "no_answer_frac",
                1,
                (disconnects("model.max_answers", 1), weakens("model.max_turns", 4)),
            ),
        ),
    ),
)
