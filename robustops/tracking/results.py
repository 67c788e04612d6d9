"""Evaluation results: from episodes of policies x conditions to the numbers of `summary.json`.

Unit of all intervals is the case (task x tool configuration): attempts of a case are averaged first. An
episode that failed at a boundary is invalid, counted apart, and never worth 0.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from robustops.records import Episode, Record
from robustops.tracking.statistics import (
    bootstrap_ci,
    paired_difference_ci,
    pass_at_k_table,
    rate_summary,
)

POLICIES = ("base", "sft", "grpo")
CONDITIONS = ("clean", "fault", "heldout")
#: Attempts a case for which pass@k is reported, where there were as many.
PASS_KS = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class EvaluationRow(Record):
    """One evaluated episode.

    hit: a tool fault was injected; progress, quality: None where no reward was computed; tool_calls,
    completion_tokens: of the policy's own turns; error: why the episode is invalid, or None.
    """

    policy: str
    condition: str
    case_id: str
    attempt: int
    success: bool
    progress: float | None
    quality: float | None
    hit: bool
    tool_calls: int
    completion_tokens: int
    stop: str
    error: str | None = None


Rows = Sequence[EvaluationRow]


def evaluation_row(policy: str, condition: str, episode: Episode) -> EvaluationRow:
    """The row of an episode; its index is the attempt."""
    parts = episode.reward_parts
    return EvaluationRow(
        policy=policy,
        condition=condition,
        case_id=episode.case_id,
        attempt=episode.index,
        success=episode.success,
        progress=parts.progress if parts else None,
        quality=parts.quality if parts else None,
        hit=bool(episode.faults),
        tool_calls=sum(turn.call is not None for turn in episode.own_turns),
        completion_tokens=sum(turn.end - turn.start for turn in episode.own_turns),
        stop=episode.stop,
        error=episode.error.message if episode.error else None,
    )


def evaluate_rows(rows: Iterable[EvaluationRow], *, seed: int = 0) -> dict[str, Any]:
    """All numbers of an evaluation, ready for JSON.

    Returns: `evaluations` as in the design; `differences` {`grpo-base`: {condition: {difference, ci95,
    n}}} over the cases that both policies completed; `common_hits` {condition: {n, success_rates,
    differences}} over the attempts whose fault was injected for every policy (differences: for both of
    the pair, since an untrained policy meets few faults); `invalid` {policy: {condition: count}}. A value
    is None where nothing was measured.
    """
    rows = list(rows)
    valid = [row for row in rows if row.error is None]
    policies = _in_order((row.policy for row in rows), POLICIES)
    conditions = _in_order((row.condition for row in rows), CONDITIONS)
    cells = _cells(valid)
    pairs = policy_pairs(policies)
    return {
        "evaluations": {
            p: {c: cell_metrics(cells[p, c], seed) for c in conditions if _has(rows, p, c)} for p in policies
        },
        "differences": {
            f"{a}-{b}": {c: _difference(cells[a, c], cells[b, c], seed) for c in conditions} for a, b in pairs
        },
        "common_hits": {
            c: hits for c in conditions if (hits := _common_hits(cells, policies, c, seed)) is not None
        },
        "invalid": _invalid(rows),
    }


def build_summary(
    rows: Iterable[EvaluationRow],
    *,
    run: Mapping[str, Any],
    timings: Mapping[str, float],
    health: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """The content of `summary.json`. run: facts about the run; timings: seconds by phase; health: of the
    run monitor (severity None and no alerts where it was off).
    """
    return {
        "run": dict(run),
        **evaluate_rows(rows, seed=seed),
        "timings": dict(timings),
        "health": dict(health) if health is not None else {"severity": None, "alerts": []},
    }


def cell_metrics(rows: Rows, seed: int = 0) -> dict[str, Any]:
    """Metrics of one policy under one condition, from its valid rows.

    success_rate: mean over cases of the share of successful attempts, in 0..1; ci95: Wilson where every
    case has one attempt, else percentile bootstrap by case; n: cases.
    """
    cases = _by_case(rows)
    counts = [(len(case), sum(row.success for row in case)) for case in cases.values()]
    if all(attempts == 1 for attempts, _ in counts):
        rate = rate_summary(sum(successes for _, successes in counts), len(counts))
    else:
        mean, low, high = bootstrap_ci([c / n for n, c in counts], seed)
        rate = {"success_rate": mean, "ci95": [low, high], "n": len(counts)}
    return {
        **rate,
        "pass_at_k": pass_at_k_table(counts, PASS_KS),
        "hit_rate": _mean([row.hit for row in rows]),
        "tool_calls_mean": _mean([row.tool_calls for row in rows]),
        "completion_tokens_mean": _mean([row.completion_tokens for row in rows]),
    }


def policy_pairs(policies: Sequence[str]) -> list[tuple[str, str]]:
    """Which differences are reported: each policy minus the first, and minus the one before it."""
    pairs = [(later, policies[0]) for later in policies[1:]]
    return pairs + [(policies[i], policies[i - 1]) for i in range(2, len(policies))]


def common_hits(rows: Iterable[EvaluationRow]) -> set[tuple[str, int]]:
    """(case id, attempt) whose fault was injected for every policy among the rows of one condition.

    Only there do policies meet the same fault: elsewhere one of them never made the call that the
    manifest wanted to spoil.
    """
    rows = [row for row in rows if row.error is None]
    policies = {row.policy for row in rows}
    hits: dict[tuple[str, int], set[str]] = defaultdict(set)
    for row in rows:
        if row.hit:
            hits[row.case_id, row.attempt].add(row.policy)
    return {key for key, by in hits.items() if by == policies}


# ---------------------------------------------------------------------------------------------------
Cells = dict[tuple[str, str], list[EvaluationRow]]


def _cells(rows: Rows) -> Cells:
    cells: Cells = defaultdict(list)
    for row in rows:
        cells[row.policy, row.condition].append(row)
    return cells


def _has(rows: Rows, policy: str, condition: str) -> bool:
    return any(row.policy == policy and row.condition == condition for row in rows)


def _in_order(names: Iterable[str], known: Sequence[str]) -> list[str]:
    """Distinct names: the known ones in their order, then the others as they came."""
    found = list(dict.fromkeys(names))
    return [name for name in known if name in found] + [name for name in found if name not in known]


def _by_case(rows: Rows) -> dict[str, list[EvaluationRow]]:
    cases: dict[str, list[EvaluationRow]] = defaultdict(list)
    for row in rows:
        cases[row.case_id].append(row)
    return dict(sorted(cases.items()))


def _case_means(rows: Rows) -> dict[str, float]:
    return {name: sum(row.success for row in case) / len(case) for name, case in _by_case(rows).items()}


def _difference(a: Rows, b: Rows, seed: int) -> dict[str, Any]:
    """Mean success of a minus that of b over the cases of both, with a paired case bootstrap."""
    mine, theirs = _case_means(a), _case_means(b)
    common = sorted(mine.keys() & theirs.keys())
    if not common:
        return {"difference": None, "ci95": None, "n": 0}
    pairs = [mine[name] for name in common], [theirs[name] for name in common]
    estimate, low, high = paired_difference_ci(*pairs, seed)
    return {"difference": estimate, "ci95": [low, high], "n": len(common)}


def _common_hits(cells: Cells, policies: Sequence[str], condition: str, seed: int) -> dict[str, Any] | None:
    """Results on the common hits of a condition; None for one in which nothing was injected at all."""
    rows = [row for policy in policies for row in cells[policy, condition]]
    if not any(row.hit for row in rows):
        return None
    present = [policy for policy in policies if cells[policy, condition]]
    keys = common_hits(rows)
    rates = {
        p: cell_metrics(found, seed) if (found := _at(cells[p, condition], keys)) else rate_summary(0, 0)
        for p in present
    }
    differences = {}
    for a, b in policy_pairs(present):
        mine, theirs = cells[a, condition], cells[b, condition]
        both = common_hits([*mine, *theirs])
        differences[f"{a}-{b}"] = _difference(_at(mine, both), _at(theirs, both), seed)
    return {
        "n": len(keys),
        "success_rates": {p: {k: rates[p][k] for k in ("success_rate", "ci95", "n")} for p in present},
        "differences": differences,
    }


def _at(rows: Rows, keys: set[tuple[str, int]]) -> list[EvaluationRow]:
    return [row for row in rows if (row.case_id, row.attempt) in keys]


def _invalid(rows: Rows) -> dict[str, dict[str, int]]:
    counts: dict[str, dict[str, int]] = {}
    for row in rows:
        if row.error is not None:
            cell = counts.setdefault(row.policy, {})
            cell[row.condition] = cell.get(row.condition, 0) + 1
    return counts


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
