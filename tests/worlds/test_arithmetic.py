"""The arithmetic domain: expressions, tools, start states, progress, and what faults find in it."""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robustops.errors import ConfigError, TaskError, ToolError
from robustops.faults.plan import SUBTYPES, FaultPlan
from robustops.faults.wrapper import FaultyWorld
from robustops.records import DatabaseSpec, Task, ToolCall
from robustops.tasks.catalog import build_catalog
from robustops.worlds.checks import gated_count, run_checks
from robustops.worlds.domain import get_domain
from robustops.worlds.domains.arithmetic.expressions import parse_operation, steps_of
from robustops.worlds.domains.arithmetic.schema import SIZES
from robustops.worlds.domains.arithmetic.templates import state_checks
from robustops.worlds.environment import LocalWorld
from robustops.worlds.probes import draw_task, free_task
from robustops.worlds.scripted import run_expert
from tests.faults.support import observe
from tests.worlds.drafts import draws

DOMAIN = get_domain("arithmetic")
symbols = st.sampled_from("+-*")


def expression_task(expression: str) -> Task:
    """A task for an expression of one's own, on a generated world."""
    checks, edges = state_checks(steps_of(expression))
    task = draw_task(DOMAIN, "chain", DatabaseSpec(seed=1))
    assert task is not None
    plan = {"expression": expression}
    return replace(task, prompt=expression, plan=plan, checks=checks, prerequisites=edges)


def credit(expression: str, *calls: tuple[str, object]) -> tuple[int, bool]:
    """Gated checks and success after these calls: (tool, its one argument)."""
    task, argument = expression_task(expression), {"compute": "expression", "submit": "value"}
    with closing(LocalWorld(DOMAIN)) as world:
        world.reset(task)
        for tool, value in calls:
            assert not world.step(ToolCall(tool, {argument[tool]: value})).is_error
        passed = world.evaluate(task.checks)
    return gated_count([check.name for check in task.checks], passed, task.prerequisites), all(passed)


# expressions ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("expression", "texts", "value"),
    [
        ("12+7*3", ["7*3", "12+21"], 33),
        ("(4 + 9) * 6", ["4+9", "13*6"], 78),
        ("50 - 6 * 7", ["6*7", "50-42"], 8),
        ("50 - 6 - 7", ["50-6", "44-7"], 37),
        ("50 - (6 - 7)", ["6-7", "50--1"], 51),
        ("2 * 3 + 4 * 5", ["2*3", "4*5", "6+20"], 26),
        ("9 - (1 + 2) * 4", ["1+2", "3*4", "9-12"], -3),
    ],
)
def test_steps_worked_out_by_hand(expression, texts, value):
    steps = steps_of(expression)
    assert [step.text for step in steps] == texts
    assert steps[-1].value == value


def test_a_step_knows_the_steps_it_takes_and_takes_other_results():
    first, second, last = steps_of("2 * 3 - 4 * 5")
    assert (first.uses, second.uses, last.uses) == ((), (), (0, 1))
    assert last.on([7, 30]).text == "7-30"
    assert first.on([7, 30]).text == "2*3"


def test_sums_and_products_can_be_written_either_way_round():
    assert steps_of("7*3")[0].texts == ("7*3", "3*7")
    assert steps_of("12+21")[0].texts == ("12+21", "21+12")
    assert steps_of("21-12")[0].texts == ("21-12",)
    assert steps_of("5*5")[0].texts == ("5*5",)


def reduced(expression: str) -> list[str]:
    """The slow way: rewrite the text operation by operation (results that are not negative)."""
    text, done = expression.replace(" ", ""), []
    while not text.isdigit():
        text = re.sub(r"\((\d+)\)", r"\1", text)
        if text.isdigit():
            break
        inner = re.search(r"\(([^()]*)\)", text)
        start, scope = (inner.start(1), inner[1]) if inner else (0, text)
        found = re.search(r"\d+\*\d+", scope) or re.search(r"\d+[+-]\d+", scope)
        done.append(found[0])
        begin = start + found.start()
        text = text[:begin] + str(eval(found[0])) + text[begin + len(found[0]) :]
    return done


@pytest.mark.parametrize("name", sorted(DOMAIN.templates))
def test_steps_agree_with_rewriting_the_text(name):
    for task in draws(DOMAIN, name, 30):
        steps = steps_of(task.prompt)
        assert steps[-1].value == eval(task.prompt)
        if steps[-1].value >= 0:
            assert sorted(step.text for step in steps) == sorted(reduced(task.prompt))


@pytest.mark.parametrize(
    "text", ["", "7", "7 +", "7 / 2", "x + 1", "2 ** 3", "-7 + 2", "1.5 + 2", "f(1)", "True + 1"]
)
def test_what_is_no_expression_is_refused(text):
    with pytest.raises(TaskError, match=r"no expression of integers|no operation"):
        steps_of(text)


@given(st.integers(-999, 999), symbols, st.integers(-999, 999))
def test_one_operation_is_read_with_negative_operands_and_spaces(left, symbol, right):
    for text in (f"{left}{symbol}{right}", f" {left} {symbol}  {right} "):
        step = parse_operation(text)
        assert (step.left, step.symbol, step.right) == (left, symbol, right)
        assert step.value == eval(f"({left}){symbol}({right})")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("12+7*3", "has 2 operators; give one, such as 7*3"),
        ("1+2-3*4", "has 3 operators"),
        ("(4+9)*6", "has 2 operators"),
        ("21", "is no operation on two integers"),
        ("7/2", "is no operation on two integers"),
        ("7*", "is no operation on two integers"),
        ("7*1.5", "is no operation"),
        ("3 * -7 + 1", "has 2 operators"),
        ("-7 - 2 - 1", "has 2 operators"),
        ("1234567890*2", "is no operation"),
        ("x" * 60, "'" + "x" * 40 + "...' is no operation"),
        ("\u0667*3", "is no operation"),
    ],
)
def test_anything_else_is_refused_with_what_was_found(text, words):
    with pytest.raises(ToolError) as caught:
        parse_operation(text)
    assert caught.value.code == "INVALID_ARGUMENT" and caught.value.field == "expression"
    assert words in caught.value.message


# tools ------------------------------------------------------------------------------------------
def opened(detail: str = "brief"):
    domain = get_domain("arithmetic", detail)
    world = LocalWorld(domain, tool_timeout_s=None)
    world.reset(free_task(domain))
    return world, lambda name, **arguments: world.step(ToolCall(name, arguments))


def test_replies_are_short():
    world, call = opened()
    assert call("compute", expression="7*3").text == '{"value":21}'
    assert call("submit", value=-5).text == '{"submitted":-5}'
    assert call("list_answers").text == '{"answers":[{"value":-5}]}'
    assert call("list_computations", expression=" 7 * 3").text == (
        '{"computations":[{"expression":"7*3","value":21}]}'
    )
    world.close()


def test_full_replies_show_the_place():
    world, call = opened("full")
    assert call("compute", expression="40 - 8").data == {"number": 3, "expression": "40-8", "value": 32}
    assert call("get_computation", number=3).data == {"number": 3, "expression": "40-8", "value": 32}
    assert call("submit", value=32).data == {"number": 1, "submitted": 32}
    world.close()


def test_reads_show_what_was_computed():
    world, call = opened()
    earlier = call("count_computations").data["count"]
    assert earlier == SIZES["small"][2]
    assert call("list_computations", expression="50*19").data == {"computations": []}
    call("compute", expression="50*19")
    assert call("last_computation").data == {"expression": "50*19", "value": 950}
    assert call("find_value", value=950).data == {"computations": [{"expression": "50*19", "value": 950}]}
    assert len(call("list_computations").data["computations"]) == earlier + 1
    assert call("get_bounds").data == {"operand": 99, "result": 999}
    place = {"number": earlier + 1, "expression": "50*19", "value": 950}
    assert call("get_computation", number=earlier + 1).data == place
    assert call("get_computation", number=99).data["error"]["code"] == "NOT_FOUND"
    world.close()


def test_a_refused_computation_leaves_no_row():
    world, call = opened()
    before = world.changes
    reply = call("compute", expression="12+7*3")
    assert reply.is_error and reply.data["error"]["code"] == "INVALID_ARGUMENT"
    assert call("compute", expression=7).is_error and call("submit", value=2**70).is_error
    assert world.changes == before
    world.close()


# start states -----------------------------------------------------------------------------------
def test_a_start_state_is_small():
    assert len(DOMAIN.start_image(DatabaseSpec()).image) == 2048


@pytest.mark.parametrize("size", sorted(SIZES))
def test_sizes_bound_operands_and_results(size):
    operand, result, earlier = SIZES[size]
    database = DOMAIN.open(DatabaseSpec(seed=3, size=size))
    assert len(database.find("computations")) == earlier and database.find("answers") == []
    database.close()
    for name in DOMAIN.templates:
        for task in draws(DOMAIN, name, 5, size=size):
            steps = steps_of(task.prompt)
            assert all(2 <= int(text) <= operand for text in re.findall(r"\d+", task.prompt))
            assert all(0 <= step.value <= result for step in steps[:-1])
            assert abs(steps[-1].value) <= result
            assert 2 <= len(steps) <= 3


def test_an_unknown_size_is_refused():
    with pytest.raises(ConfigError, match=r"size of the arithmetic world.*large, medium, small, tiny"):
        DOMAIN.open(DatabaseSpec(size="huge"))


def test_no_step_is_done_at_the_start():
    for name in DOMAIN.templates:
        for task in draws(DOMAIN, name, 20, size="tiny"):
            database = DOMAIN.open(task.database)
            assert not any(run_checks(database, task.checks)), task.prompt
            database.close()


# progress ---------------------------------------------------------------------------------------
RIGHT = (("compute", "7*3"), ("compute", "12+21"), ("submit", 33))


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ((), (0, False)),
        (RIGHT[:1], (1, False)),
        (RIGHT[:2], (2, False)),
        (RIGHT, (4, True)),
        ((("compute", "3*7"), ("compute", "21+12"), ("submit", 33)), (4, True)),
        # Without its prerequisite, a step earns nothing, nor does a right answer.
        ((("compute", "12+21"),), (0, False)),
        ((("submit", 33),), (0, False)),
        # In the order of reading: 19 * 3 = 57.
        ((("compute", "12+7"), ("compute", "19*3"), ("submit", 57)), (0, False)),
        ((*RIGHT[:2], ("submit", 34)), (2, False)),
        # A second answer takes the last check away, right or wrong.
        ((*RIGHT, ("submit", 33)), (3, False)),
        ((*RIGHT[:2], ("submit", 34), ("submit", 33)), (3, False)),
        # More computations than needed do no harm to the result.
        ((("compute", "1+1"), *RIGHT), (4, True)),
    ],
)
def test_progress_of_12_plus_7_times_3(calls, expected):
    assert credit("12 + 7 * 3", *calls) == expected


def test_both_products_are_prerequisites_of_their_sum():
    calls = (("compute", "2*3"), ("compute", "6+20"), ("submit", 26))
    assert credit("2 * 3 + 4 * 5", *calls) == (1, False)
    assert credit("2 * 3 + 4 * 5", ("compute", "5*4"), *calls) == (5, True)


# experts and faults -----------------------------------------------------------------------------
def test_an_expert_takes_one_call_a_step_and_one_to_submit():
    with closing(LocalWorld(DOMAIN)) as world:
        for name in DOMAIN.templates:
            for task in draws(DOMAIN, name, 5):
                run = run_expert(world, DOMAIN, task)
                names = [call.name for call, _ in run.calls]
                assert names == ["compute"] * len(steps_of(task.prompt)) + ["submit"]


def test_faults_of_writes_meet_every_call_of_an_expert():
    """Reads are for checking up only, so that the others strike agents that look."""
    with closing(LocalWorld(DOMAIN)) as world:
        task = expression_task("12 + 7 * 3")
        _, opportunities = observe(world, DOMAIN, task)
        assert [o.subtypes for o in opportunities] == [("temporary_refusal", "lost_receipt")] * 3


@pytest.mark.parametrize("subtype", SUBTYPES)
def test_every_mechanism_finds_an_agent_that_looks(subtype):
    looks = [
        ToolCall("compute", {"expression": "7*3"}),
        ToolCall("list_computations", {"expression": "7*3"}),
        ToolCall("list_computations"),
        ToolCall("get_computation", {"number": 1}),
        ToolCall("get_computation", {"number": 2}),
    ]
    with closing(LocalWorld(DOMAIN)) as inner:
        world = FaultyWorld(inner, FaultPlan(subtype))
        world.reset(free_task(DOMAIN))
        for call in looks:
            world.step(call)
        assert world.hits == 1


def test_plus5_adds_five_reads():
    catalog = build_catalog(DOMAIN, counts={"test": 5})
    for case in catalog.cases("test", ["plus5"]):
        assert len(case.distractors) == 5
        assert {DOMAIN.toolset.specs()[name].kind for name in case.distractors} == {"read"}
