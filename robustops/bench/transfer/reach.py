"""Which of the catalogue's mechanisms can be injected into TRL's GRPOTrainer from outside, and where.

Outside is what TRL documents: reward functions, the environment's tools, callbacks, attributes of the trainer
that hold coefficients, `generate` of the model that is passed in, and one overridden public method,
`compute_loss`. All 16 types have a mechanism there; some mechanisms have none.
"""

from __future__ import annotations

#: Mechanism -> extension point.
IN_TRL: dict[str, str] = {
    **dict.fromkeys(
        (
            *("episode_spike", "component_scale", "uniform_spike", "zeroed_episodes", "verifier_down"),
            *("echo_bonus", "lenient_verifier", "silence_reward", "repetition_reward", "brevity_reward"),
            *("length_reward", "rolled_rewards"),
        ),
        "reward functions",
    ),
    **dict.fromkeys(
        ("stop_at_once", "repeat_last", "stop_early", "stop_suppressed", "cold_sampling"),
        "logits processor of the model's generate",
    ),
    **dict.fromkeys(("aggressive_updates", "kl_sign"), "callback: beta, epsilon, learning rate"),
    **dict.fromkeys(
        ("noisy_gradient", "skipped_updates", "tiny_rate", "frozen_parameters"),
        "callback before the optimiser",
    ),
    **dict.fromkeys(
        ("offset_baseline", "heavy_noise", "sign_flips", "lagged_advantages"), "compute_loss: advantages"
    ),
    **dict.fromkeys(
        ("tool_outage", "digit_noise", "stale_reply", "truncated_reply"), "tools of the environment"
    ),
    **dict.fromkeys(("early_done", "turn_limit"), "callback: max_tool_calling_iterations"),
}
_GROUPS = "groups are formed inside TRL, and shuffled before a loss is computed"
_MESSAGES = "the engine is called for a whole batch; single messages cannot be replaced"
_CRITIC = "GRPOTrainer has no value head"
#: Mechanism -> why it cannot.
NOT_IN_TRL: dict[str, str] = {
    **dict.fromkeys(("swapped_baseline", "merged_groups", "singleton_groups"), _GROUPS),
    **dict.fromkeys(("empty_reply", "stuck_decoder", "token_cut", "missed_stop"), _MESSAGES),
    **dict.fromkeys(("permuted_targets", "frozen_critic"), _CRITIC),
    "stale_sampler": "TRL samples with the trained weights themselves, unless vLLM has a copy",
    "entropy_penalty": "the entropy of a pass is not handed out with its gradient",
    "late_credit": "an episode has one advantage for all of its tokens",
    "rejected_call": "TRL takes a call that it cannot read for a final answer",
    "stop_ignored": "an episode without a further call is over",
}
#: Site of a mechanism -> what it strikes there. A row of `generate` does not tell its episode, only its place
#: among those that still go on; a limit of turns is the trainer's, for all episodes.
UNITS_IN_TRL = {"logits": "turn", "episode end": "step"}
#: Mechanisms that strike all episodes of a step at once.
BY_STEP = ("early_done", "turn_limit")
