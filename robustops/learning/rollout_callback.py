"""RolloutCallback: owns the sampler, fills every step's ticket, hands new weights to the sampler."""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from robustops.learning.adapters import merged_weights
from robustops.learning.data import RolloutTicket
from robustops.learning.groups import GroupMaker, StepGroups
from robustops.learning.hooks import NO_TRAINING_HOOKS, TrainingHooks
from robustops.learning.strategies import gathered
from robustops.learning.sync_probe import SyncProbe
from robustops.monitor.rollouts import observation_digest, rollout_statistics
from robustops.records import Episode
from robustops.rollout.episode import EpisodeRun
from robustops.rollout.sampler import CountsPrefixes, Sampler, Sleeps


class RolloutCallback(Callback):
    """Samples the groups of a step before the module trains on them.

    The sampler holds the current weights: they are synchronised after every step, and before the first one
    of a (resumed) run. `sampled` keeps the step's episodes for the run store. probe: compares sampler and
    trainer after every synchronisation. hooks: see `learning.hooks`; where they may keep weights from the
    sampler, a checkpoint holds those that it had.

    ahead: sample the next step's episodes while this step trains. The sampler must then have weights of its
    own; an episode's weights are one step old when it is trained on, never older. A checkpoint waits for
    the sampling that goes on and takes its result along.
    """

    def __init__(
        self,
        maker: GroupMaker,
        sampler: Sampler,
        *,
        probe: SyncProbe | None = None,
        ahead: bool = False,
        hooks: TrainingHooks = NO_TRAINING_HOOKS,
    ) -> None:
        self.maker = maker
        self.sampler = sampler
        self.probe = probe
        self.hooks = hooks
        self.sampled: StepGroups = StepGroups()
        self._ahead = _Ahead(maker) if ahead else None
        self._gap: float | None = None
        #: What the sampler was given last, if hooks hold weights back: version and weights.
        self._given: tuple[int, dict[str, Tensor]] | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._given is not None:  # of the checkpoint
            version, weights = self._given
            self.sampler.sync(weights.items(), version)
            self._check(trainer, pl_module, partial(self._hand_over, pl_module.model, trainer.global_step))
            return
        done: Any = pl_module.steps_done
        self._sync(trainer, pl_module, done + 1)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: RolloutTicket, batch_idx: int
    ) -> None:
        if self._ahead is None:
            self.sampled = self.maker.step(batch.step)
            if isinstance(self.sampler, Sleeps):
                self.sampler.sleep()
        else:
            self.sampled = self._ahead.take(batch.step)
        batch.groups = self.sampled.accepted
        self._describe(batch, trainer.global_step)
        if self._ahead is not None:
            self._sync(trainer, pl_module, batch.step + 2)
            if batch.step + 1 < trainer.num_training_batches:
                self._ahead.start(batch.step + 1)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._ahead is None:
            self._sync(trainer, pl_module, batch.step + 2)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if self._ahead is not None:
            self._ahead.stop()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if self._ahead is not None:
            self._ahead.stop()

    def state_dict(self) -> dict[str, Any]:
        ahead = self._ahead.state_dict() if self._ahead is not None else None
        return {**self.maker.state_dict(), "ahead": ahead, "given": self._given}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.maker.load_state_dict(state_dict)
        if self.hooks.holds_weights:  # a branch may be without them
            self._given = state_dict.get("given")
        if self._ahead is not None:
            self._ahead.load_state_dict(state_dict["ahead"])

    # ---------------------------------------------------------------------------------------------
    def _sync(self, trainer: Trainer, pl_module: LightningModule, step: int) -> None:
        """New weights for the sampler; the probe then tells whether they have arrived. step: the one that is
        sampled with them, from 1.
        """
        model: Any = pl_module.model
        version = trainer.global_step
        hand_over = partial(self._hand_over, model, version)
        if self.hooks.on_sync(step):
            hand_over()
        self._check(trainer, pl_module, hand_over)

    def _check(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        hand_over: Callable[[], None] | None = None,
    ) -> None:
        """Let the probe compare sampler and trainer. hand_over: gives the sampler the weights once more."""
        if self.probe is not None:
            model: Any = pl_module.model
            version = trainer.global_step
            with trainer.precision_plugin.forward_context():
                self._gap = self.probe.check(self.sampler, model, pl_module.device, version, hand_over)

    def _hand_over(self, model: Any, version: int) -> None:
        with gathered(model):
            self.sampler.sync(merged_weights(model), version)
            if self.hooks.holds_weights:
                copy = {name: weight.detach().cpu().clone() for name, weight in merged_weights(model)}
                self._given = version, copy

    def _describe(self, ticket: RolloutTicket, policy_version: int) -> None:
        """What was sampled, for the step's record."""
        statistics = rollout_statistics(
            self.sampled.sampled,
            self.maker.weights,
            max_turns=self.maker.collector.limits.max_turns,
            policy_version=policy_version,
        )
        ticket.metrics = statistics | rollout_metrics(self.sampled) | self._sampler_metrics()
        ticket.facts = {"obs_sha": observation_digest(self.sampled.sampled)}

    def _sampler_metrics(self) -> dict[str, float]:
        """sync_gap: log-prob difference of the last probe; prefix_hit_rate: share of the context tokens
        that the sampler had in its cache, if it counts them.
        """
        metrics = {} if self._gap is None else {"rollout/sync_gap": self._gap}
        if isinstance(self.sampler, CountsPrefixes) and (found := self.sampler.prefix_cache_stats()):
            metrics["rollout/prefix_hit_rate"] = float(found["hit_rate"])
        return metrics


class _Stopped(Exception):
    """Nobody waits for these episodes any more."""


class _Ahead:
    """Samples one step in a thread of its own. Worlds are opened, used and closed in that thread alone."""

    def __init__(self, maker: GroupMaker) -> None:
        self.maker = maker
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rollout")
        self._pending: tuple[int, Future[StepGroups]] | None = None
        self._stopping = False

    def start(self, step: int) -> None:
        self._pending = (step, self._thread.submit(self.maker.step, step, self._goes_on))

    def take(self, step: int) -> StepGroups:
        """What was sampled for the step; the first one is sampled while the trainer waits."""
        if self._pending is None or self._pending[0] != step:
            self.start(step)
        assert self._pending is not None
        (_, future), self._pending = self._pending, None
        return future.result()

    def stop(self) -> None:
        """End what is being sampled, and close the worlds; further calls do nothing."""
        if self._stopping:
            return
        self._stopping = True
        if self._pending is not None:
            self._pending[1].exception()
        self._thread.submit(self.maker.collector.close).result()
        self._thread.shutdown()

    def state_dict(self) -> dict[str, Any] | None:
        if self._pending is None:
            return None
        step, future = self._pending
        return {"step": step, "groups": zlib.compress(pickle.dumps(future.result()))}

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        if state is not None:
            done: Future[StepGroups] = Future()
            done.set_result(pickle.loads(zlib.decompress(state["groups"])))
            self._pending = (int(state["step"]), done)

    def _goes_on(self, run: EpisodeRun) -> None:
        if self._stopping:
            raise _Stopped


def rollout_metrics(sampled: StepGroups) -> dict[str, float]:
    """What one step sampled, before any group was filtered out."""
    metrics: dict[str, float] = {f"rollout/{name}": float(n) for name, n in sorted(sampled.counts.items())}
    metrics["rollout/groups_sampled"] = float(len(sampled.sampled))
    metrics["rollout/groups_accepted"] = float(len(sampled.accepted))
    everyone = [episode for group in sampled.sampled for episode in group.episodes]
    metrics["rollout/episodes"] = float(len(everyone))
    metrics["rollout/invalid_episodes"] = float(sum(e.error is not None for e in everyone))
    for condition in sorted({group.condition for group in sampled.sampled}):
        valid = [e for e in everyone if e.condition == condition and e.error is None]
        if valid:
            metrics.update({f"{condition}/{k}": v for k, v in episode_metrics(valid).items()})
    return metrics


def episode_metrics(episodes: list[Episode]) -> dict[str, float]:
    """Means over valid episodes: success (by the state checks), the other reward parts, calls, tokens, shares
    of each way to stop.
    """
    count = len(episodes)
    parts = [e.reward_parts for e in episodes if e.reward_parts is not None]
    metrics = {
        "success": sum(e.success for e in episodes) / count,
        "progress": sum(p.progress for p in parts) / count,
        "quality": sum(p.quality for p in parts) / count,
        "tool_calls": sum(sum(t.call is not None for t in e.own_turns) for e in episodes) / count,
        "completion_tokens": sum(sum(e.loss_mask) for e in episodes) / count,
    }
    for stop in ("final_answer", "max_turns", "context", "answer_budget"):
        metrics[f"stop_{stop}"] = sum(e.stop == stop for e in episodes) / count
    return metrics
