"""Our GRPO step against TRL's, on the same tiny model, prompts, group size and completion lengths.

    python scripts/bench_grpo.py [--pairs 5] [--new-tokens 32] ...

Two scenarios: `single_turn` (requests `a+b*c`, answered line by line) and `multi_turn` (a calculator among
six tools, TRL's `tools=`, a world here; six calls an episode: what the quickstart's tasks offer at the least
and its policies make). Both sides sample from one model that knows the formats by heart (bench_grpo_work.py),
so that all completions have the same length; the token counts of both are compared and printed. Both train in
float32 on the CPU with as many threads, one inner epoch, KL to a frozen reference, and every group. A
training pass takes what suits its side: ours the default budget of `grpo.micro_batch_tokens`, TRL's 16
completions (with 24 or 48 it takes more memory and no less time). A pair is a process of each, which step by
turns (with `--ahead` one after the other), so that a machine that changes its pace changes it for both; the
first step is left out. A step is everything from one optimiser update to the next; sampling includes the
tools, training is the rest. Ratios of speed are ours / TRL (above 1: ours is faster), ratios of memory as
well (below 1: ours needs less). `step_memory` leaves out what a process held before its first step, i.e.
imports and the model. `cpu` compares processor seconds, which a busy machine disturbs less.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench_common import Spread, print_json, ratios
from bench_grpo_work import FURTHER_TOOLS, SCENARIOS, TURN, Work

SIDES = ("ours", "trl")
QUICK = {
    "pairs": 1,
    "steps": 1,
    "prompts": 2,
    "group_size": 4,
    "batch_rows": 4,
    "micro_batch_tokens": 1024,
    "width": 128,
    "layers": 2,
    "turns": 2,
    "tools": 2,
    "new_tokens": 16,
}
#: Reports of the pairs of one scenario: (ours, TRL's).
Pairs = Sequence[tuple[dict[str, Any], dict[str, Any]]]


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=5, help="measurements of each side, in turn")
    parser.add_argument("--steps", type=int, default=6, help="measured steps a process, after a first one")
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--new-tokens", type=int, default=32, help="of a single-turn completion")
    parser.add_argument("--turns", type=int, default=6, help="tool calls of a multi-turn completion")
    parser.add_argument("--tools", type=int, default=6, help="offered by a multi-turn request")
    parser.add_argument("--batch-rows", type=int, default=16, help="completions of a training pass of TRL's")
    parser.add_argument(
        "--micro-batch-tokens", type=int, default=8192, help="most tokens of a training pass of ours"
    )
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--vocabulary", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--ahead",
        action="store_true",
        help="ours samples the next step while this one trains, from weights that are one step old",
    )
    parser.add_argument("--quick", action="store_true", help="one small pair, to see that all works")
    options = parser.parse_args(given)
    if options.quick:
        vars(options).update(QUICK)
    problem = _problem(options)
    if problem is not None:
        parser.error(problem)
    return options


def _problem(options: argparse.Namespace) -> str | None:
    """What is wrong with the options, if anything."""
    numbers = {name: value for name, value in vars(options).items() if name not in ("quick", "ahead")}
    if bad := [name for name, value in numbers.items() if value < 1]:
        return f"{', '.join(bad)} must be at least 1"
    if options.group_size < 2:
        return "a group of one has no advantages: --group-size is at least 2"
    if options.new_tokens % 4 or options.new_tokens > 208:
        return "--new-tokens counts lines of four tokens: a multiple of 4, at most 208"
    if options.turns > 52:
        return "--turns is at most 52"
    if options.tools > 1 + len(FURTHER_TOOLS):
        return f"--tools is at most {1 + len(FURTHER_TOOLS)}"
    if options.prompts * options.group_size % options.batch_rows:
        return "--batch-rows must divide prompts x group size, so that TRL's batches are full"
    return None


class Side:
    """One side's process; scenarios: what it measures, one after the other."""

    def __init__(self, name: str, scenarios: Sequence[str], folder: Path, threads: int) -> None:
        self.script = Path(__file__).with_name(f"bench_grpo_{name}.py")
        self.scenarios = scenarios
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process
        names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
        self.process = subprocess.Popen(
            [sys.executable, str(self.script), str(folder), *scenarios],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env={**os.environ, **dict.fromkeys(names, str(threads)), "CUDA_VISIBLE_DEVICES": ""},
            cwd=folder,
        )

    def message(self, key: str) -> dict[str, Any]:
        """The next message that begins with `key`; SystemExit with the process's last lines if none comes."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(f'{{"{key}"'):
                return dict(json.loads(line))
        self.process.wait()
        self.errors.seek(0)
        said = self.errors.read()[-3000:]
        raise SystemExit(f"{self.script.name} {' '.join(self.scenarios)} failed:\n{said}")

    def steps_left(self) -> int:
        """Waits until it asks for its turn, or is done."""
        return int(self.message(TURN)[TURN])

    def go(self, steps: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()


def measure(
    scenarios: Sequence[str], folder: Path, threads: int, *, first: int = 0, together: bool = False
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """A pair of processes; the reports of ours and TRL's, a scenario.

    They step by turns, so that a machine that changes its pace changes it for both; first: the side that
    begins; together: all steps of a side in one turn.
    """
    sides = [Side(name, scenarios, folder, threads) for name in SIDES]
    found = []
    try:
        for _ in scenarios:
            left = [side.steps_left() for side in sides]
            turn = first
            while any(left):
                if left[turn]:
                    sides[turn].go(left[turn] if together else 1)
                    left[turn] = sides[turn].steps_left()
                turn = 1 - turn
            for side in sides:
                side.go(0)
            ours, other = (side.message("step_s") for side in sides)
            found.append((ours, other))
    finally:
        for side in sides:
            side.process.kill()
            side.process.communicate()
            side.errors.close()
    return found


def compare(pairs: Pairs) -> dict[str, Any]:
    """Ratios over the pairs, medians of each side, and whether both did the same work."""
    counts = [[_totals(report) for report in pair] for pair in pairs]
    same = all(ours == other for ours, other in counts)

    def ratio(value: Any, *, inverse: bool = False) -> Spread:
        found = [(value(ours), value(other)) for ours, other in pairs]
        return ratios([(b, a) for a, b in found] if inverse else found)

    speed = {name: ratio(lambda r, n=name: _speeds(r)[n]) for name in _speeds(pairs[0][0])}
    spreads = {
        "step": ratio(lambda r: statistics.median(r["step_s"]), inverse=True),
        "cpu": ratio(lambda r: statistics.median(r["step_cpu_s"]), inverse=True),
        **speed,
        "peak_memory": ratio(lambda r: r["peak_bytes"]),
        "step_memory": ratio(lambda r: max(1, r["peak_bytes"] - r["start_bytes"])),
    }
    return {
        **{f"{name}_ratio": value.median for name, value in spreads.items()},
        "same_work": same,
        "spread": spreads,
        **{side: _medians([pair[place] for pair in pairs]) for place, side in enumerate(SIDES)},
    }


def _totals(report: dict[str, Any]) -> dict[str, int]:
    return {name: sum(step[name] for step in report["counts"]) for name in report["counts"][0]}


def _speeds(report: dict[str, Any]) -> dict[str, float]:
    """Sampled tokens a second of the sampling, of the training and of whole steps."""
    tokens, step, sampling = (
        _totals(report)["sampled_tokens"],
        sum(report["step_s"]),
        sum(report["sampling_s"]),
    )
    return {
        "sampling_tokens_per_s": tokens / sampling,
        "training_tokens_per_s": tokens / (step - sampling),
        "step_tokens_per_s": tokens / step,
    }


def _medians(reports: Sequence[dict[str, Any]]) -> dict[str, float]:
    """One side's figures: medians over its processes, counts a step."""
    rows = [
        {
            "step_s": statistics.median(report["step_s"]),
            **_speeds(report),
            "peak_mb": report["peak_bytes"] / 1e6,
            "step_memory_mb": (report["peak_bytes"] - report["start_bytes"]) / 1e6,
            **{name: total / len(report["step_s"]) for name, total in _totals(report).items()},
        }
        for report in reports
    ]
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}


def show(scenario: str, result: dict[str, Any]) -> None:
    """The scenario as a table."""
    print(f"\n{scenario}: ratios as minimum / median / maximum over the pairs")
    for name, value in result["spread"].items():
        print(f"  {name:24} {value}")
    print(f"  {'medians of a side':24} {'ours':>12} {'TRL':>12}")
    for name, value in result["ours"].items():
        print(f"  {name:24} {value:12.4g} {result['trl'].get(name, float('nan')):12.4g}")
    if not result["same_work"]:
        print("  the sides did not do the same work: compare tokens a second, not seconds a step")


def main() -> None:
    options = arguments()
    sizes = {name: value for name, value in vars(options).items() if name not in ("pairs", "quick")}
    # Peak memory needs a process for each scenario; a quick run spares the imports instead.
    together = [SCENARIOS] if options.quick else [(scenario,) for scenario in SCENARIOS]
    found: dict[str, list[tuple[dict[str, Any], dict[str, Any]]]] = {name: [] for name in SCENARIOS}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        print("teaching a tiny model the formats ...", flush=True)
        _prepare(Work(**sizes), folder)
        for number in range(options.pairs):
            for scenarios in together:
                pairs = measure(scenarios, folder, options.threads, first=number % 2, together=options.ahead)
                for scenario, pair in zip(scenarios, pairs, strict=True):
                    found[scenario].append(pair)
                    ours, other = (statistics.median(report["step_s"]) for report in pair)
                    print(f"pair {number + 1} {scenario}: ours {ours:.3f} s, TRL {other:.3f} s", flush=True)
    results = {scenario: compare(pairs) for scenario, pairs in found.items()}
    for scenario, result in results.items():
        show(scenario, result)
    worst = max(result["peak_memory_ratio"] for result in results.values())
    print_json({**results, "peak_memory_ratio": worst, "sizes": {**sizes, "pairs": options.pairs}})


def _prepare(work: Work, folder: Path) -> None:
    """In a process of its own: this one stays small and idle."""
    command = [sys.executable, str(Path(__file__).with_name("bench_grpo_model.py")), str(folder)]
    work.save(folder)
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"the tiny model was not made:\n{done.stderr[-3000:]}")


if __name__ == "__main__":
    main()
