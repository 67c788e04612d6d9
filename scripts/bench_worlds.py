"""Speed of the worlds: tool calls in process and over MCP, snapshots, scripted episodes, scaling.

    python scripts/bench_worlds.py [--pairs 7] [--quick]

The calls are those of the scripted experts on tasks of every template of the ITSM world, about three
reads to two writes. Each figure has a peer that does comparable work in the same run, in turns with
ours, so that whatever else the machine does slows both:

- `inprocess`: `LocalWorld.step` (argument check, SQL, reply as JSON, time limit), one call at a time, by
  CPU time, i.e. calls a second a core; `inprocess_wall` is by the clock on the wall, which also runs while
  the caller waits for the thread under the time limit. Peer: the same SQL statements on a bare `sqlite3`
  connection, rows fetched and nothing else; its end state must equal ours.
- `mcp_http`: the same calls through `McpWorld`, the server a process of its own, one call at a time.
  Peer: the SDK's own client asks a server of the SDK that only echoes for the same replies, i.e. what
  MCP costs without a world.
- `snapshot_restore`: `WorldDatabase.snapshot` and `restore` around a write. Peer: sqlite3's backup API
  to a file (fsync off) and back, around the same write.
- `episodes`: `Collector` with the scripted sampler and the tokenizer of the embedded model. Peer:
  `run_expert`, which makes the same calls without messages, tokens, faults and records.

A ratio is our rate over the peer's: 1 where our layer costs nothing beyond the peer's work. Resets are
not counted as calls. The table shows minimum / median / maximum over the pairs. The figures at the top of
the JSON line are those of the best run, as in `timeit`: slower runs measure what else the machine does.
"""

from __future__ import annotations

import argparse
import sqlite3
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import Any

from bench_common import print_json
from bench_worlds_calls import (
    Figure,
    Route,
    inprocess,
    mcp_http,
    mcp_in_flight,
    measure,
    record,
    world_server,
)
from transformers import AutoTokenizer

from robustops.records import Task
from robustops.rollout.collector import Collector
from robustops.rollout.episode import EpisodeStart, Limits
from robustops.rollout.render import Renderer
from robustops.rollout.scripted import ScriptedSampler
from robustops.worlds.database import WorldDatabase
from robustops.worlds.domain import Domain, get_domain
from robustops.worlds.domains.itsm.schema import TABLES
from robustops.worlds.environment import LocalWorld
from robustops.worlds.scripted import run_expert

TOKENIZER = Path(__file__).resolve().parents[1] / "data" / "models" / "tiny"
SIZES = {"100KB": 100_000, "1MB": 1_000_000, "10MB": 10_000_000}
CALLS = ("inprocess", "inprocess_wall", "mcp_http")
LIMITS = Limits(context_tokens=1_000_000, answer_tokens=1, max_turns=40)


@dataclass(frozen=True)
class Extent:
    """How much is measured. incidents: of the world whose calls are timed; growth: of the worlds of the
    scaling by rows; in_flight: episodes or sessions at once; rounds: runs of the sessions in flight.
    """

    pairs: int
    seeds: tuple[int, ...] = (0, 1, 2)
    incidents: int = 40
    growth: tuple[int, ...] = (16, 160, 640, 3000)
    in_flight: tuple[int, ...] = (1, 8, 64)
    rounds: int = 5


QUICK = Extent(pairs=5, seeds=(0,), growth=(16, 160), in_flight=(1, 8), rounds=1)


# snapshots ----------------------------------------------------------------------------------------
def snapshots(incidents: Sequence[dict[str, Any]], size: int, pairs: int) -> Figure:
    """Snapshots, each with its restore, a second, of a table of incidents of `size` bytes."""
    rounds = min(50, max(2, 20_000_000 // size))
    with ExitStack() as stack:
        database = stack.enter_context(closing(WorldDatabase()))
        database.script(TABLES["incident"].create())
        numbers = count()
        while database.scalar("PRAGMA page_count") * database.scalar("PRAGMA page_size") < size:
            rows = zip(incidents, numbers, strict=False)
            database.insert_many("incident", [{**row, "incident_id": f"INC_{n}"} for row, n in rows])
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        bare = stack.enter_context(closing(sqlite3.connect(":memory:")))
        bare.deserialize(database.snapshot().image)
        disk = stack.enter_context(closing(sqlite3.connect(folder / "backup.db")))
        disk.execute("PRAGMA synchronous = OFF")
        ours = partial(our_moments, database, rounds)
        return measure(ours, partial(their_moments, bare, disk, rounds), pairs)


def our_moments(database: WorldDatabase, rounds: int) -> float:
    seconds = 0.0
    for _ in range(rounds):
        start = perf_counter()
        snapshot = database.snapshot()
        seconds += perf_counter() - start
        with database.atomic():
            database.update("incident", {"incident_id": "INC_7"}, {"status": "lost"})
        start = perf_counter()
        database.restore(snapshot)
        seconds += perf_counter() - start
        if database.find("incident", incident_id="INC_7")[0]["status"] == "lost":
            raise SystemExit("restore did not take the write back")
    return rounds / seconds


def their_moments(bare: sqlite3.Connection, disk: sqlite3.Connection, rounds: int) -> float:
    seconds = 0.0
    for _ in range(rounds):
        start = perf_counter()
        bare.backup(disk)
        seconds += perf_counter() - start
        with bare:
            bare.execute("UPDATE incident SET status = 'lost' WHERE incident_id = 'INC_7'")
        start = perf_counter()
        disk.backup(bare)
        seconds += perf_counter() - start
    return rounds / seconds


# episodes -----------------------------------------------------------------------------------------
def episodes(domain: Domain, tasks: Sequence[Task], in_flight: int, pairs: int) -> Figure:
    """Episodes a second of the collector against the experts alone."""
    starts = [EpisodeStart(task, "clean", index, seed=index) for index, task in enumerate(tasks)]
    domains = {domain.name: domain}
    renderer = Renderer(AutoTokenizer.from_pretrained(TOKENIZER))
    collector = Collector(ScriptedSampler(domains), renderer, domains, LIMITS, max_in_flight=in_flight)
    with closing(collector), closing(LocalWorld(domain)) as world:

        def ours() -> float:
            start = perf_counter()
            runs = collector.run(starts)
            seconds = perf_counter() - start
            failed = [run.start.task.id for run in runs if run.episode is None or not run.episode.success]
            if failed:
                raise SystemExit(f"episodes of the expert failed: {', '.join(failed)}")
            return len(runs) / seconds

        def peer() -> float:
            start = perf_counter()
            for task in tasks:
                run_expert(world, domain, task)
            return len(tasks) / (perf_counter() - start)

        return measure(ours, peer, pairs)


# scaling ------------------------------------------------------------------------------------------
def growth(domain: Domain, incidents: int, pairs: int) -> dict[str, Any]:
    """Calls, and snapshots of the whole world, where it has so many incidents."""
    routes = record(domain, incidents, (0,))
    figure = inprocess(domain, routes, pairs)
    with closing(LocalWorld(domain)) as world:
        world.reset(routes[0].task)
        rows = sum(len(table) for table in world.tools.database.dump().values())
        moments = min(world_moment(world) for _ in range(10 * pairs))
    size = len(routes[0].image)
    show(f"  {rows} rows, {size / 1000:.0f} KB", figure)
    return {
        "incidents": incidents,
        "rows": rows,
        "bytes": size,
        "calls_per_s": figure.ours.maximum,
        "ratio": figure.ratio,
        "snapshot_restore_ms": 1000 * moments,
    }


def world_moment(world: LocalWorld) -> float:
    """Seconds of one snapshot and its restore."""
    start = perf_counter()
    world.restore(world.snapshot())
    return perf_counter() - start


def show(name: str, figure: Figure) -> None:
    spreads = (figure.ours, figure.peer, figure.ratio)
    columns = [
        " / ".join(f"{value:,.{digits}f}" for value in s)
        for s, digits in zip(spreads, (0, 0, 2), strict=True)
    ]
    print(f"{name:<28}" + "".join(f"{column:>30}" for column in columns), flush=True)


def report(extent: Extent) -> dict[str, Any]:
    """Measure everything, printing the table as it goes; the JSON line's content."""
    domain = get_domain("itsm")
    routes: list[Route] = record(domain, extent.incidents, extent.seeds)
    tasks = [route.task for route in routes]
    incidents = [dict(row) for row in domain.open(tasks[0].database).find("incident")]
    print(f"{'a second, min / med / max':<28}{'ours':>30}{'peer':>30}{'ratio':>30}")
    figures = {"inprocess": inprocess(domain, routes, extent.pairs)}
    show("calls in process, CPU time", figures["inprocess"])
    figures["inprocess_wall"] = inprocess(domain, routes, extent.pairs, perf_counter)
    show("calls in process, wall time", figures["inprocess_wall"])
    with world_server(domain) as url:
        figures["mcp_http"] = mcp_http(domain, url, routes, extent.pairs)
        show("calls over MCP, HTTP", figures["mcp_http"])
        sessions = {str(n): mcp_in_flight(domain, url, routes, n, extent.rounds) for n in extent.in_flight}
    for name, size in SIZES.items():
        figures[name] = snapshots(incidents, size, extent.pairs)
        show(f"snapshot + restore, {name}", figures[name])
    for number in extent.in_flight:
        figures[f"episodes_{number}"] = episodes(domain, tasks, number, extent.pairs)
        show(f"episodes, {number} in flight", figures[f"episodes_{number}"])
    print("calls in process by size of the world")
    grown = [growth(domain, number, extent.pairs) for number in extent.growth]
    print("calls over MCP by sessions in flight: " + ", ".join(f"{n}: {v:.0f}" for n, v in sessions.items()))
    return {
        "calls_per_s": {name: figures[name].ours.maximum for name in CALLS},
        "snapshot_restore_ms": {name: 1000 / figures[name].ours.maximum for name in SIZES},
        "episodes_per_s": {str(n): figures[f"episodes_{n}"].ours.maximum for n in extent.in_flight},
        "mcp_http_in_flight": sessions,
        "growth": grown,
        "ratio": {name: figure.ratio for name, figure in figures.items()},
        "ours_per_s": {name: figure.ours for name, figure in figures.items()},
        "peer_per_s": {name: figure.peer for name, figure in figures.items()},
        "pairs": extent.pairs,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=7, help="pairs of runs a figure, at least 5")
    parser.add_argument("--quick", action="store_true", help="small worlds and few calls, for tests")
    given = parser.parse_args()
    if given.pairs < 5:
        parser.error(f"--pairs {given.pairs} is too few for a spread; give at least 5")
    print_json(report(QUICK if given.quick else Extent(given.pairs)))


if __name__ == "__main__":
    main()
