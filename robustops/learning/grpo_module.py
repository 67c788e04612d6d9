"""Group-relative policy optimisation of tool-using episodes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from robustops.errors import TrainingError
from robustops.learning.batching import filler, rank_micro_batches
from robustops.learning.data import RolloutTicket
from robustops.learning.forward import score_tokens
from robustops.learning.grpo_loss import (
    GRPOLoss,
    TrainedEpisode,
    batch_loss,
    explain_gradient,
    make_batch,
    scored_before,
)
from robustops.learning.hooks import NO_TRAINING_HOOKS, TrainingHooks
from robustops.learning.optimisation import PolicyModule, accumulate, adamw, hold_to, own_rates, update
from robustops.learning.policy import Reference, set_training_mode
from robustops.learning.processes import gather_objects, total, world
from robustops.learning.shared_prefix import MicroBatch, can_share, padding_share, plan_micro_batches
from robustops.learning.step_telemetry import AdvantageTelemetry, Updates, step_facts, update_statistics
from robustops.learning.value_head import Critic, prompt_features
from robustops.learning.weight_change import Weights
from robustops.monitor.schema import in_order
from robustops.objectives.advantage_guards import AdvantageGuards, guarded
from robustops.objectives.advantage_statistics import credit_statistics, value_statistics
from robustops.objectives.advantages import Advantages, against_values, weighted_rewards
from robustops.objectives.credit import NO_LOCAL_CREDIT, LocalCredit, spread
from robustops.objectives.grouping import sampled_together
from robustops.objectives.losses import episode_token_weights
from robustops.objectives.statistics import TrainedTokens
from robustops.records import CUT_OFF, Episode, Group, RewardParts
from robustops.rewards.combine import RewardWeights
from robustops.rewards.parts import RewardRules, call_evidence

#: Micro-batches without gradient are so many times as large: they keep no activations.
SCORED_TOKENS = 2
#: Advantages of raw parts and group numbers: `objectives.advantages.aggregate` or `.component`.
Normalise = Callable[[Sequence[RewardParts], Sequence[int]], Advantages]


@dataclass(frozen=True)
class Optimisation:
    """decay_steps: the learning rate has decayed linearly to a tenth after so many steps (None: constant),
    decay_from: beginning with this one (0: after the warm-up); epochs, mini_batches: optimiser updates of a
    step are their product; micro_batch_tokens: padded tokens of one micro-batch; share_prefix: what the
    episodes of a group have in common is computed once, where it pays and the model allows it;
    whole_updates: see `learning.optimisation.update`.
    """

    learning_rate: float
    warmup_steps: int = 0
    decay_steps: int | None = None
    decay_from: int = 0
    adam_epsilon: float = 1e-8
    weight_decay: float = 0.0
    grad_clip: float = 1.0
    epochs: int = 1
    mini_batches: int = 1
    micro_batch_tokens: int = 8192
    share_prefix: bool = True
    whole_updates: bool = False

    @property
    def updates(self) -> int:
        """Optimiser updates a step."""
        return self.epochs * self.mini_batches


class GRPOModule(PolicyModule):
    """Trains on the groups that `RolloutCallback` put into the step's ticket.

    reference: the frozen SFT policy (not part of the module's state), None: no KL; normalise: the order of
    reward normalisation; credit: local credit; rules, reward_weights: those of the rewards; guards: of the
    advantages; hooks: see `learning.hooks`; critic: a value head in place of the groups' means. Clean and
    fault flow are means of equal weight. A step without any group leaves the weights as they are. Where
    several processes train, all have the same groups, and each takes its share of the micro-batches.
    """

    stage = "grpo"

    def __init__(
        self,
        model: PreTrainedModel,
        reference: Reference | None,
        normalise: Normalise,
        loss: GRPOLoss,
        optimisation: Optimisation,
        *,
        credit: LocalCredit | None = None,
        rules: RewardRules | None = None,
        reward_weights: RewardWeights | None = None,
        guards: AdvantageGuards | None = None,
        hooks: TrainingHooks = NO_TRAINING_HOOKS,
        critic: Critic | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.reference = reference
        self.normalise = normalise
        self.loss = loss
        self.optimisation = optimisation
        self.credit = credit or LocalCredit()
        self.rules = rules or RewardRules()
        self.reward_weights = reward_weights
        self.guards = guards or AdvantageGuards()
        self.hooks = hooks
        self.critic = critic
        self.grad_clip = optimisation.grad_clip
        self.updates_per_step = optimisation.updates
        self.advantage_telemetry = AdvantageTelemetry()
        self._shares: tuple[int, bool] | None = None
        #: Of the last step's episodes in order, before local credit; [] where there were none.
        self.advantages: list[float] = []
        self._rates: list[dict[str, Any]] = []
        self._value_numbers: dict[str, float] = {}

    def configure_optimizers(self) -> Any:
        o = self.optimisation
        decay = None if o.decay_steps is None else o.decay_steps * o.updates
        begin = max(0, o.decay_from - 1) * o.updates
        warmup = o.warmup_steps * o.updates
        made = adamw(self, o.learning_rate, o.weight_decay, warmup, decay, o.adam_epsilon, begin)
        self._rates = own_rates(made["optimizer"])
        return made

    def on_train_start(self) -> None:
        set_training_mode(self.model)
        hold_to(self, self._rates)
        if self.reference is not None:
            self.reference.model.to(self.device)  # type: ignore[arg-type]

    def training_step(self, ticket: RolloutTicket, batch_idx: int) -> None:
        episodes = [episode for group in ticket.groups for episode in group.episodes]
        metrics = {**ticket.metrics, "train/episodes": float(len(episodes))}
        version, before = self.global_step, Weights(self)
        rows: list[TrainedEpisode] = []
        self.advantages = []
        if episodes:
            rows, numbers = self._prepare(ticket.groups, episodes, ticket.step + 1)
            metrics.update(numbers)
        metrics.update(self._optimise(ticket, rows))
        metrics["update_norm_rel"] = before.change()
        facts = step_facts(
            version,
            reference=self.reference is not None,
            whole_weights=before.held,
            value_head=self.critic is not None,
        )
        self.keep_record(in_order(metrics), {**facts, **ticket.facts})

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["advantage_telemetry"] = self.advantage_telemetry.state
        if self.critic is not None:
            checkpoint["critic"] = self.critic.head.state_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.advantage_telemetry.state = checkpoint.get("advantage_telemetry")
        if self.critic is not None:
            self.critic.head.load_state_dict(checkpoint["critic"])

    # ---------------------------------------------------------------------------------------------
    def _prepare(
        self, groups: Sequence[Group], episodes: Sequence[Episode], step: int = 1
    ) -> tuple[list[TrainedEpisode], dict[str, float]]:
        """Episodes with their advantages, and numbers about rewards and advantages."""
        members = [number for number, group in enumerate(groups) for _ in group.episodes]
        parts = [episode.reward_parts for episode in episodes if episode.reward_parts is not None]
        assert len(parts) == len(episodes), "accepted groups carry reward parts"
        advantages = self._advantages(step, groups, parts, members)
        self.advantages = advantages.values.tolist()
        evidence = [call_evidence(episode, self.rules) for episode in episodes]
        spans = spread(advantages, episodes, evidence, self.credit)
        spans = self.hooks.on_credit(step, groups, spans)
        if self.guards.even:
            spans = spread(advantages, episodes, evidence, NO_LOCAL_CREDIT)
        numbers = self.advantage_telemetry.statistics(parts, advantages, members, self.reward_weights)
        numbers |= self._value_numbers
        numbers |= credit_statistics(advantages.values, spans, [episode.loss_mask for episode in episodes])
        rows = [TrainedEpisode(e, a, 0.0) for e, a in zip(episodes, spans, strict=True)]
        return self._with_log_probs(rows), numbers

    def _advantages(
        self, step: int, groups: Sequence[Group], parts: Sequence[RewardParts], members: Sequence[int]
    ) -> Advantages:
        """(episodes,) each. members: number of each episode's group, as it was sampled."""
        compared = self.hooks.on_members(step, groups, members)
        episodes = [episode for group in groups for episode in group.episodes]
        if self.guards.regroup:
            compared = sampled_together(episodes)
        made = self.normalise(parts, compared)
        if self.critic is not None:
            made = self._judge(step, groups, parts, made)
        advantages = self.hooks.on_advantages(step, groups, made)
        if self.guards.rule == "recompute":
            advantages = self.normalise(parts, sampled_together(episodes))
        return guarded(advantages, parts, members, self.guards, self.reward_weights)

    def _judge(
        self, step: int, groups: Sequence[Group], parts: Sequence[RewardParts], otherwise: Advantages
    ) -> Advantages:
        """Advantages against the value head, which then learns from the step; `otherwise` if it is not
        believed.
        """
        assert self.critic is not None
        episodes = [episode for group in groups for episode in group.episodes]
        budget = self.optimisation.micro_batch_tokens
        features = prompt_features(self.model, episodes, self.device, budget)
        values, rewards = self.critic.head.values(features), weighted_rewards(parts, self.reward_weights)
        self._value_numbers = value_statistics(values, rewards)
        targets = self.hooks.on_value_targets(step, groups, rewards)
        asked = partial(self.hooks.on_value_update, step)
        self.critic.head.learn(features, targets, self.optimisation.updates, asked)
        if not self.critic.believed(self._value_numbers["vf_ev"]):
            return otherwise
        return against_values(parts, values, self.reward_weights, whiten=self.critic.whiten)

    def _with_log_probs(self, rows: list[TrainedEpisode]) -> list[TrainedEpisode]:
        """With what no update of the step changes: log-probs of the reference; and of the policy before the
        step, where an update needs them that is not its first one on these episodes (the first one has them
        from its own forward pass).
        """
        if self.reference is not None:
            with self.reference.active() as frozen:
                found = self._log_probs(rows, frozen)
            rows = [dataclasses.replace(row, ref_log_probs=found[i]) for i, row in enumerate(rows)]
        if self.loss.importance_cap is not None and self.optimisation.mini_batches > 1:
            found = self._log_probs(rows, self.model)
            rows = [dataclasses.replace(row, old_log_probs=found[i]) for i, row in enumerate(rows)]
        return rows

    @torch.no_grad()
    def _log_probs(self, rows: Sequence[TrainedEpisode], model: PreTrainedModel) -> dict[int, Tensor]:
        """(tokens,) log-probs of every episode, by row number. Each process computes a share of them."""
        scored: dict[int, Tensor] = {}
        for part in self._micro_batches(rows, *world(), scale=SCORED_TOKENS):
            sequences = filler().to(self.device)  # ZeRO-3 wants as many passes of every process
            if part.rows:
                own = [rows[i] for i in part.rows]
                sequences = make_batch(own, self.loss, self.device, part.shared).sequences
            temperature = self.loss.temperature
            scores = score_tokens(model, sequences, temperature=temperature, with_entropy=False)
            for i, values in zip(part.rows, scores.log_probs.cpu(), strict=False):
                scored[i] = values[: len(rows[i].episode.token_ids)].clone()
        return dict(item for part in gather_objects(list(scored.items())) for item in part)

    def _optimise(self, ticket: RolloutTicket, rows: Sequence[TrainedEpisode]) -> dict[str, float]:
        """All updates of the step; without episodes they change nothing."""
        updates, rows = Updates(), list(rows)
        coefficients, plan = self.hooks.on_loss(ticket.step + 1, self.loss), self.optimisation
        remembers = self.loss.importance_cap is not None and plan.mini_batches == 1 < plan.epochs
        for number, chosen in enumerate(self._mini_batches(ticket.groups), 1):
            weighted = self._weighted([rows[i] for i in chosen])
            loss, trained = self._backward(ticket.step + 1, weighted, coefficients)
            norm, rate = self._update(ticket.step + 1, weighted, coefficients, loss)
            updates.add(loss, norm, rate, [tokens for _, tokens in trained])
            if number == 1 and remembers:
                self._remember(rows, chosen, trained)
        reference = self.reference is not None
        metrics = update_statistics(updates, self.loss, plan.epochs, reference=reference)
        if rows:
            lengths = [len(row.episode.token_ids) for row in rows]
            metrics["train/tokens"] = float(sum(sum(row.episode.loss_mask) for row in rows))
            metrics["train/padding_share"] = padding_share(lengths, self._micro_batches(rows))
        return metrics

    def _remember(
        self,
        rows: list[TrainedEpisode],
        chosen: Sequence[int],
        trained: Sequence[tuple[tuple[int, ...], TrainedTokens]],
    ) -> None:
        """Keep old log-probs for the updates to come. trained: places among `chosen`, their tokens."""
        for members, tokens in trained:
            places = [chosen[member] for member in members]
            scored = scored_before([rows[place] for place in places], tokens)
            for place, row in zip(places, scored, strict=True):
                rows[place] = row

    def _mini_batches(self, groups: Sequence[Group]) -> list[list[int]]:
        """Episode numbers of each update: groups of either kind are dealt in turn, the same every epoch."""
        count = self.optimisation.mini_batches
        parts: list[list[int]] = [[] for _ in range(count)]
        dealt, first = {"clean": 0, "fault": 0}, 0
        for group in groups:
            parts[dealt[group.condition] % count] += range(first, first + len(group.episodes))
            dealt[group.condition] += 1
            first += len(group.episodes)
        return parts * self.optimisation.epochs

    def _weighted(self, rows: Sequence[TrainedEpisode]) -> list[TrainedEpisode]:
        """With the weights of one update. Cut-off episodes that are masked count neither above nor below."""
        masked = [self.loss.overlong == "mask" and row.episode.stop in CUT_OFF for row in rows]
        weights = episode_token_weights(
            [0 if out else sum(row.episode.loss_mask) for row, out in zip(rows, masked, strict=True)],
            [row.episode.condition == "fault" for row in rows],
            self.loss.aggregation,
        )
        return [
            dataclasses.replace(row, weight=0.0 if out else weight)
            for row, weight, out in zip(rows, weights, masked, strict=True)
        ]

    def _micro_batches(
        self, rows: Sequence[TrainedEpisode], rank: int = 0, size: int = 1, *, scale: int = 1
    ) -> list[MicroBatch]:
        """The micro-batches of one process, as many as each of `size` has; `scale` times as large."""
        budget, episodes = scale * self.optimisation.micro_batch_tokens, [row.episode for row in rows]
        if not self._shares_prefixes():
            plain = rank_micro_batches([len(e.token_ids) for e in episodes], budget, rank, size)
            return [MicroBatch(tuple(chosen)) for chosen in plain]
        return plan_micro_batches(
            [e.token_ids for e in episodes],
            [e.loss_mask for e in episodes],
            [(e.case_id, e.condition) for e in episodes],
            budget,
            rank,
            size,
        )

    def _shares_prefixes(self) -> bool:
        """Asked once a step: it looks at every parameter."""
        if self._shares is None or self._shares[0] != self.global_step:
            models = [self.model] if self.reference is None else [self.model, self.reference.model]
            shares = self.optimisation.share_prefix and all(map(can_share, models))
            self._shares = (self.global_step, shares)
        return self._shares[1]

    def _backward(
        self, step: int, rows: Sequence[TrainedEpisode], coefficients: GRPOLoss
    ) -> tuple[float, list[tuple[tuple[int, ...], TrainedTokens]]]:
        """The gradient of one update, over micro-batches and processes; the loss, and the rows and tokens of
        each micro-batch.
        """
        tokens: list[tuple[tuple[int, ...], TrainedTokens]] = []

        def compute(part: MicroBatch) -> Tensor:
            if not part.rows:
                return score_tokens(self.model, filler().to(self.device)).log_probs.sum()
            batch = make_batch([rows[i] for i in part.rows], coefficients, self.device, part.shared)
            loss, trained = batch_loss(self.model, batch, coefficients, step)
            tokens.append((part.rows, trained))
            return loss

        loss = accumulate(self, [partial(compute, part) for part in self._micro_batches(rows, *world())])
        return total([loss])[0], [one for part in gather_objects(tokens) for one in part]

    def _update(
        self, step: int, rows: Sequence[TrainedEpisode], coefficients: GRPOLoss, loss: float
    ) -> tuple[float, float]:
        """One optimiser update; a gradient that is not finite stops it and is traced to its token."""
        try:
            whole = self.optimisation.whole_updates
            return update(self, self.grad_clip, loss=loss, step=step, hooks=self.hooks, whole=whole)
        except TrainingError:
            explain_gradient(self.model, rows, coefficients, step, self.device)
            raise
