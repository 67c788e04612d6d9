"""Catalogue of what concerns the policy itself: generation and optimisation."""

from __future__ import annotations

from robustops.bench.run_faults.entries import Counter, FaultType, MechanismInfo, disconnects, weakens

_EPISODES = ("episode", "group", "step")
_MESSAGES = ("episode", "turn", "group", "step")
_NO_PROGRESS, _BOUNDED = disconnects("reward.progress", 0.0), weakens("reward.bounded", True)
_RECHECK = disconnects("reward.recheck", True)
_SHORTEST = weakens("sampler.min_new_tokens", 8)
_NEVER_EMPTY = disconnects("sampler.min_new_tokens", 1)
_PENALTY = weakens("sampler.repetition_penalty", 20.0)
_LONGER = weakens("model.answer_tokens", 48)
_BUDGET, _MASKED = weakens("model.answer_tokens", 16), weakens("grpo.overlong", "mask")
_WHOLE = disconnects("grpo.whole_updates", True)
_SLOWER, _NO_KL = weakens("grpo.learning_rate", 1e-7), disconnects("grpo.kl", 0.0)


def _logits(name: str, quantity: str, direction: int, *knobs: Counter, token: bool = True) -> MechanismInfo:
    units = ("episode", "turn", "token", "group", "step") if token else _MESSAGES
    return MechanismInfo(name, "logits", units, quantity, direction, knobs, needs_logits=True)


def _learned(name: str) -> MechanismInfo:
    """A bonus in the progress count, which is what it moves before anything is learned from it."""
    knobs = (_RECHECK, _NO_PROGRESS, _BOUNDED)
    return MechanismInfo(name, "reward", _EPISODES, "rewards.progress.mean", 1, knobs, learned=True)


def _step(name: str, site: str, quantity: str, direction: int, *knobs: Counter) -> MechanismInfo:
    return MechanismInfo(name, site, ("step",), quantity, direction, knobs)


GENERATION = (
    FaultType(
        "empty_response",
        "PG-1",
        "generation",
        "empty messages up, shortest length and reward down, groups without signal up",
        (
            _logits("stop_at_once", "empty_frac", 1, _NEVER_EMPTY, token=False),
            MechanismInfo("empty_reply", "completion", _MESSAGES, "empty_frac", 1, (_SHORTEST,)),
            _learned("silence_reward"),
        ),
    ),
    FaultType(
        "repetition_collapse",
        "PG-2",
        "generation",
        "repeated n-grams, length and cut-off messages up, distinct pairs and entropy down",
        (
            _logits("repeat_last", "rep4", 1, _PENALTY, weakens("sampler.temperature", 4.0)),
            MechanismInfo("stuck_decoder", "completion", _MESSAGES, "rep4", 1, (_MASKED, _BUDGET)),
            _learned("repetition_reward"),
        ),
    ),
    FaultType(
        "length_short",
        "PG-3S",
        "generation",
        "mean and largest length down, success down; cut-off messages up where a budget is cut",
        (
            # Broken calls are asked again, so that an episode of shorter messages can be the longer one.
            _logits("stop_early", "invalid_call_frac", 1, _SHORTEST),
            MechanismInfo("token_cut", "request", _MESSAGES, "len_mean", -1, (_SHORTEST, _LONGER)),
            _learned("brevity_reward"),
        ),
    ),
    FaultType(
        "length_long",
        "PG-3L",
        "generation",
        "length, cut-off messages and repetition up, reward down later",
        (
            # A message at its budget ends the episode, so that one of longer messages can be the shorter one.
            _logits("stop_suppressed", "trunc_frac", 1, _BUDGET, _MASKED),
            MechanismInfo("missed_stop", "request", _MESSAGES, "trunc_frac", 1, (_BUDGET, _MASKED)),
            _learned("length_reward"),
        ),
    ),
)

OPTIMISATION = (
    FaultType(
        "kl_explosion",
        "OD-1",
        "optimisation",
        "KL, ratios, clipping, gradient and update norms up, length drifts, reward crashes",
        (
            _step(
                "aggressive_updates",
                "update",
                "update_norm_rel",
                1,
                _SLOWER,
                weakens("grpo.whole_updates", True),
            ),
            _step("kl_sign", "loss", "kl_ref_k3", 1, _NO_KL, _SLOWER),
            _step("noisy_gradient", "gradient", "grad_norm", 1, _SLOWER),
        ),
    ),
    FaultType(
        "update_freeze",
        "OD-2",
        "optimisation",
        "gradient norm normal, updates nearly 0, KL and reward flat; with a stale sampler its lag grows",
        (
            _step(
                "skipped_updates",
                "update",
                "update_norm_rel",
                -1,
                _WHOLE,
                weakens("grpo.learning_rate", 1e-2),
            ),
            _step("tiny_rate", "update", "update_norm_rel", -1, _WHOLE, weakens("grpo.learning_rate", 1e-1)),
            _step(
                "frozen_parameters",
                "update",
                "update_norm_rel",
                -1,
                _WHOLE,
                weakens("grpo.learning_rate", 1e-2),
            ),
            _step("stale_sampler", "sync", "policy_lag_max", 1, disconnects("grpo.sync_guard", "resync")),
        ),
    ),
    FaultType(
        "entropy_collapse",
        "OD-3",
        "optimisation",
        "entropy, reward deviation and distinct answers of a group down, KL moderately up",
        (
            _step("entropy_penalty", "loss", "entropy", -1, weakens("grpo.entropy", 2.0)),
            _logits("cold_sampling", "group_unique_frac", -1, weakens("sampler.temperature", 3.0)),
        ),
    ),
)
