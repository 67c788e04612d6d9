from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from robustops.errors import ConfigError
from robustops.learning.case_draw import LEAST_SHARE, MEMORY, CaseDraw
from robustops.tasks.curriculum import Phase
from tests.toy_domain import toy_task

TEMPLATES = ("hard", "mixed", "easy")


def cases(number: int):
    """As many cases of each of three templates."""
    return [
        replace(toy_task(seed=seed), id=f"{template}-{seed}", template=template)
        for seed in range(number)
        for template in TEMPLATES
    ]


def taken(draw: CaseDraw, number: int) -> Counter[str]:
    return Counter(draw.next("clean", ()).template for _ in range(number))


def told(draw: CaseDraw, condition: str = "clean", groups: int = 50) -> CaseDraw:
    for _ in range(groups):
        for template in TEMPLATES:
            draw.note(condition, template, signal=template == "mixed")
    return draw


def test_without_by_signal_each_pass_takes_every_case_once_whatever_is_noted():
    draw = told(CaseDraw(cases(4), seed=1))
    for _ in range(3):
        ids = [draw.next("clean", ()).case_id for _ in range(12)]
        assert len(set(ids)) == 12


def test_a_draw_by_signal_without_records_takes_every_case_in_turn():
    even, by_signal = CaseDraw(cases(5), seed=2), CaseDraw(cases(5), seed=2, by_signal=True)
    assert [even.next("clean", ()) for _ in range(20)] == [by_signal.next("clean", ()) for _ in range(20)]


def test_templates_that_compare_nothing_are_passed_over_and_not_forgotten():
    draw = told(CaseDraw(cases(200), seed=3, by_signal=True))
    counts = taken(draw, 300)
    share = counts["mixed"] / 300
    assert share == pytest.approx(1 / (1 + 2 * LEAST_SHARE), abs=0.08)
    assert counts["hard"] > 0 and counts["easy"] > 0


def test_shares_by_hand():
    draw = CaseDraw(cases(1), seed=0, by_signal=True)
    draw.note("clean", "mixed", signal=True)  # (1 + 1) / (1 + 2)
    draw.note("clean", "easy", signal=False)  # (0 + 1) / (1 + 2)
    draw.note("fault", "hard", signal=False)  # another condition: nothing is known of "hard", 1 / 2
    assert draw.shares("clean") == pytest.approx({"mixed": 1.0, "easy": 0.5, "hard": 0.75})
    draw.note("clean", "mixed", signal=False)  # (MEMORY + 1) / (MEMORY + 1 + 2)
    mixed = (MEMORY + 1) / (MEMORY + 3)
    assert draw.shares("clean") == pytest.approx({"mixed": mixed / 0.5, "easy": 2 / 3, "hard": 1.0})


def test_a_template_that_begins_to_compare_something_comes_back():
    draw = told(CaseDraw(cases(1), seed=0, by_signal=True))
    assert draw.shares("clean")["hard"] == LEAST_SHARE
    for _ in range(10):
        draw.note("clean", "hard", signal=True)
    assert draw.shares("clean")["hard"] > 0.6


def test_conditions_are_drawn_and_noted_apart():
    draw = told(CaseDraw(cases(100), seed=4, by_signal=True), "fault")
    even = CaseDraw(cases(100), seed=4)
    assert [draw.next("clean", ()) for _ in range(90)] == [even.next("clean", ()) for _ in range(90)]
    assert draw.drawn == {"clean": 90}


def test_used_cases_are_left_out_unless_all_are_used():
    draw = CaseDraw(cases(1), seed=5, by_signal=True)
    assert draw.next("clean", ("hard-0", "easy-0")).template == "mixed"
    assert draw.next("clean", ("hard-0", "easy-0", "mixed-0")).template in TEMPLATES


def test_a_restored_draw_goes_on_as_the_other():
    first = told(CaseDraw(cases(30), seed=6, by_signal=True))
    taken(first, 7)
    second = CaseDraw(cases(30), seed=6, by_signal=True)
    second.load_state_dict(first.state_dict())
    assert [first.next("clean", ()) for _ in range(40)] == [second.next("clean", ()) for _ in range(40)]
    first.note("clean", "easy", signal=True)
    assert first.shares("clean") != second.shares("clean"), "the state is a copy"


def test_a_curriculum_sets_how_often_templates_come_from_its_step_on():
    phases = (Phase(3, {"hard": 1.0, "mixed": 3.0}),)
    draw = CaseDraw(cases(400), seed=1, curriculum=phases)
    assert set(Counter(draw.next("clean", (), 2).template for _ in range(60))) == set(TEMPLATES)
    found = Counter(draw.next("clean", (), 3).template for _ in range(600))
    assert set(found) == {"hard", "mixed"} and found["mixed"] / found["hard"] == pytest.approx(3, rel=0.25)


def test_before_its_first_phase_a_curriculum_changes_nothing():
    plain, later = CaseDraw(cases(9), seed=2), CaseDraw(cases(9), seed=2, curriculum=(Phase(5, {"easy": 1}),))
    own = [draw.next("clean", (), 4).case_id for draw in (plain, later) for _ in range(20)]
    assert own[:20] == own[20:]


def test_a_template_left_out_does_not_come_even_where_all_others_are_used():
    draw = CaseDraw(cases(2), seed=3, curriculum=(Phase(1, {"easy": 1.0}),))
    assert {draw.next("clean", {"easy-0", "easy-1"}, 1).template for _ in range(5)} == {"easy"}


def test_a_curriculum_of_unknown_templates_is_refused():
    with pytest.raises(ConfigError, match="template in grpo"):
        CaseDraw(cases(1), seed=1, curriculum=(Phase(1, {"none such": 1.0}),))
