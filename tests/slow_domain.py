"""The toy domain with tools that never answer, answer late, or take their server down."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

from robustops.records import Task
from robustops.worlds.database import Row
from robustops.worlds.toolset import tool
from tests.toy_domain import ToyDomain, ToyTools, toy_task

#: Set it to let every waiting tool go on.
WAKE = threading.Event()
#: Environment variable with the file in which `log_and_die` leaves a line per call.
LOG = "SLOW_DOMAIN_LOG"
#: What the waiting tools did, in order, and the threads that they did it in.
SEEN: list[str] = []
THREADS: list[threading.Thread] = []


class SlowTools(ToyTools):
    """Toy tools, and some that do not end."""

    @tool("read")
    def wait_and_read(self, tag: str) -> dict[str, Any]:
        """Reply once WAKE is set."""
        SEEN.append(f"read {tag}")
        WAKE.wait()
        return {"tag": tag}

    @tool("write")
    def wait_and_create(self, title: str) -> Row:
        """Create a note, wait until WAKE is set, create another one."""
        SEEN.append(f"create {title}")
        THREADS.append(threading.current_thread())
        self.database.count("waits")
        self.create_note("B1", title)
        WAKE.wait()
        row: Row = self.create_note("B1", f"{title} again")
        SEEN.append(f"created {title}")
        return row

    @tool("write")
    def spin(self) -> Row:
        """Compute for ever."""
        while True:
            pass

    @tool("write")
    def endless_query(self) -> Row:
        """Count for ever, in SQL."""
        self.create_note("B1", "endless")
        self.database.query(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
        )
        return {}

    @tool("write")
    def log_and_die(self, title: str) -> Row:
        """Leave a line in the log and end the process without a word."""
        with Path(os.environ[LOG]).open("a") as log:
            log.write(f"{title}\n")
        os._exit(3)


class SlowDomain(ToyDomain):
    """Toy worlds with the slow tools."""

    toolset = SlowTools


SLOW = SlowDomain()


def slow_task(seed: int = 0) -> Task:
    """A toy task that allows every tool."""
    return replace(toy_task(seed=seed), tools=tuple(SlowTools.specs()), distractors=())
