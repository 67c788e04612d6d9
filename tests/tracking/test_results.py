import json
import math
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from robustops.records import Episode, EpisodeError, FaultEvent, RewardParts, ToolCall, ToolResult, Turn
from robustops.tracking.results import (
    EvaluationRow,
    build_summary,
    cell_metrics,
    common_hits,
    evaluate_rows,
    evaluation_row,
    policy_pairs,
)
from robustops.tracking.tables import evaluation_cells, print_results


def row(policy="base", condition="clean", case="a", success=False, attempt=0, **more):
    values = {"hit": False, "tool_calls": 2, "completion_tokens": 30, "stop": "final_answer", **more}
    return EvaluationRow(policy, condition, case, attempt, success, 0.5, 0.0, **values)


def rows_of(policy, condition, outcomes, **more):
    """One row a case; outcomes: text of 1 (success) and 0."""
    return [row(policy, condition, f"case{i:03d}", mark == "1", **more) for i, mark in enumerate(outcomes)]


def test_row_of_an_episode_counts_the_policys_own_turns_only():
    fault = FaultEvent("incomplete_read", "missing_rows", 0, "list_notes")
    call, result = ToolCall("list_notes"), ToolResult("{}")
    turns = (
        Turn("x", call, result, 0, 5, fault),
        Turn("y", call, result, 8, 15),
        Turn("done", None, None, 20, 23),
    )
    episode = Episode(
        "a/oracle", "fault", 3, (), (), (), turns, 1, "final_answer", (False,), (True,),
        RewardParts(1.0, 0.5, 0.9),
    )  # fmt: skip
    made = evaluation_row("grpo", "heldout", episode)
    assert made == EvaluationRow(
        "grpo", "heldout", "a/oracle", 3, True, 0.5, 0.9, True, 1, 7 + 3, "final_answer", None
    )
    broken = evaluation_row("grpo", "fault", replace(episode, error=EpisodeError("world", "gone")))
    assert (broken.success, broken.error) == (False, "gone")


def test_one_attempt_a_case_has_wilsons_interval():
    rows = rows_of("base", "clean", "1" * 8 + "0" * 2)
    cell = cell_metrics(rows)
    # Wilson's interval of 8 in 10, worked out by hand with z = 1.959964.
    z2 = 1.959964**2
    centre = (0.8 + z2 / 20) / (1 + z2 / 10)
    half = 1.959964 * math.sqrt(0.8 * 0.2 / 10 + z2 / 400) / (1 + z2 / 10)
    assert cell["success_rate"] == 0.8
    assert cell["ci95"] == pytest.approx([centre - half, centre + half], abs=1e-6)
    assert cell["n"] == 10
    assert cell["pass_at_k"] == {"1": 0.8}


def test_several_attempts_are_averaged_by_case_first():
    # Case a succeeds in 1 of 4 attempts, case b in 4 of 4.
    rows = [row(case="a", attempt=i, success=i == 0) for i in range(4)]
    rows += [row(case="b", attempt=i, success=True) for i in range(4)]
    cell = cell_metrics(rows, seed=3)
    assert cell["n"] == 2
    assert cell["success_rate"] == pytest.approx(0.625)
    # Drawing two cases with replacement, the mean is 0.25 or 1 with probability 1/4 each.
    assert cell["ci95"] == [0.25, 1.0]
    # pass@2 of case a: 1 - C(3,2)/C(4,2) = 1/2.
    assert cell["pass_at_k"] == pytest.approx({"1": 0.625, "2": 0.75, "4": 1.0})


def test_means_and_hit_rate_are_over_the_episodes():
    rows = [
        row(case="a", tool_calls=2, completion_tokens=10, hit=True),
        row(case="b", tool_calls=5, completion_tokens=40),
    ]
    cell = cell_metrics(rows)
    assert (cell["hit_rate"], cell["tool_calls_mean"], cell["completion_tokens_mean"]) == (0.5, 3.5, 25.0)


def test_structure_is_the_designs():
    rows = rows_of("grpo", "fault", "11", hit=True) + rows_of("base", "clean", "10")
    rows += rows_of("base", "fault", "00") + rows_of("grpo", "clean", "11")
    summary = build_summary(rows, run={"seed": 1}, timings={"sft": 2.5}, seed=1)
    assert list(summary["evaluations"]) == ["base", "grpo"]
    assert list(summary["evaluations"]["base"]) == ["clean", "fault"]
    assert set(summary["evaluations"]["base"]["clean"]) == {
        "success_rate", "ci95", "n", "pass_at_k", "hit_rate", "tool_calls_mean", "completion_tokens_mean",
    }  # fmt: skip
    assert summary["health"] == {"severity": None, "alerts": []}
    assert {"run", "evaluations", "timings", "health"} <= set(summary)
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary


def test_an_invalid_episode_is_counted_apart_and_never_worth_nothing():
    rows = [*rows_of("base", "clean", "11"), row(case="case002", error="sampler: gone", stop="error")]
    result = evaluate_rows(rows)
    assert result["evaluations"]["base"]["clean"]["success_rate"] == 1.0
    assert result["evaluations"]["base"]["clean"]["n"] == 2
    assert result["invalid"] == {"base": {"clean": 1}}
    lost = evaluate_rows([row(error="gone")])["evaluations"]["base"]["clean"]
    assert (lost["success_rate"], lost["ci95"], lost["n"], lost["tool_calls_mean"]) == (None, None, 0, None)


def test_differences_are_paired_by_case():
    assert policy_pairs(["base", "sft", "grpo"]) == [("sft", "base"), ("grpo", "base"), ("grpo", "sft")]
    assert policy_pairs(["base"]) == []
    base, grpo = "0" * 50 + "1" * 50, "1" * 40 + "0" * 10 + "1" * 50
    result = evaluate_rows(rows_of("grpo", "clean", grpo) + rows_of("base", "clean", base), seed=5)
    cell = result["differences"]["grpo-base"]["clean"]
    assert cell["difference"] == pytest.approx(0.4)
    assert cell["n"] == 100
    # Paired: the 60 cases with equal outcomes add no variance; sd of the mean = sqrt(.4 * .6 / 100).
    sd = math.sqrt(0.4 * 0.6 / 100)
    assert cell["ci95"] == pytest.approx([0.4 - 1.96 * sd, 0.4 + 1.96 * sd], abs=0.02)


def test_differences_use_the_cases_that_both_completed():
    rows = [row("base", case="a"), row("base", case="b", success=True)]
    rows += [row("sft", case="b", success=True), row("sft", case="c", success=True)]
    cell = evaluate_rows(rows)["differences"]["sft-base"]["clean"]
    assert (cell["difference"], cell["n"]) == (0.0, 1)
    apart = evaluate_rows([row("base", case="a"), row("sft", case="b")])["differences"]["sft-base"]["clean"]
    assert apart == {"difference": None, "ci95": None, "n": 0}


def test_common_hits_are_the_attempts_hit_for_every_policy():
    hits = {"base": "abc", "sft": "bcd", "grpo": "bc"}
    wins = {"base": "a", "sft": "bd", "grpo": "bc"}
    rows = [
        row(policy, "fault", case, case in wins[policy], hit=case in hits[policy])
        for policy in hits
        for case in "abcd"
    ]
    assert common_hits(rows) == {("b", 0), ("c", 0)}
    assert common_hits([*rows, row("rl", "fault", "b", hit=True)]) == {("b", 0)}
    found = evaluate_rows(rows)["common_hits"]["fault"]
    assert found["n"] == 2
    assert {p: cell["success_rate"] for p, cell in found["success_rates"].items()} == {
        "base": 0.0, "sft": 0.5, "grpo": 1.0,
    }  # fmt: skip
    assert found["differences"]["grpo-base"]["difference"] == 1.0
    assert found["differences"]["grpo-sft"]["difference"] == 0.5
    # A pair is compared wherever both of it were hit, whatever a third policy met.
    fewer = [row(r.policy, "fault", r.case_id, r.success, hit=r.hit and r.policy != "base") for r in rows]
    cell = evaluate_rows(fewer)["common_hits"]["fault"]
    assert cell["n"] == 0 and cell["differences"]["grpo-base"]["n"] == 0
    assert cell["differences"]["grpo-sft"] == found["differences"]["grpo-sft"]


def test_common_hits_of_attempts_and_of_nothing():
    rows = [row(p, "fault", "a", attempt=i, hit=i == 1) for p in ("base", "sft") for i in range(3)]
    assert common_hits(rows) == {("a", 1)}
    assert evaluate_rows(rows_of("base", "clean", "01"))["common_hits"] == {}
    apart = [row("base", "fault", "a", hit=True), row("sft", "fault", "a")]
    found = evaluate_rows(apart)["common_hits"]["fault"]
    assert found["n"] == 0
    assert found["success_rates"]["base"] == {"success_rate": None, "ci95": None, "n": 0}


def test_order_of_the_rows_changes_nothing():
    rows = [
        row(p, c, f"x{i % 7}", (i * k) % 3 == 0, attempt=i // 7, hit=c != "clean" and i % 2 == 0)
        for k, p in enumerate(("base", "sft", "grpo"), 1)
        for c in ("clean", "fault")
        for i in range(21)
    ]
    assert evaluate_rows(rows, seed=2) == evaluate_rows(rows[::-1], seed=2)


def test_tables_show_the_numbers():
    rows = rows_of("base", "clean", "0001") + rows_of("base", "fault", "0000", hit=True)
    rows += rows_of("sft", "clean", "0111") + rows_of("sft", "fault", "0011", hit=True)
    summary = build_summary(rows, run={}, timings={})
    columns, cells = evaluation_cells(summary)
    assert len(cells) == 4
    assert dict(zip(columns, cells[2], strict=True)) | {"ci95_low": 0, "ci95_high": 0} == {
        "policy": "sft", "condition": "clean", "success_rate": 0.75, "ci95_low": 0, "ci95_high": 0, "n": 4,
        "pass_at_k": "1: 0.75", "hit_rate": 0.0, "tool_calls_mean": 2.0, "completion_tokens_mean": 30.0,
    }  # fmt: skip
    out = StringIO()
    print_results(summary, Console(file=out, width=160))
    lines = [line.split() for line in out.getvalue().splitlines()]
    assert any({"sft", "75.0", "4"} <= set(line) for line in lines)
    assert any({"sft-base", "fault", "+50.0"} <= set(line) for line in lines)
    assert "invalid" not in out.getvalue()


def test_tables_fit_into_eighty_columns():
    rows = [
        row(policy, condition, f"case{i}", policy != "base" and i % 9 > 1, hit=True)
        for policy in ("base", "sft", "grpo")
        for condition in ("clean", "fault", "heldout")
        for i in range(1200)
    ]
    out = StringIO()
    print_results(build_summary(rows, run={}, timings={}), Console(file=out, width=80))
    assert "…" not in out.getvalue() and "1200" in out.getvalue()
    assert max(map(len, out.getvalue().splitlines())) <= 80


def test_tables_survive_an_evaluation_without_a_valid_episode():
    out = StringIO()
    summary = build_summary([row(error="x"), row("sft", error="y")], run={}, timings={})
    print_results(summary, Console(file=out, width=160))
    assert "1 invalid episodes of sft under clean" in out.getvalue()
    assert evaluation_cells(summary)[1][0][2:5] == [None, None, None]
