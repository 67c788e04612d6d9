"""Curricula: what a setting may say, and which phase holds when."""

from __future__ import annotations

import pytest

from robustops.errors import ConfigError
from robustops.tasks.curriculum import Phase, check_templates, parse_curriculum, phase_at

TWO = [{"step": 1, "weights": {"easy": 1}}, {"step": 12, "weights": {"easy": 1, "hard": 4}}]


def test_a_phase_holds_until_the_next_one_begins():
    phases = parse_curriculum(TWO)
    assert phases == (Phase(1, {"easy": 1.0}), Phase(12, {"easy": 1.0, "hard": 4.0}))
    assert [phase_at(phases, step) for step in (1, 11, 12, 99)] == [
        phases[0],
        phases[0],
        phases[1],
        phases[1],
    ]
    assert phase_at(phases[1:], 11) is None and phase_at((), 5) is None


def test_the_heaviest_template_is_always_taken_and_one_not_named_never():
    assert Phase(1, {"easy": 1.0, "hard": 4.0}).shares(["easy", "hard", "other"]) == {
        "easy": 0.25,
        "hard": 1.0,
        "other": 0.0,
    }


@pytest.mark.parametrize(
    ("phases", "words"),
    [
        (["easy"], "give phases such as"),
        ([{"step": 2}], "give phases such as"),
        ([{"step": 0, "weights": {"easy": 1}}], "steps count from 1"),
        ([{"step": 2, "weights": {"easy": 0}}], "at least one above 0"),
        ([{"step": 2, "weights": {"easy": -1, "hard": 1}}], "0 or more"),
        ([{"step": 2, "weights": {"easy": True}}], "0 or more"),
        ([{"step": 2, "weights": {}}], "at least one above 0"),
        (TWO[::-1], "put phases in order"),
    ],
)
def test_what_is_no_curriculum_is_refused_with_its_form(phases, words):
    with pytest.raises(ConfigError, match=words):
        parse_curriculum(phases)


def test_a_template_that_no_task_has_is_named_with_those_there_are():
    with pytest.raises(ConfigError, match="'hrad'; choose one of: easy, hard"):
        check_templates([Phase(1, {"hrad": 1.0})], ["hard", "easy"])
