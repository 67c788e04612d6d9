"""The client side of a served world: its errors, its refusals, the wire format."""

from __future__ import annotations

import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from robustops.errors import ConfigError, TaskError, TransportError, WorldError
from robustops.records import StateCheck, Task, ToolCall, ToolResult
from robustops.serving import wire
from robustops.serving.mcp_server import background_server
from robustops.serving.mcp_world import McpWorld
from robustops.worlds.database import Row
from robustops.worlds.environment import LocalWorld
from robustops.worlds.expert import error_code
from robustops.worlds.time_limit import TOOL_TIMEOUT
from robustops.worlds.toolset import tool
from tests.slow_domain import LOG, SEEN, SLOW, WAKE, slow_task
from tests.toy_domain import TOY, ToyDomain, ToyTools, toy_task


def test_failures_of_the_served_world_are_those_of_a_local_one() -> None:
    broken = StateCheck("broken", "SELECT nothing FROM nowhere", 1)
    writing = StateCheck("writing", "DELETE FROM note", 1)
    odd = StateCheck("odd", "SELECT 1", 1, comparison="resembles")
    stranger = Task.from_dict({**toy_task().to_dict(), "domain": "elsewhere"})
    with background_server(TOY, admin=True) as url, closing(McpWorld(domain=TOY, url=url)) as remote:
        for world in (remote, LocalWorld(TOY)):
            with pytest.raises(WorldError, match="no task yet"):
                world.step(ToolCall("list_notes"))
            world.reset(toy_task())
            before = world.snapshot()
            with pytest.raises(WorldError, match="nowhere"):
                world.evaluate([broken])
            with pytest.raises(WorldError, match="not authorized"):
                world.evaluate([writing])
            with pytest.raises(TaskError, match="resembles"):
                world.evaluate([odd])
            with pytest.raises(WorldError, match="elsewhere"):
                world.reset(stranger)
            assert world.snapshot() == before


def test_misuse_of_the_client_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"url=.*command="):
        McpWorld(domain=TOY)
    with pytest.raises(ConfigError, match=r"url=.*command="):
        McpWorld(domain=TOY, url="http://127.0.0.1:1/mcp", command=["true"])
    with background_server(TOY) as url, closing(McpWorld(domain=TOY, url=url)) as world:
        with pytest.raises(TransportError, match="admin=True"):
            world.reset(toy_task())
        with pytest.raises(TransportError, match="reserved"):
            world.step(ToolCall(wire.EVALUATE, {"checks": []}))


def test_an_unreachable_server_is_a_transport_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    world = McpWorld(domain=TOY, url=f"http://127.0.0.1:{port}/mcp", timeout=10)
    with pytest.raises(TransportError, match=str(port)):
        world.reset(toy_task())
    world.close()
    world = McpWorld(domain=TOY, command=["/no/such/program"])
    with pytest.raises(TransportError, match="/no/such/program"):
        world.reset(toy_task())


def test_a_dying_server_process_is_quoted() -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('the disk is on fire')"]
    world = McpWorld(domain=TOY, command=command, timeout=20)
    with pytest.raises(TransportError, match="the disk is on fire"):
        world.reset(toy_task())


def test_a_silent_server_is_a_timeout() -> None:
    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    world = McpWorld(domain=TOY, command=command, timeout=0.5)
    with pytest.raises(TransportError, match=r"no answer within 0\.5 s"):
        world.reset(toy_task())


class ChangedTools(ToyTools):
    """Toy tools, one of them with other arguments."""

    @tool("write")
    def update_note(self, note_id: str) -> Row:  # type: ignore[override]
        """Touch a note."""
        return self.get_note(note_id)


class ChangedDomain(ToyDomain):
    toolset = ChangedTools


def test_another_version_of_the_domain_behind_the_url_is_refused() -> None:
    with (
        background_server(ChangedDomain(), admin=True) as url,
        closing(McpWorld(domain=TOY, url=url)) as world,
        pytest.raises(TransportError, match="not those of domain 'toy': update_note"),
    ):
        world.reset(toy_task())


def test_packed_snapshots_come_back_unchanged_and_odd_ones_are_refused() -> None:
    with closing(LocalWorld(TOY)) as world:
        world.reset(toy_task())
        world.step(ToolCall("create_note", {"box_id": "B1", "title": "ö"}))
        snapshot = world.snapshot()
    packed = wire.pack_snapshot(snapshot)
    assert wire.unpack_snapshot(packed) == snapshot
    assert packed["seconds"] == 1 and packed["counters"] == {}
    for key, value in (("image", "no base64!"), ("image", "AAAA"), ("seconds", "x"), ("task", 3)):
        with pytest.raises(TaskError, match="documented form"):
            wire.unpack_snapshot({**packed, key: value})


# late, lost and uncertain calls --------------------------------------------------------------------
SLOW_COMMAND = (
    "from tests.slow_domain import SLOW\n"
    "from robustops.serving.mcp_server import serve\n"
    "serve(SLOW, admin=True)"
)
ENV = {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
CREATE = ToolCall("create_note", {"box_id": "B1", "title": "water plants"})
NOTES = StateCheck("twelve", "SELECT count(*) FROM note", 12)


@pytest.fixture()
def waiting() -> Iterator[None]:
    """The slow tools wait; at the end they are let go."""
    WAKE.clear()
    SEEN.clear()
    yield
    WAKE.set()


def slow_process(**options: object) -> McpWorld:
    return McpWorld(domain=SLOW, command=[sys.executable, "-c", SLOW_COMMAND], env=ENV, **options)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (ToolCall("wait_and_read", {"tag": "a"}), "nothing was read"),
        (ToolCall("wait_and_create", {"title": "a"}), "outcome is unknown"),
    ],
)
def test_a_served_tool_that_never_answers_ends_as_a_timeout_receipt(
    waiting: None, call: ToolCall, words: str
) -> None:
    with (
        background_server(SLOW, admin=True) as url,
        closing(McpWorld(domain=SLOW, url=url, tool_timeout_s=0.3)) as world,
    ):
        world.reset(slow_task())
        began = time.monotonic()
        receipt = world.step(call)
        assert 0.3 <= time.monotonic() - began < 3
        assert receipt.is_error and error_code(receipt) == TOOL_TIMEOUT and words in receipt.text
        # Its answer comes while the next call waits, and is not taken for that one's.
        WAKE.set()
        replies = [world.step(ToolCall("get_note", {"note_id": f"N{n}"})).data for n in (1, 2, 3)]
        assert [reply["id"] for reply in replies] == ["N1", "N2", "N3"]
        assert len(SEEN) == (1 if "read" in call.name else 2), "the call was made once"


def test_a_session_that_owes_an_answer_is_not_used_for_the_next_episode(waiting: None) -> None:
    with (
        background_server(SLOW, admin=True) as url,
        closing(McpWorld(domain=SLOW, url=url, tool_timeout_s=0.3)) as world,
    ):
        world.reset(slow_task())
        first = world._link
        world.step(CREATE)
        assert world._link is first
        snapshot = world.snapshot()
        assert error_code(world.step(ToolCall("wait_and_create", {"title": "a"}))) == TOOL_TIMEOUT
        WAKE.set()
        world.reset(slow_task())
        second = world._link
        assert second is not first and world.evaluate([NOTES]) == (True,)
        world.step(ToolCall("wait_and_read", {"tag": "x"}))
        world.restore(snapshot)
        assert world._link is second, "a session without a debt is kept"
        assert world.snapshot() == snapshot


@pytest.mark.slow
def test_a_hung_server_process_costs_no_more_than_the_time_limit() -> None:
    with closing(slow_process(tool_timeout_s=0.3)) as world:
        world.reset(slow_task())
        (server,) = [p for p in psutil.Process().children() if SLOW_COMMAND in p.cmdline()]
        server.send_signal(signal.SIGSTOP)
        receipts = [world.step(CREATE), world.step(ToolCall("list_notes"))]
        assert [error_code(receipt) for receipt in receipts] == [TOOL_TIMEOUT] * 2
        world.reset(slow_task())
        assert world.evaluate([NOTES]) == (True,), "another process, another world"
        assert not psutil.pid_exists(server.pid) or server.status() == psutil.STATUS_ZOMBIE


def test_a_call_whose_delivery_is_unknown_is_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "calls.txt"
    monkeypatch.setenv(LOG, str(log))
    with closing(slow_process(timeout=20)) as world:
        world.reset(slow_task())
        with pytest.raises(WorldError, match=sys.executable) as lost:
            world.step(ToolCall("log_and_die", {"title": "one"}))
        assert isinstance(lost.value, TransportError)
        for use in (lambda: world.step(CREATE), world.snapshot, lambda: world.evaluate([NOTES])):
            with pytest.raises(TransportError):
                use()
        assert log.read_text() == "one\n"
        world.reset(slow_task())
        assert not world.step(CREATE).is_error, "the next episode has a server of its own"
    assert log.read_text() == "one\n"


def test_a_write_that_failed_after_its_commit_is_not_made_again() -> None:
    calls: list[ToolCall] = []
    rows: list[int] = []

    class CommitsThenFails(LocalWorld):
        def step(self, call: ToolCall) -> ToolResult:
            calls.append(call)
            super().step(call)
            rows.append(len(self.tools.database.find("note")))
            raise RuntimeError("no reply for you")

    with (
        background_server(TOY, admin=True, world_factory=CommitsThenFails) as url,
        closing(McpWorld(domain=TOY, url=url)) as world,
    ):
        world.reset(toy_task())
        with pytest.raises(WorldError):
            world.step(CREATE)
        time.sleep(0.2)
        assert calls == [CREATE] and rows == [13]


def test_one_check_result_is_not_spread_over_three_checks() -> None:
    class OneForAll(LocalWorld):
        def evaluate(self, checks: Sequence[StateCheck]) -> tuple[bool, ...]:
            return (True,)

    with (
        background_server(TOY, admin=True, world_factory=OneForAll) as url,
        closing(McpWorld(domain=TOY, url=url)) as world,
    ):
        world.reset(toy_task())
        with pytest.raises(WorldError, match=r"_evaluate answered \[True\] to 3 checks"):
            world.evaluate(toy_task().checks)
