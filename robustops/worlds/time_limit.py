"""A time limit for tool calls: what never answers is left behind, and the agent gets a receipt.

Python cannot end a thread that waits, so a limited call runs in a thread of its own while the caller
waits. A call that is late is abandoned together with whatever it works on: the caller must not use that
again. Its reply has nowhere to go, so that it cannot be taken for the reply of a later call.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from robustops.errors import ConfigError, ToolError
from robustops.records import ToolResult
from robustops.worlds.toolset import ToolSpec, refusal

#: Seconds that a tool may take before its call is given up.
TOOL_TIMEOUT_S = 30.0
#: Error code of a call that was given up.
TOOL_TIMEOUT = "TOOL_TIMEOUT"
#: Seconds that a call which is to stop may take to do so.
_NOTICE_S = 0.2

R = TypeVar("R")


class CallTimeout(Exception):
    """The call did not end in time, and may still be running."""


def check_limit(seconds: float | None) -> float | None:
    """A time limit as it was given; ConfigError unless it is positive or None (no limit)."""
    if seconds is not None and not 0 < seconds <= threading.TIMEOUT_MAX:
        raise ConfigError(f"tool_timeout_s is {seconds}; give seconds above 0, or None for no limit")
    return seconds


def timeout_receipt(spec: ToolSpec | None, seconds: float) -> ToolResult:
    """What an agent sees of a call without an answer: a read gave nothing, a write may have happened."""
    outcome = "nothing was read"
    if spec is None or spec.kind == "write":
        outcome = "the outcome is unknown, the call may have been executed"
    return refusal(ToolError(TOOL_TIMEOUT, f"no answer within {seconds:g} s; {outcome}"))


def run_within(
    seconds: float, function: Callable[..., R], *arguments: Any, interrupt: Callable[[], None] | None = None
) -> R:
    """The function's result or exception, or CallTimeout after so many seconds and half a second at most.

    A late function is first interrupted, then an exception is set in its thread, which ends Python code at
    its next step, and code that sleeps or waits when it comes back; until then it goes on running. The
    limit does not hold for code that keeps the interpreter lock to itself (a regular expression that
    backtracks without end); such a tool belongs into a process of its own, behind MCP.
    """
    try:
        worker = _idle.pop()
    except IndexError:
        worker = _Worker()
    value, error = worker.run(seconds, lambda: function(*arguments), interrupt)
    _idle.append(worker)
    if error is not None:
        raise error
    return value  # type: ignore[no-any-return]


class _Abandoned(SystemExit):
    """Set in the thread of an abandoned call; a SystemExit ends a thread without a message."""


class _Worker:
    """A thread that runs one call after the other; after a late one it is never used again."""

    def __init__(self) -> None:
        self._called, self._done = threading.Lock(), threading.Lock()
        self._called.acquire()
        self._done.acquire()
        self._function: Callable[[], Any] | None = None
        self._value: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._serve, name="tool-call", daemon=True)
        self._thread.start()

    def run(
        self, seconds: float, function: Callable[[], Any], interrupt: Callable[[], None] | None
    ) -> tuple[Any, BaseException | None]:
        self._function = function
        self._called.release()
        in_time = False
        try:
            in_time = self._done.acquire(timeout=seconds)
        finally:  # late, or Ctrl-C while waiting
            if not in_time:
                self._abandon(interrupt)
        if not in_time:
            raise CallTimeout("the call did not end in time")
        value, error = self._value, self._error
        self._value = self._error = None
        return value, error

    def _serve(self) -> None:
        while True:
            self._called.acquire()
            function, self._function = self._function, None
            if function is None:
                return
            try:
                self._value = function()
            except BaseException as error:  # for the caller, whatever it is
                self._error = error
            del function
            self._done.release()

    def _abandon(self, interrupt: Callable[[], None] | None) -> None:
        """Stop the call as well as it can be; the thread ends with it."""
        if interrupt is not None:
            interrupt()
        if not self._done.acquire(timeout=_NOTICE_S):
            # The thread cannot end before `_called` is released: its identity is that of no other one.
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(self._thread.ident or 0), ctypes.py_object(_Abandoned)
            )
            self._done.acquire(timeout=_NOTICE_S)
        self._called.release()


_idle: list[_Worker] = []
os.register_at_fork(after_in_child=_idle.clear)
