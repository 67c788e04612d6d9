"""What a growing run is said to be, step by step."""

from __future__ import annotations

import numpy as np

from robustops.monitor.observer import EVERY_ROW, Observer
from robustops.monitor.panel import Panel
from tests.monitor.runs import healthy_panel, step_to

ROWS = 40


def looked(panel: Panel, observer: Observer) -> list[tuple[int, str]]:
    """(row at which it was said, what) of all alerts."""
    return [
        (row, alert.kind)
        for row in range(1, len(panel) + 1)
        for alert in observer.look(panel.rows(np.arange(len(panel)) < row), "grpo")
    ]


def test_a_healthy_run_is_silent_and_healthy_once_there_is_enough_to_tell():
    observer = Observer()
    assert looked(healthy_panel(ROWS), observer) == []
    assert observer.verdict is not None and observer.verdict.verdict == "healthy"


def test_a_change_is_said_once_and_when_it_has_lasted():
    observer = Observer()
    said = looked(healthy_panel(ROWS, entropy=step_to(ROWS, 15, 0.8, 0.02)), observer)
    assert [kind for _, kind in said].count("entropy down") == 1
    assert min(row for row, _ in said) in range(16, 21)
    assert observer.verdict is not None and observer.verdict.type == "entropy_collapse"


def test_updates_that_are_suddenly_large_are_said_at_their_second_step():
    panel = healthy_panel(ROWS, update_norm_rel=step_to(ROWS, 4, 1e-3, 1e-2))
    assert (6, "updates, sudden") in looked(panel, Observer())


def test_what_was_told_is_not_told_again():
    panel = healthy_panel(ROWS, entropy=step_to(ROWS, 15, 0.8, 0.02))
    first, second = Observer(), Observer()
    first.look(panel, "grpo")
    second.told = set(first.told)
    assert first.told and second.look(panel, "grpo") == []


def test_of_a_long_run_not_every_step_is_judged():
    observer, panel = Observer(), healthy_panel(2 * EVERY_ROW + 3)
    judged = []
    for row in range(1, len(panel) + 1):
        before = observer.verdict
        observer.look(panel.rows(np.arange(len(panel)) < row), "grpo")
        judged += [row] if observer.verdict is not before else []
    assert judged[:EVERY_ROW] == list(range(1, EVERY_ROW + 1))
    assert len(judged) < 1.6 * EVERY_ROW
