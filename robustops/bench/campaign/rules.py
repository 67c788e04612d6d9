"""What a mechanism must have done to the values it touched, by the exposure log and the telemetry.

A rule is given the evidence of one run and returns what is wrong, in words; nothing where it holds. Rules
are about the touched values: what the policy then makes of them (success, entropy, drift) is a matter of
learning, and a run is not dropped for it. No rule reads a detector's score.

    dose    exposure log: values changed as much as the strength promises
    echo    telemetry: the change that the log tells stands in the step's line
    effect  telemetry: the mechanism's quantity moved, see `moved`
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from robustops.bench.campaign.effects import Rows
from robustops.bench.run_faults.entries import MechanismInfo
from robustops.rewards.combine import RewardWeights

Line = Mapping[str, Any]

#: Least d of a single run: half of what an easy fault has on average, and any move in the declared direction
#: for a hard one, whose mean is about one healthy deviation: a higher bound would keep the visible ones only.
LEAST_D = {"easy": 2.0, "hard": 0.0}
#: Tolerance of ratios that are exact but for rounding; of shares that further errors of the agent add to.
_EXACT, _NEAR = 1e-6, 0.05
_WEIGHTS = RewardWeights()


@dataclass(frozen=True)
class Evidence:
    """lines: of the exposure log inside the window; rows: of the telemetry, for the same steps; control:
    those of the control; d: paired change of the quantity in its unit, in the declared direction; difficulty:
    easy | hard.
    """

    lines: Sequence[Line]
    rows: Rows
    control: Rows
    d: float
    difficulty: str

    def sum(self, name: str) -> float:
        """Of a field of the log over the window."""
        return math.fsum(line[name] for line in self.lines)

    def promised(self, share: Callable[[float], float], count: str = "numbers") -> float:
        """Sum over the window of what a level promises of each value."""
        return math.fsum(share(line["level"]) * line[count] for line in self.lines)


Rule = Callable[[Evidence], Iterator[str]]


def moved(evidence: Evidence) -> Iterator[str]:
    """Effect: the quantity moved as declared."""
    least = LEAST_D[evidence.difficulty]
    if not evidence.d > least:
        yield f"effect: d is {evidence.d:.3g}, not above {least:g} ({evidence.difficulty})"


def changed(evidence: Evidence) -> Iterator[str]:
    """Dose: some value is not what it was."""
    if evidence.sum("differing") == 0:
        yield "dose: no value differs from what it was"


def raised_by(share: Callable[[float], float]) -> Rule:
    """Dose: numbers rose by at least half of what their level promises."""

    def rule(evidence: Evidence) -> Iterator[str]:
        rise = evidence.sum("sum_after") - evidence.sum("sum_before")
        least = evidence.promised(share) / 2
        if not rise > least:
            yield f"dose: values rose by {rise:.4g} in all, promised is more than {least:.4g}"

    return rule


def kept_at_most(share: Callable[[float], float]) -> Rule:
    """Dose: of the numbers is left no more than a share that their level promises."""

    def rule(evidence: Evidence) -> Iterator[str]:
        most = math.fsum(share(line["level"]) * line["sum_before"] for line in evidence.lines)
        left, before = evidence.sum("sum_after"), evidence.sum("sum_before")
        if before <= 0:
            yield "dose: there was nothing to lose"
        elif left > most + _EXACT:
            yield f"dose: {left:.4g} of {before:.4g} is left, promised is at most {most:.4g}"

    return rule


def scaled_by(factor: Callable[[float], float]) -> Rule:
    """Dose: in every step, numbers are those before times a factor of the level."""

    def rule(evidence: Evidence) -> Iterator[str]:
        for line in evidence.lines:
            want = factor(line["level"]) * line["sum_before"]
            if abs(line["sum_after"] - want) > _EXACT * abs(want):
                yield f"dose: step {line['step']} has {line['sum_after']:.6g}, promised is {want:.6g}"
                return

    return rule


def shifted_by(shift: Callable[[float], float]) -> Rule:
    """Dose: in every step, numbers are those before plus something of the level."""

    def rule(evidence: Evidence) -> Iterator[str]:
        for line in evidence.lines:
            got, want = line["sum_after"] - line["sum_before"], shift(line["level"]) * line["numbers"]
            if abs(got - want) > _EXACT * max(1.0, abs(want)):
                yield f"dose: step {line['step']} changed by {got:.6g}, promised is {want:.6g}"
                return

    return rule


def apart_by(share: Callable[[float], float]) -> Rule:
    """Dose: mean |after - before| is at least what the levels promise."""

    def rule(evidence: Evidence) -> Iterator[str]:
        got, least = evidence.sum("sum_abs"), evidence.promised(share)
        if not got >= least > 0:
            yield f"dose: values changed by {got:.4g} in all, promised is at least {least:.4g}"

    return rule


def spread_by(share: Callable[[float], float]) -> Rule:
    """Dose: the root mean square of after - before is at least what the levels promise."""

    def rule(evidence: Evidence) -> Iterator[str]:
        count = evidence.sum("numbers")
        got = math.sqrt(evidence.sum("sum_squares") / count) if count else 0.0
        least = evidence.promised(share) / count if count else 0.0
        if not got >= least > 0:
            yield f"dose: values changed by {got:.4g} (RMS), promised is at least {least:.4g}"

    return rule


def echoed_as(column: str) -> Rule:
    """Echo: a share of the telemetry rose as the log tells of its units, within 3 binomial standard errors
    and what the agent adds to them.
    """

    def rule(evidence: Evidence) -> Iterator[str]:
        eligible = evidence.sum("eligible")
        share = evidence.sum("differing") / eligible if eligible else 0.0
        got = _mean(evidence.rows, column) - _mean(evidence.control, column)
        room = 3 * math.sqrt(share * (1 - share) / eligible) + _NEAR if eligible else _NEAR
        if not abs(got - share) <= room:
            yield f"echo: {column} rose by {got:.4g}, the log tells {share:.4g} +- {room:.2g}"

    return rule


def in_struck_steps(column: str, holds: Callable[[float], bool], what: str) -> Rule:
    """Echo: something is true of a column in every step in which the log notes a change."""

    def rule(evidence: Evidence) -> Iterator[str]:
        for line, row in zip(evidence.lines, evidence.rows, strict=True):
            if line["differing"] and not holds(float(row[column])):
                yield f"echo: {column} is {row[column]} in struck step {line['step']}, {what}"
                return

    return rule


def _mean(rows: Rows, column: str) -> float:
    values = [value for row in rows if not math.isnan(value := float(row[column]))]
    return math.fsum(values) / len(values) if values else math.nan


def mismatched(evidence: Evidence) -> Iterator[str]:
    """Echo: the sampler drew from other logits than the trainer computes for the same tokens. A bias need not
    change which token is likeliest, which is all that the log notes of logits.
    """
    column = "samp_logp_absdiff_mean"
    got, usual = _mean(evidence.rows, column), _mean(evidence.control, column)
    if not got > 10 * usual:
        yield f"echo: {column} is {got:.3g}, no ten times that of the control ({usual:.3g})"


def rules_of(info: MechanismInfo) -> tuple[Rule, ...]:
    """All that hold for a mechanism: its own, and what is asked of every one."""
    return (mismatched if info.needs_logits else changed, *_own().get(info.name, ()), moved)


def _own() -> dict[str, tuple[Rule, ...]]:
    """By mechanism, from the constants that it works with; those not named have the common rules only."""
    from robustops.bench.run_faults import credit, optimisation, rewards

    spike = raised_by(lambda level: rewards.SPIKE * level * _WEIGHTS.progress)
    bonus = raised_by(lambda level: 0.0)
    lost = kept_at_most(lambda level: 1 - 0.8 * level)
    replies = (echoed_as("obs_roundtrip_mismatch_frac"),)
    return {
        "episode_spike": (spike,),
        "uniform_spike": (spike,),
        "zeroed_episodes": (lost,),
        "verifier_down": (lost,),
        **dict.fromkeys(
            (
                *("echo_bonus", "lenient_verifier", "silence_reward"),
                *("repetition_reward", "brevity_reward", "length_reward"),
            ),
            (bonus,),
        ),
        "aggressive_updates": (scaled_by(lambda level: 1 + (optimisation.AGGRESSIVE - 1) * level),),
        "tiny_rate": (scaled_by(lambda level: 1 - (1 - optimisation.TINY) * level),),
        "kl_sign": (scaled_by(lambda level: 1 - optimisation.WRONG_SIGN * level),),
        "entropy_penalty": (shifted_by(lambda level: -optimisation.PENALTY * level),),
        "skipped_updates": (in_struck_steps("update_norm_rel", lambda x: x == 0, "not 0"),),
        "stale_sampler": (in_struck_steps("policy_lag_max", lambda x: x >= 1, "below 1"),),
        "swapped_baseline": (apart_by(lambda level: level / 4),),
        "offset_baseline": (apart_by(lambda level: level / 2),),
        "heavy_noise": (spread_by(lambda level: level * credit.NOISE / 3),),
        "tool_outage": (echoed_as("tool_error_frac"),),
        "rejected_call": (echoed_as("invalid_call_frac"),),
        **dict.fromkeys(("digit_noise", "stale_reply", "truncated_reply"), replies),
    }
