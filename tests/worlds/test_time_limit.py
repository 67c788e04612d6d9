"""The time limit of calls: results, errors, late functions, the threads behind it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import pytest

from robustops.errors import ConfigError
from robustops.worlds.time_limit import (
    TOOL_TIMEOUT,
    CallTimeout,
    check_limit,
    run_within,
    timeout_receipt,
)
from tests.toy_domain import ToyTools


@pytest.fixture()
def gate() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def current() -> threading.Thread:
    return threading.current_thread()


def test_results_and_errors_are_those_of_the_function() -> None:
    assert run_within(5, divmod, 17, 5) == (3, 2)
    assert run_within(5, sorted, [3, 1, 2]) == [1, 2, 3]
    with pytest.raises(ZeroDivisionError, match="by zero") as caught:
        run_within(5, divmod, 1, 0)
    assert run_within(5, lambda: None) is None, f"{caught.value} belongs to the earlier call"


def test_one_thread_serves_call_after_call() -> None:
    first = run_within(5, current)
    assert first is not current() and first.daemon
    assert {run_within(5, current) for _ in range(50)} == {first}


def test_a_function_that_waits_forever_is_given_up_in_time(gate: threading.Event) -> None:
    began = time.monotonic()
    with pytest.raises(CallTimeout):
        run_within(0.1, gate.wait)
    assert 0.1 <= time.monotonic() - began < 1.5


def test_what_can_be_interrupted_is_and_ends_at_once(gate: threading.Event) -> None:
    ended: list[str] = []

    def wait() -> None:
        gate.wait()
        ended.append("by itself")

    with pytest.raises(CallTimeout):
        run_within(0.1, wait, interrupt=gate.set)
    assert ended == ["by itself"], "no exception is set in a thread that an interrupt ends"
    gate.clear()
    assert run_within(5, int, "3", interrupt=gate.set) == 3 and not gate.is_set()


def test_a_late_result_is_never_that_of_a_later_call(gate: threading.Event) -> None:
    late: list[threading.Thread] = []

    def wait() -> str:
        late.append(current())
        gate.wait()
        return "late"

    for _ in range(3):
        with pytest.raises(CallTimeout):
            run_within(0.05, wait)
    assert run_within(5, lambda: "mine") == "mine"
    gate.set()
    for thread in late:
        thread.join(5)
        assert not thread.is_alive(), "a thread that was left behind ends with its call"
    assert [run_within(5, int, str(n)) for n in range(20)] == list(range(20))
    assert len(set(late)) == 3 and run_within(5, current) not in late


def test_python_code_that_never_ends_is_stopped_in_its_thread() -> None:
    threads: list[threading.Thread] = []

    def spin() -> None:
        threads.append(current())
        while True:
            pass

    with pytest.raises(CallTimeout):
        run_within(0.1, spin)
    threads[0].join(5)
    assert not threads[0].is_alive()


def test_callers_do_not_wait_for_each_other(gate: threading.Event) -> None:
    outcomes: list[str] = []

    def call() -> None:
        try:
            run_within(0.5, gate.wait)
        except CallTimeout:
            outcomes.append("late")

    callers = [threading.Thread(target=call) for _ in range(6)]
    began = time.monotonic()
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert outcomes == ["late"] * 6 and time.monotonic() - began < 2


def test_a_forked_process_has_threads_of_its_own() -> None:
    run_within(5, int, "1")
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if run_within(5, int, "7") == 7 else 1)
        except BaseException:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan"), float("inf")])
def test_a_limit_is_positive_or_none(seconds: float) -> None:
    with pytest.raises(ConfigError, match=r"tool_timeout_s is .*above 0, or None"):
        check_limit(seconds)
    assert check_limit(None) is None and check_limit(0.5) == 0.5


def test_a_receipt_says_what_is_known_of_the_outcome() -> None:
    specs = ToyTools.specs()
    read, write = (timeout_receipt(specs[name], 2.5) for name in ("get_note", "create_note"))
    assert read.is_error and write.is_error
    assert read.data["error"] == {
        "code": TOOL_TIMEOUT,
        "message": "no answer within 2.5 s; nothing was read",
    }
    assert "the outcome is unknown, the call may have been executed" in write.data["error"]["message"]
    assert timeout_receipt(None, 2.5) == write
