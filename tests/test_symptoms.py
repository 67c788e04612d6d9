"""Symptoms that users of RL trainers have reported in public, and the tests that show we do not have them.

The key names the report (project and thread) and the symptom; the values are tests of this suite.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
LEARNING, ROLLOUT, WORLDS, OBJECTIVES = "learning/test_", "rollout/test_", "worlds/test_", "objectives/test_"

SYMPTOMS: dict[str, tuple[str, ...]] = {
    "trl 3714: NaN logits reach the optimiser": (
        f"{LEARNING}grpo_module.py::test_a_nan_logit_stops_the_step_and_names_step_episode_and_token",
        f"{LEARNING}strategies.py::test_a_nan_on_one_process_stops_all_of_them_before_the_step",
    ),
    "verl 2505: a rank with less than a micro-batch": (
        f"{LEARNING}hardware.py::test_per_rank_batch_smaller_than_one_trajectory_is_refused",
    ),
    "Soup 342: inf * 0 in the masked loss": (
        f"{OBJECTIVES}losses.py::test_a_masked_token_adds_no_loss_and_no_gradient_whatever_it_holds",
        f"{LEARNING}grpo_module.py::test_a_gradient_that_is_not_finite_is_traced_to_its_token",
    ),
    "rllm 368: traces of an earlier attempt leak in": (
        f"{ROLLOUT}collector.py::test_nothing_of_a_failed_attempt_is_left_in_its_retry",
        f"{ROLLOUT}collector.py::test_a_retry_samples_with_seeds_of_its_own_that_are_the_same_in_every_run",
    ),
    "trl 3015: k3 overflows": (
        f"{OBJECTIVES}losses.py::test_a_log_ratio_of_a_hundred_gives_a_finite_kl_and_a_bounded_gradient",
        f"{OBJECTIVES}losses.py::test_a_huge_log_ratio_stays_finite",
    ),
    "trl 3500: a KL in thousands at step 1, dropout is active": (
        f"{LEARNING}grpo_updates.py::"
        "test_the_reference_is_the_policy_at_step_0_in_training_mode_with_dropout_configured",
    ),
    "OpenRLHF 931: on-policy ratios of 5e8": (
        f"{LEARNING}grpo_updates.py::test_the_second_epoch_brings_ratios_to_life",
    ),
    "JustRL 5: metrics depend on the order of batching": (
        f"{OBJECTIVES}statistics.py::test_numbers_do_not_depend_on_the_micro_batches",
    ),
    "trl 6427: doing nothing is worth 0, more than a failed try": (
        f"{ROLLOUT}collector.py::test_an_episode_that_was_never_scored_is_invalid_and_not_worth_zero",
        "rewards/test_parts.py::"
        "test_an_episode_whose_reward_fails_or_is_not_finite_is_invalid_and_not_worth_zero",
    ),
    "trl 5144: masks and ids of different lengths after tokenising again": (
        f"{ROLLOUT}episode.py::test_tokens_masks_and_log_probs_by_hand",
        f"{ROLLOUT}episode.py::test_text_completions_are_tokenised_once",
    ),
    "verl 3720: a newline after the end of turn is missing": (
        f"{ROLLOUT}render.py::test_calls_and_replies_glue_exactly",
        f"{ROLLOUT}render.py::test_a_grown_history_is_what_the_template_renders_at_one_go",
    ),
    "trl 4975: the loss ignores the tool mask": (
        f"{LEARNING}grpo_module.py::test_numbers_at_masked_positions_count_for_nothing",
        f"{LEARNING}grpo_module.py::test_only_trained_positions_reach_the_output_layer",
    ),
    "trl 4159: log-probs without temperature": (
        f"{ROLLOUT}vllm.py::test_log_probs_are_the_trainers_before_and_after_updates",
        f"{ROLLOUT}vllm_server.py::test_log_probs_without_temperature_are_refused",
    ),
    "trl 7269: renormalised log-probs of truncated sampling": (
        "learning/test_samplers.py::test_truncated_sampling_cannot_be_asked_for",
    ),
    "open-instruct 1473: the gap to the sampler grows without learning": (
        f"{ROLLOUT}vllm.py::test_the_gap_does_not_grow_over_syncs_without_learning",
    ),
    "verl 2996: log-probs depend on the batch's shape": (
        f"{ROLLOUT}vllm.py::test_the_gap_between_batch_shapes_is_noise",
    ),
    "trl 5312: the sampler goes on with old weights": (
        f"{LEARNING}sync_probe.py::test_a_stale_sync_is_caught_in_one_step",
        f"{LEARNING}rollout_callback.py::test_a_planted_stale_sync_is_caught_in_the_step_in_which_it_happens",
        f"{ROLLOUT}vllm_engines.py::test_a_server_that_did_not_reload_is_caught_by_the_probe",
    ),
    "trl 5142: weights go into a sleeping engine": (
        f"{ROLLOUT}vllm.py::test_weights_never_go_into_a_sleeping_engine",
    ),
    "vllm 9744: the prefix cache outlives its weights": (
        f"{ROLLOUT}vllm.py::test_a_prefix_cache_that_outlives_its_weights_gives_wrong_log_probs",
        f"{LEARNING}sync_probe.py::test_keys_and_values_of_old_weights_are_caught",
    ),
    "vime 168: weights change while requests are in flight": (
        f"{ROLLOUT}vllm_server.py::test_sync_waits_until_no_request_is_in_flight",
        f"{ROLLOUT}sampler_contract.py::test_weights_wait_until_nothing_is_in_flight",
    ),
    "a partial weight sync raises nothing": (
        f"{LEARNING}sync_probe.py::test_a_partial_sync_is_caught_in_one_step",
        f"{ROLLOUT}vllm.py::test_missing_weights_are_refused_and_change_nothing",
    ),
    "NeMo-RL 3599: the cursor runs ahead of training": (
        f"{LEARNING}kills.py::test_cursor_queue_and_inner_epochs_go_on_where_they_were",
        f"{LEARNING}zero_signal.py::test_the_queue_survives_a_checkpoint",
        f"{LEARNING}rollout_callback.py::test_a_checkpoint_takes_along_what_was_sampled_ahead",
    ),
    "NeMo-RL 226: random numbers restart on resume": (
        f"{LEARNING}random_state.py::test_random_numbers_restart_on_resume",
    ),
    "verl 7401: resuming at an epoch boundary skips the next epoch": (
        f"{LEARNING}kills.py::test_resume_at_an_epoch_boundary_trains_the_next_epoch",
        f"{LEARNING}resume.py::test_resume_at_the_end_of_a_stage_trains_the_steps_that_were_added",
    ),
    "prime-rl 1825: a half-written checkpoint is picked": (
        f"{LEARNING}checkpoints.py::test_kill_at_every_file_boundary_of_a_save_leaves_the_last_complete_one",
        f"{LEARNING}kills.py::test_kill_9_inside_a_save_gives_the_run_that_was_not_killed",
    ),
    "NeMo-RL 2519: the dataset changed on resume": (
        f"{LEARNING}fingerprint.py::test_a_dataset_that_changed_has_another_fingerprint",
        f"{LEARNING}admission.py::test_a_change_that_would_lie_is_refused_with_old_and_new_value",
    ),
    "NeMo-RL 4161: rounding noise becomes an advantage of thousands": (
        f"{OBJECTIVES}advantages.py::test_a_lone_failure_is_not_blown_up",
        f"{OBJECTIVES}advantages.py::test_equal_values_give_exactly_zero",
    ),
    "ms-swift 8123: one missing reward makes all advantages NaN": (
        f"{LEARNING}zero_signal.py::test_a_part_of_the_reward_that_is_not_finite_makes_the_episode_invalid",
    ),
    "verl 6452: a rejected row moves the baseline of its group": (
        f"{LEARNING}groups.py::test_a_group_with_a_failed_member_is_dropped_and_its_failure_kept",
        f"{OBJECTIVES}advantages.py::test_zero_signal_members_change_nothing_and_get_nothing",
    ),
    "trl 3021: the loss depends on how a batch is split": (
        f"{LEARNING}grpo_module.py::test_the_micro_batch_budget_changes_neither_loss_nor_gradient",
        f"{LEARNING}strategies.py::test_uneven_batches_do_not_hang_a_rank",
    ),
    "trl 6369: the truncation mask is in the numerator alone": (
        f"{LEARNING}grpo_updates.py::test_masked_overlong_episodes_leave_numerator_and_denominator_alike",
        f"{LEARNING}grpo_updates.py::test_a_batch_in_which_everything_is_masked_has_loss_zero",
    ),
    "trl 6533: one reward is spread over the batch": (
        "serving/test_mcp_world.py::test_one_check_result_is_not_spread_over_three_checks",
    ),
    "Gym 1351: the environment dies and training goes on with rewards of 0": (
        f"{ROLLOUT}collector.py::test_an_outage_makes_episodes_invalid_and_the_next_run_is_healthy",
        f"{LEARNING}groups.py::test_a_step_in_which_nothing_completed_is_an_error",
    ),
    "surogate 177: the same failure is retried ten thousand times": (
        f"{ROLLOUT}collector.py::test_the_same_failure_is_not_retried_for_every_episode",
    ),
    "verl 1696: a tool that never answers hangs the run": (
        f"{WORLDS}environment.py::"
        "test_a_tool_that_never_answers_ends_as_a_timeout_receipt_and_the_world_goes_on",
        f"{WORLDS}environment.py::test_a_late_reply_is_never_that_of_the_next_call",
    ),
    "prime-rl 3084: a call whose delivery is unknown is made again": (
        "serving/test_mcp_world.py::test_a_call_whose_delivery_is_unknown_is_not_made_again",
        "serving/test_many_sessions.py::"
        "test_sessions_in_flight_share_nothing_keep_their_connections_and_leave_none",
    ),
    "DeepSpeed 8262: ranks with different numbers of passes hang": (
        f"{LEARNING}strategies.py::test_uneven_batches_do_not_hang_a_rank",
        f"{ROLLOUT}collector.py::"
        "test_episodes_of_1_and_30_turns_finish_together_without_waiting_for_each_other",
    ),
    "Lightning 11300: a sweep starts a sweep in every child": (
        "commands/test_launch.py::test_a_sweep_of_two_points_on_two_devices_makes_two_run_folders",
    ),
    "Lightning 20404: uneven batches hang": (
        f"{LEARNING}batching.py::test_every_rank_has_as_many_micro_batches_and_every_sequence_is_on_one_rank",
    ),
    "Lightning 8344: resuming under DeepSpeed": (
        "commands/test_launch.py::test_a_killed_deepspeed_run_goes_on_as_if_it_had_not_been_killed",
        f"{LEARNING}strategies.py::test_a_resumed_run_is_the_run_that_was_not_stopped",
    ),
    "Lightning 9833: weights are restored after the first hook": (
        f"{LEARNING}strategies.py::test_weights_are_restored_before_a_callback_could_hand_them_to_a_sampler",
    ),
}


@pytest.mark.parametrize("symptom", SYMPTOMS)
def test_every_symptom_has_its_tests(symptom: str) -> None:
    for place in SYMPTOMS[symptom]:
        file, _, name = place.partition("::")
        tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
        names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert name in names, f"{file} has no test '{name}'"


def test_there_are_many() -> None:
    assert len(SYMPTOMS) >= 40
