"""What may be done to a training run: a closed list of bounded changes to existing settings.

A change sets one setting to one of its listed values, or scales it by one of its listed factors within
bounds. Everything else is out of reach: the state checks that decide success, the tasks, the evaluation, the
monitor itself, an injected failure. A plan has at most two changes, and both belong to one family of knobs,
so that a canary tells what helped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from robustops.errors import ConfigError
from robustops.monitor.panel import Panel

#: Most changes of one attempt.
MOST_CHANGES = 2
#: Sections that no knob may lie in, and keys that decide what counts as success.
PROTECTED = (
    *("monitor", "evaluation", "run_fault", "second_run_fault", "fault", "sft", "stages", "seed"),
    *("domain.name", "domain.database", "reward.success"),
)

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Change:
    """One setting and its new value."""

    key: str
    value: Any

    def __str__(self) -> str:
        return f"{self.key}={text_of(self.value)}"


@dataclass(frozen=True)
class Knob:
    """A setting that may be changed.

    families: what it belongs to; values: what it may be set to; factors: what its present value may be
    multiplied by; low, high: bounds of the product, which never turn it the other way; rises: it is never
    set to less than it is; needs: key and value without which it does nothing; sets: columns of the telemetry
    that it moves by itself, in a healthy run as well, sets_at: those that single values of it move; scales:
    columns that are proportional to it.
    """

    key: str
    families: tuple[str, ...]
    values: tuple[Any, ...] = ()
    factors: tuple[float, ...] = ()
    low: float = 0.0
    high: float = float("inf")
    rises: bool = False
    needs: tuple[str, Any] | None = None
    sets: tuple[str, ...] = ()
    sets_at: Mapping[Any, tuple[str, ...]] = field(default_factory=dict)
    scales: tuple[str, ...] = ()

    def options(self, settings: Settings) -> list[Change]:
        """The changes that differ from what is set now; none where the knob does nothing."""
        if self.key not in settings or (self.needs and settings.get(self.needs[0]) != self.needs[1]):
            return []
        now = settings[self.key]
        found = [*self.values, *(self.scaled(now, factor) for factor in self.factors)]
        return [
            Change(self.key, value)
            for value in dict.fromkeys(found)
            if not same(value, now) and not (self.rises and value < now)
        ]

    def scaled(self, now: Any, factor: float) -> Any:
        """A value times a factor, within bounds and of the value's own type; None stays None."""
        if now is None:
            return None
        bounded = min(self.high, max(self.low, now * factor))
        value = max(now, bounded) if factor > 1 else min(now, bounded)
        return round(value) if isinstance(now, int) else float(f"{value:.6g}")


def same(one: Any, other: Any) -> bool:
    """Whether two values of a setting are one: 1 is not True."""
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _knobs(*knobs: Knob) -> dict[str, Knob]:
    return {knob.key: knob for knob in knobs}


#: Columns of what trainer and sampler say of the same tokens: a constraint in the sampler is one more thing
#: that the trainer does not know of.
_GAP = (
    *("samp_logp_absdiff_mean", "samp_logp_absdiff_max"),
    *("is_ratio_mean", "is_ratio_min", "is_ratio_max", "is_ratio_ess"),
)
#: How far the policy is from that of the step's first update.
_RATIO = ("ratio_mean", "ratio_max", "ratio_p99")
#: Of rewards as they are compared, which are others where a part of them is left out.
_TOTAL = (
    *(
        "reward_mean",
        "reward_std",
        "reward_min",
        "reward_max",
        "return_mean",
        "baseline_bias",
        "baseline_mae",
    ),
    *("group_reward_std_mean", "reward_success_gap", "reward_success_corr", "ev_loo"),
)
#: Of advantages: what makes some of them smaller moves the means of groups away from 0, and their spread.
_GROUP_MEANS = ("adv_mean", "adv_group_mean_absmax")
_SPREAD = ("adv_std", "adv_min", "adv_max", "adv_absmax", "adv_kurt")

KNOBS = _knobs(
    Knob(
        "grpo.learning_rate",
        ("optimisation",),
        factors=(0.3, 0.1, 3.0),
        low=1e-9,
        high=1e-2,
        sets=(*("kl_old", "clip_frac", "clip_low", "clip_high"), *_RATIO, *("kl_ref_k1", "kl_ref_k3")),
        scales=("lr", "update_norm_rel"),
    ),
    Knob("grpo.kl", ("optimisation",), values=(0.0, 0.001), factors=(3.0, 10.0), high=1.0, sets=("kl_coef",)),
    Knob("grpo.grad_clip", ("optimisation",), values=(1.0, 0.3, 0.1)),
    Knob("grpo.clip_low", ("optimisation",), factors=(0.5,), low=0.02),
    Knob("grpo.clip_high", ("optimisation",), factors=(0.5,), low=0.02),
    Knob("grpo.importance_cap", ("optimisation",), values=(2.0, 1.0)),
    Knob("grpo.whole_updates", ("optimisation",), values=(True,)),
    Knob("grpo.sync_guard", ("optimisation",), values=("resync",)),
    Knob("grpo.entropy", ("exploration",), values=(0.01, 0.05, 0.1, 0.3, 0.5, 2.0), rises=True),
    Knob(
        "sampler.temperature",
        ("exploration", "generation"),
        factors=(1.5, 3.0, 0.7),
        low=0.1,
        high=4.0,
    ),
    Knob("sampler.min_new_tokens", ("generation",), values=(1, 2, 4, 8), rises=True, sets=_GAP),
    Knob(
        "sampler.repetition_penalty",
        ("generation",),
        values=(1.2, 2.0, 20.0),
        rises=True,
        sets=_GAP,
        needs=("sampler.name", "hf"),
    ),
    Knob("model.answer_tokens", ("generation",), factors=(0.5, 0.25, 2.0), low=16, high=4096),
    Knob("grpo.overlong", ("generation",), values=("mask",)),
    Knob("reward.bounded", ("reward",), values=(True,)),
    Knob("reward.recheck", ("reward",), values=(True,)),
    Knob(
        "reward.progress",
        ("reward",),
        values=(0.0,),
        sets=(*_TOTAL, "rewards.progress.mean", "rewards.progress.std"),
    ),
    Knob(
        "reward.quality",
        ("reward",),
        values=(0.0,),
        sets=(*_TOTAL, "rewards.quality.mean", "rewards.quality.std"),
    ),
    Knob(
        "grpo.advantage_guard",
        ("credit",),
        values=("centre", "consistent", "recompute"),
        sets_at={"consistent": _GROUP_MEANS},
    ),
    Knob("grpo.advantage_clip", ("credit",), values=(3.0, 1.0), sets=(*_GROUP_MEANS, *_SPREAD)),
    Knob("grpo.std_floor", ("credit",), values=(0.05, 0.1), rises=True),
    Knob("grpo.baseline", ("credit",), values=("leave_one_out",)),
    Knob("grpo.regroup", ("credit",), values=(True,)),
    Knob("grpo.even_credit", ("credit",), values=(True,), sets=("adv_token_gap",)),
    # Above 1 no value head is believed: group means are used.
    Knob("grpo.value_least_ev", ("credit",), values=(1.5,), needs=("grpo.value_head", True)),
    Knob("domain.tool_retries", ("environment",), values=(2, 5), rises=True),
    Knob("domain.check_replies", ("environment",), values=(True,)),
    Knob("domain.reread_calls", ("environment",), values=(True,)),
    Knob("model.min_turns", ("environment",), values=(2, 99), rises=True),
    Knob("model.max_turns", ("environment",), factors=(2.0, 0.5), low=1, high=64),
    Knob("model.max_answers", ("environment",), values=(1,)),
)


def options(settings: Settings, families: Iterable[str] | None = None) -> list[Change]:
    """Every change that is open to a run. settings: by dotted key; families: only these."""
    wanted = None if families is None else set(families)
    return [
        change
        for knob in KNOBS.values()
        if wanted is None or wanted.intersection(knob.families)
        for change in knob.options(settings)
    ]


def check_changes(changes: Sequence[Change], settings: Settings) -> None:
    """ConfigError for changes that are no valid attempt from these settings."""
    given = ", ".join(map(str, changes)) or "nothing"
    if not 1 <= len(changes) <= MOST_CHANGES:
        raise ConfigError(f"an attempt changes 1 or {MOST_CHANGES} settings, not {len(changes)} ({given})")
    if len({change.key for change in changes}) < len(changes):
        raise ConfigError(f"an attempt sets a key once, not {given}")
    for change in changes:
        _check_change(change, settings)
    shared = set.intersection(*(set(KNOBS[change.key].families) for change in changes))
    if not shared:
        raise ConfigError(f"an attempt turns knobs of one family; {given} belong to different ones")


def _check_change(change: Change, settings: Settings) -> None:
    if change.key not in KNOBS:
        why = "is never changed" if _protected(change.key) else "is no knob"
        raise ConfigError(f"{change.key} {why}; choose one of: {', '.join(KNOBS)}")
    allowed = KNOBS[change.key].options(settings)
    if not any(same(change.value, option.value) for option in allowed):
        choice = ", ".join(text_of(option.value) for option in allowed) or "none in this run"
        raise ConfigError(
            f"{change} is not open to this run, where it is {text_of(settings.get(change.key))}; "
            f"values that are: {choice}"
        )


def _protected(key: str) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in PROTECTED)


#: First step, and changes that are in force from there on, up to the next such pair.
Forced = Sequence[tuple[int, Settings]]


def comparable(panel: Panel, forced: Forced, own: Settings) -> Panel:
    """The telemetry as it is to be held against runs of the run's own settings.

    What changed knobs set by themselves is left out, and what is proportional to one of them is given for the
    run's own value. Else a good remedy would look as bad as what it is against: a smaller learning rate makes
    smaller updates.

    Args:
        panel: of the run.
        forced: changes by dotted key, in order; of pairs with the same first step, the last one counts.
        own: the run's own settings by dotted key.
    """
    columns = dict(panel.columns)
    for key, knob in KNOBS.items():
        values = [changes[key] for _, changes in forced if key in changes]
        if not values:
            continue
        for name in (*knob.sets, *(name for value in values for name in knob.sets_at.get(value, ()))):
            columns.pop(name, None)
        scaled = columns.keys() & set(knob.scales)
        if scaled and own.get(key):
            times = np.ones(len(panel))
            for first, changes in forced:
                value = changes.get(key, own[key])
                times[panel.steps >= first] = own[key] / value if value else 1.0
            columns |= {name: columns[name] * times for name in scaled}
    return Panel(panel.steps, columns, panel.source)


def diff(changes: Iterable[Change], settings: Settings) -> list[str]:
    """What changes would do, one `key: old -> new` each, without doing it."""
    return [
        f"{change.key}: {text_of(settings.get(change.key))} -> {text_of(change.value)}" for change in changes
    ]


def text_of(value: Any) -> str:
    """A value as a user would type it."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
