from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace

import pytest
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

from robustops.errors import TrainingError
from robustops.learning.data import RolloutTicket, StepData
from robustops.learning.groups import GroupMaker, GroupPlan, StepGroups
from robustops.learning.grpo_loss import GRPOLoss
from robustops.learning.grpo_module import GRPOModule, Optimisation
from robustops.learning.policy import load_policy
from robustops.learning.rollout_callback import RolloutCallback, episode_metrics, rollout_metrics
from robustops.learning.sync_probe import SyncProbe
from robustops.objectives.advantages import component
from robustops.records import EpisodeError, Group, RewardParts, ToolCall, ToolResult, Turn
from robustops.rollout.collector import Collector
from robustops.rollout.episode import EpisodeStart, Limits
from robustops.rollout.hf import HFSampler
from robustops.settings import ModelSettings
from tests.learning.small_run import LIMITS as MEMORISED_LIMITS
from tests.learning.small_run import itsm
from tests.learning.support import (
    Metrics,
    fit,
    made_episode,
    quiet_trainer,
    same_weights,
    toy_policy,
    weights_of,
)
from tests.rollout.fake_sampler import FakeSampler
from tests.tiny_model import tiny_model
from tests.toy_domain import TOY, toy_tasks

LIMITS = Limits(600, 16, 2)


def pseudo_reward(task, episode) -> RewardParts:
    return RewardParts(0.0, (sum(episode.token_ids) % 97) / 97, 0.0)


class SameStarts:
    """Samples the same episodes at every step, with whatever weights the sampler has by then."""

    def __init__(self, collector: Collector, count: int = 4) -> None:
        self.collector = collector
        self.weights = None
        self.count = count
        self.state = 0
        self.steps: list[tuple[int, ...]] = []

    def step(self, step: int, on_done=None) -> StepGroups:
        starts = [EpisodeStart(toy_tasks(1)[0], "clean", i, seed=i) for i in range(self.count)]
        episodes = [run.episode for run in self.collector.run(starts)]
        self.steps.append(episodes)
        self.state += 1
        made = [
            type(e)(**{**vars(e), "reward_parts": RewardParts(0.0, i / 10, 0.0)})
            for i, e in enumerate(episodes)
        ]
        group = Group(episodes[0].case_id, "clean", tuple(made))
        return StepGroups([group], [group], Counter(rounds=1))

    def state_dict(self):
        return {"state": self.state}

    def load_state_dict(self, state):
        self.state = state["state"]


def module_of(policy, **options) -> GRPOModule:
    optimisation = Optimisation(**{"learning_rate": 1e-2, **options})
    return GRPOModule(policy.model, policy.reference(), component, GRPOLoss(), optimisation)


def test_the_sampler_is_synchronised_before_the_first_step_and_after_every_one(tmp_path):
    policy = toy_policy(width=32)
    sampler = FakeSampler(policy.renderer, lambda request, turn: "Bye.")
    maker = SameStarts(Collector(sampler, policy.renderer, {"toy": TOY}, LIMITS))
    callback = RolloutCallback(maker, sampler)
    trainer = fit(tmp_path, module_of(policy), 3, RolloutTicket, callback)
    assert sampler.versions == [0, 1, 2, 3] and trainer.global_step == 3
    # What a step trains on was sampled with the weights that all steps before it made.
    assert [{e.weight_version for e in episodes} for episodes in maker.steps] == [{0}, {1}, {2}]


def test_the_sampler_gets_the_weights_of_the_module_as_they_are(tmp_path):
    policy = toy_policy(width=32)
    seen: list[dict[str, torch.Tensor]] = []

    class Weighed(HFSampler):
        def sync(self, weights, version):
            assert version == len(seen)
            seen.append({name: tensor.clone() for name, tensor in weights})
            super().sync([], version)

    sampler = Weighed(policy.model, policy.renderer.stop_ids)
    maker = SameStarts(Collector(sampler, policy.renderer, {"toy": TOY}, LIMITS))
    before = weights_of(policy.model)
    fit(tmp_path, module_of(policy), 2, RolloutTicket, RolloutCallback(maker, sampler))
    assert same_weights(seen[0], before) and same_weights(seen[-1], weights_of(policy.model))
    assert not same_weights(seen[0], seen[1]) and not same_weights(seen[1], seen[2])


@pytest.mark.parametrize("shared", [True, False])
def test_sampled_tokens_change_with_the_weights(tmp_path, shared):
    """Equal starts and seeds: only new weights can make other tokens. Without a learning rate none do."""
    sampled = {}
    for rate in (0.0, 1e-2):
        policy = toy_policy()
        copy = policy.model if shared else tiny_model(len(policy.tokenizer))
        sampler = HFSampler(copy, policy.renderer.stop_ids, max_in_flight=4, shared=shared)
        maker = SameStarts(Collector(sampler, policy.renderer, {"toy": TOY}, LIMITS))
        metrics = Metrics()
        fit(
            tmp_path,
            module_of(policy, learning_rate=rate),
            3,
            RolloutTicket,
            metrics,
            RolloutCallback(maker, sampler),
        )
        sampled[rate] = [[e.token_ids for e in episodes] for episodes in maker.steps]
        assert all(step["samp_logp_absdiff_max"] < 1e-4 for step in metrics.steps)
        assert same_weights(weights_of(copy), weights_of(policy.model))
        assert sampler.weight_version == 3
    still, moving = sampled[0.0], sampled[1e-2]
    assert still[0] == still[1] == still[2] == moving[0]
    assert moving[1] != moving[0] and moving[2] != moving[1]


def test_a_sampler_that_has_been_used_samples_as_a_fresh_one(base_model):
    """A resumed run has a fresh sampler; it must not differ in the last bit from one that went on."""
    domain, tasks = itsm()
    policy = load_policy(ModelSettings(checkpoint=str(base_model)), str(base_model))

    def starts(seed):
        return [EpisodeStart(task, "clean", i, seed=seed + 10 * i) for task in tasks for i in range(4)]

    def collector():
        sampler = HFSampler(policy.model, policy.renderer.stop_ids, max_in_flight=32)
        return Collector(sampler, policy.renderer, {"itsm": domain}, MEMORISED_LIMITS, max_in_flight=32)

    used = collector()
    for step in range(2):
        used.run(starts(100 + step))
        used.sampler.sync([], step)
        for size in (12, 5):
            one, two = (
                [run.episode for run in c.run(starts(200 + step)[:size])] for c in (used, collector())
            )
            assert [e.token_ids for e in one] == [e.token_ids for e in two]
            assert [e.old_log_probs for e in one] == [e.old_log_probs for e in two]


def test_the_makers_state_travels_with_the_callback():
    policy = toy_policy(width=32)
    sampler = FakeSampler(policy.renderer, lambda request, turn: "Bye.")
    collector = Collector(sampler, policy.renderer, {"toy": TOY}, LIMITS)
    makers = [
        GroupMaker(collector, toy_tasks(3), None, GroupPlan(2, 0, 2, 0), pseudo_reward, seed=1)
        for _ in range(2)
    ]
    one, two = (RolloutCallback(maker, sampler) for maker in makers)
    makers[0].step(0)
    two.load_state_dict(one.state_dict())
    assert makers[1].cases.drawn == {"clean": 2}


# --- the probe, and sampling ahead ----------------------------------------------------------------
class Stuck(HFSampler):
    """Holds the weights of the first `good` synchronisations."""

    good = 2

    def sync(self, weights, version):
        if version < self.good:
            super().sync(weights, version)
        self.weight_version = version


def test_a_planted_stale_sync_is_caught_in_the_step_in_which_it_happens(tmp_path):
    policy = toy_policy(width=32)
    sampler = Stuck(tiny_model(len(policy.tokenizer), width=32), policy.renderer.stop_ids, shared=False)
    maker = SameStarts(Collector(sampler, policy.renderer, {"toy": TOY}, LIMITS))
    probe, metrics = SyncProbe(tuple(range(2, 22)), 1e-4), Metrics()
    with pytest.raises(TrainingError, match=r"synchronisation of weights \(version 2\)"):
        fit(
            tmp_path,
            module_of(policy),
            5,
            RolloutTicket,
            metrics,
            RolloutCallback(maker, sampler, probe=probe),
        )
    assert len(maker.steps) == 2, "no step was sampled with stale weights"
    assert all(step["rollout/sync_gap"] < 1e-4 for step in metrics.steps)


def ahead_parts(rate=1e-2, seed=0):
    """A policy, a sampler with weights of its own, and real groups that always compare."""
    policy = toy_policy(seed=seed, width=32)
    copy = tiny_model(len(policy.tokenizer), seed=seed, width=32)
    sampler = HFSampler(copy, policy.renderer.stop_ids, max_in_flight=8, shared=False)
    collector = Collector(sampler, policy.renderer, {"toy": TOY}, LIMITS)
    maker = GroupMaker(collector, toy_tasks(3), None, GroupPlan(2, 0, 3, 0), pseudo_reward, seed=1)
    probe = SyncProbe(tuple(range(2, 22)), 1e-4)
    return module_of(policy, learning_rate=rate), RolloutCallback(maker, sampler, probe=probe, ahead=True)


class Trained(Callback):
    """What every step trains on: weight versions and tokens."""

    def __init__(self) -> None:
        self.versions: list[set[int]] = []
        self.tokens: list[list[tuple[int, ...]]] = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        episodes = [e for group in batch.groups for e in group.episodes]
        self.versions.append({e.weight_version for e in episodes})
        self.tokens.append([e.token_ids for e in episodes])


def test_sampling_ahead_trains_on_weights_one_step_old_and_never_older(tmp_path):
    module, callback = ahead_parts()
    trained, metrics = Trained(), Metrics()
    fit(tmp_path, module, 4, RolloutTicket, callback, trained, metrics)
    assert trained.versions == [{0}, {0}, {1}, {2}]
    gaps = [step["samp_logp_absdiff_max"] for step in metrics.steps]
    assert gaps[0] < 1e-4 < min(gaps[1:])
    again = Trained()
    module, callback = ahead_parts()
    fit(tmp_path, module, 4, RolloutTicket, callback, again)
    assert again.tokens == trained.tokens, "the thread changes nothing"


def test_a_checkpoint_takes_along_what_was_sampled_ahead(tmp_path):
    module, callback = ahead_parts()
    trained = Trained()
    whole = fit(tmp_path, module, 4, RolloutTicket, callback, trained)
    assert whole.global_step == 4

    module, callback = ahead_parts()
    saver = ModelCheckpoint(tmp_path / "saved", every_n_train_steps=2, save_top_k=-1)
    stopped = quiet_trainer(tmp_path, callback, saver, enable_checkpointing=True)
    stopped.fit(module, datamodule=StepData(4, RolloutTicket))
    (middle,) = [path for path in (tmp_path / "saved").iterdir() if "step=2" in path.name]
    module, callback = ahead_parts()
    rest = Trained()
    trainer = quiet_trainer(tmp_path, callback, rest)
    trainer.fit(module, datamodule=StepData(4, RolloutTicket), ckpt_path=middle, weights_only=False)
    assert rest.tokens == trained.tokens[2:] and rest.versions == [{1}, {2}]


def test_a_run_that_ends_early_does_not_wait_for_the_episodes_it_sampled_ahead(tmp_path):
    module, callback = ahead_parts()

    class Breaks(Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        fit(tmp_path, module, 4, RolloutTicket, callback, Breaks())
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("rollout")]


def a_turn(called: bool, span: tuple[int, int]) -> Turn:
    return Turn("", ToolCall("x", {}) if called else None, ToolResult("{}") if called else None, *span)


def hand_made(parts, stop, calls, *, inherited=0, condition="clean", error=None):
    """Messages of two tokens each; the first `inherited` of them are not trained."""
    spans = [(2 + 3 * n, 4 + 3 * n) for n in range(len(calls))]
    made = made_episode(spans, 20, seed=1, inherited=inherited, condition=condition)
    turns = tuple(a_turn(called, span) for called, span in zip(calls, spans, strict=True))
    checks = (bool(parts) and parts[0] == 1,)
    changes = {"turns": turns, "stop": stop, "error": error, "checks_final": checks}
    reward = None if error else RewardParts(*parts)
    return type(made)(**{**vars(made), **changes, "reward_parts": reward})


def test_episode_metrics_by_hand():
    one = hand_made((1.0, 0.5, 1.0), "final_answer", [True, True, False])
    two = hand_made((0.0, -0.25, 0.0), "max_turns", [True, True, True, True], inherited=2)
    assert episode_metrics([one, two]) == {
        "success": 0.5,
        "progress": 0.125,
        "quality": 0.5,
        "tool_calls": 2.0,  # two each: inherited calls are not the episode's own
        "completion_tokens": 5.0,  # six and four
        "stop_final_answer": 0.5,
        "stop_max_turns": 0.5,
        "stop_context": 0.0,
        "stop_answer_budget": 0.0,
    }


def test_success_is_that_of_the_state_checks_whatever_the_reward_says():
    good = hand_made((1.0, 0.5, 1.0), "final_answer", [True])
    collapsed = replace(good, reward_parts=RewardParts(0.0, 0.0, 0.0))
    assert episode_metrics([collapsed])["success"] == 1.0 and episode_metrics([collapsed])["progress"] == 0.0


def test_rollout_metrics_by_hand():
    good = hand_made((1.0, 0.5, 1.0), "final_answer", [True, False])
    broken = hand_made((), "error", [True], error=EpisodeError("sampler", "x"))
    fault = hand_made((0.0, 0.0, 0.0), "context", [True], condition="fault")
    sampled = [
        Group("a", "clean", (good, broken)),
        Group("b", "clean", (good, good)),
        Group("c", "fault", (fault, fault)),
    ]
    counts = Counter(rounds=2, groups_invalid=1)
    metrics = rollout_metrics(StepGroups(sampled[2:], sampled, counts))
    assert list(metrics)[:2] == ["rollout/groups_invalid", "rollout/rounds"], "a fixed order of names"
    assert metrics["rollout/groups_sampled"] == 3.0 and metrics["rollout/groups_accepted"] == 1.0
    assert metrics["rollout/episodes"] == 6.0 and metrics["rollout/invalid_episodes"] == 1.0
    assert metrics["clean/success"] == 1.0 and metrics["clean/stop_final_answer"] == 1.0
    assert metrics["fault/success"] == 0.0 and metrics["fault/stop_context"] == 1.0
    nothing = rollout_metrics(StepGroups())
    assert nothing["rollout/episodes"] == 0.0 and not [n for n in nothing if n.startswith("clean")]
    only_broken = rollout_metrics(StepGroups([], [Group("a", "clean", (broken,))], Counter()))
    assert "clean/success" not in only_broken
