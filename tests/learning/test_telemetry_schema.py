"""A short real GRPO fit: every quantity of the schema is in its record, and what it says is what happened."""

from __future__ import annotations

import hashlib
import math
import statistics
from functools import partial

import pytest
import torch
from lightning.pytorch.callbacks import Callback

from robustops.faults.plan import fault_choices
from robustops.faults.scheduler import FaultScheduler
from robustops.learning.data import RolloutTicket
from robustops.learning.groups import GroupMaker, GroupPlan
from robustops.learning.grpo_loss import GRPOLoss
from robustops.learning.grpo_module import GRPOModule, Optimisation
from robustops.learning.rollout_callback import RolloutCallback
from robustops.learning.telemetry_callback import TelemetryCallback
from robustops.monitor.callback import AnomalyMonitor
from robustops.monitor.schema import ELSEWHERE, QUANTITIES, caps, check_metrics, names
from robustops.monitor.telemetry import TelemetryWriter, read_telemetry
from robustops.objectives.advantages import component
from robustops.records import Episode, Group, ToolResult
from robustops.rewards.combine import RewardWeights
from robustops.rewards.parts import reward_parts
from robustops.rollout.collector import Collector
from robustops.rollout.episode import EpisodeRun, Limits
from robustops.tracking.run_store import RunStore
from tests.learning.support import fit, toy_policy
from tests.rollout.fake_sampler import TokenExpert
from tests.toy_domain import TOY, toy_tasks

WEIGHTS = RewardWeights(1.0, 0.5, 0.25)
LIMITS = Limits(4000, 200, 12)
#: What the first step cannot have: there is no step before it.
NOT_AT_FIRST = {"adv_reward_lag1_corr"}


class Kept(Callback):
    """Groups of each step, sampled and trained on."""

    def __init__(self, rollout: RolloutCallback) -> None:
        self.rollout = rollout
        self.sampled: list[list[Group]] = []
        self.trained: list[list[Group]] = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.sampled.append(list(self.rollout.sampled.sampled))
        self.trained.append(list(batch.groups))


def train(folder, *, steps=3):
    """Telemetry, what was sampled and trained on, and the monitor's history of a fit on the toy domain."""
    policy = toy_policy(width=32)
    sampler = TokenExpert(policy.renderer, {"toy": TOY}, gives_up=0.2)
    collector = Collector(sampler, policy.renderer, {"toy": TOY}, LIMITS, retries=0)
    scheduler = FaultScheduler(fault_choices("trained"), seed=3)
    plan = GroupPlan(2, 1, 4, 1)
    maker = GroupMaker(collector, toy_tasks(6), scheduler, plan, reward_parts, seed=1, weights=WEIGHTS)
    module = GRPOModule(
        policy.model,
        policy.reference(),
        partial(component, weights=WEIGHTS),
        GRPOLoss(importance_cap=2.0),
        Optimisation(1e-3, epochs=2),
        reward_weights=WEIGHTS,
    )
    rollout = RolloutCallback(maker, sampler)
    kept, monitor = Kept(rollout), AnomalyMonitor(lambda alert: None)
    with TelemetryWriter(folder / "telemetry.jsonl") as writer, RunStore(folder / "run.db") as store:
        telemetry = TelemetryCallback(writer, store, lambda: rollout.sampled.sampled)
        fit(folder, module, steps, RolloutTicket, rollout, telemetry, kept, monitor)
    return read_telemetry(folder / "telemetry.jsonl"), kept, monitor.history


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    torch.manual_seed(0)
    return train(tmp_path_factory.mktemp("fit"))


def valid(groups: list[Group]) -> list[Episode]:
    return [e for group in groups for e in group.episodes if e.error is None]


def reward(episode: Episode) -> float:
    parts = episode.reward_parts
    return parts.success + 0.5 * parts.progress + 0.25 * parts.quality


def test_every_name_is_there_finite_or_nan_as_its_entry_says(ran):
    records, kept, _ = ran
    assert any(kept.trained) and len(records) == 3
    for number, record in enumerate(records):
        assert check_metrics(record.metrics) == []
        assert tuple(record.metrics)[: len(names())] == names()
        can = set(caps(record.facts["lacks"])) - (NOT_AT_FIRST if number == 0 else set())
        assert kept.trained[number], "each step has something to train on"
        for quantity in QUANTITIES:
            value = record.metrics[quantity.name]
            assert math.isfinite(value) == (quantity.name in can), (quantity.name, value)


def test_further_numbers_are_named_by_their_part(ran):
    extra = set(ran[0][0].metrics) - set(names())
    assert {"train/loss", "train/tokens", "rollout/groups_sampled", "clean/success"} <= extra
    assert all("/" in name for name in extra)


def test_facts_are_those_of_the_run(ran):
    records, kept, _ = ran
    for number, record in enumerate(records):
        facts = record.facts
        assert facts["schema_version"] == 1 and facts["value_source"] == "group_mean"
        assert facts["policy_version"] == 2 * number, "two updates a step"
        said = hashlib.sha256()
        for episode in valid(kept.sampled[number]):
            for turn in episode.own_turns:
                if turn.call is not None:
                    said.update(hashlib.sha256(turn.result.text.encode()).hexdigest()[:16].encode() + b"\n")
        assert facts["obs_sha"] == said.hexdigest()[:16]


def test_the_clock_is_in_no_line(ran):
    assert not {name for record in ran[0] for name in {**record.metrics, **record.facts}} & set(ELSEWHERE)


def test_the_monitor_sees_the_very_records_that_are_written(ran):
    records, _, history = ran
    assert [r.to_line() for r in history] == [r.to_line() for r in records]


def test_equal_fits_write_equal_lines(ran, tmp_path):
    torch.manual_seed(0)
    again, _, _ = train(tmp_path, steps=2)
    assert [r.to_line() for r in again] == [r.to_line() for r in ran[0][:2]]


def test_rollout_quantities_recomputed_from_all_sampled_episodes(ran):
    records, kept, _ = ran
    filtered = 0
    for record, groups, trained in zip(records, kept.sampled, kept.trained, strict=True):
        found, episodes = record.metrics, valid(groups)
        filtered += len(groups) - len(trained)
        rewards = [reward(e) for e in episodes]
        success = [float(all(e.checks_final)) for e in episodes]
        assert found["reward_mean"] == pytest.approx(statistics.mean(rewards))
        assert found["reward_std"] == pytest.approx(statistics.stdev(rewards))
        assert found["success_mean"] == pytest.approx(statistics.mean(success))
        assert found["reward_success_corr"] == pytest.approx(statistics.correlation(rewards, success))
        assert found["reward_success_gap"] == pytest.approx(
            statistics.mean(rewards) / 1.75 - statistics.mean(success)
        )
        spread = [statistics.stdev(reward(e) for e in valid([g])) for g in groups]
        assert found["group_reward_std_mean"] == pytest.approx(statistics.mean(spread))
        assert found["zero_signal_frac"] == pytest.approx(statistics.mean(float(s == 0) for s in spread))
        lengths = [sum(turn.end - turn.start for turn in e.own_turns) for e in episodes]
        assert (found["len_min"], found["len_max"]) == (min(lengths), max(lengths))
        assert found["len_mean"] == pytest.approx(statistics.mean(lengths))
        replies = [t.result for e in episodes for t in e.own_turns if t.call is not None]
        assert found["tool_calls_mean"] == pytest.approx(len(replies) / len(episodes))
        assert found["tool_error_frac"] == pytest.approx(sum(r.is_error for r in replies) / len(replies))
        assert found["obs_len_mean"] == pytest.approx(statistics.mean(len(r.text) for r in replies))
        assert found["turns_max"] == max(len(e.own_turns) for e in episodes)
        assert found["no_answer_frac"] == pytest.approx(
            sum(e.stop != "final_answer" for e in episodes) / len(episodes)
        )
        assert found["policy_lag_max"] == 0 and found["obs_roundtrip_mismatch_frac"] == 0
    assert filtered > 0, "some groups were sampled but not trained on"


def test_loss_quantities_recomputed_from_the_trained_episodes(ran):
    records, kept, _ = ran
    earlier: list[float] = []
    for record, groups in zip(records, kept.trained, strict=True):
        episodes = [e for group in groups for e in group.episodes]
        members = [number for number, group in enumerate(groups) for _ in group.episodes]
        advantages = component([e.reward_parts for e in episodes], members, WEIGHTS).values.tolist()
        means = [statistics.mean(map(reward, group.episodes)) for group in groups]
        relative = [reward(e) - means[m] for e, m in zip(episodes, members, strict=True)]
        found = record.metrics
        assert found["return_mean"] == pytest.approx(statistics.mean(map(reward, episodes)))
        assert found["adv_reward_corr"] == pytest.approx(statistics.correlation(advantages, relative))
        assert found["baseline_mae"] == pytest.approx(statistics.mean(map(abs, relative)))
        if earlier:
            count = min(len(earlier), len(advantages))
            slow = statistics.correlation(advantages[:count], earlier[:count])
            assert found["adv_reward_lag1_corr"] == pytest.approx(slow)
        earlier = relative
        own = sum(turn.end - turn.start for e in episodes for turn in e.own_turns)
        assert found["train/tokens"] == own and found["samp_logp_absdiff_max"] > 0.5, "no model said these"
        assert found["update_norm_rel"] > 0 and found["skipped_updates"] == 0


def test_a_reply_that_is_changed_on_its_way_into_the_context_shows(tmp_path, monkeypatch):
    """Every second reply is changed between the tool boundary and the context."""
    original, count = EpisodeRun._turn, iter(range(10**6))

    def changed(self, message, result, *rest):
        if message.call is not None and result is not None and next(count) % 2:
            result = ToolResult(result.text + " ", result.is_error)
        original(self, message, result, *rest)

    monkeypatch.setattr(EpisodeRun, "_turn", changed)
    records, _, _ = train(tmp_path, steps=1)
    assert 0.2 < records[0].metrics["obs_roundtrip_mismatch_frac"] < 0.8
