"""The GRPO benchmark runs, both sides do the same work, and its last line is the JSON that is promised."""

from __future__ import annotations

import importlib.util
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
SCRIPT = SCRIPTS / "bench_grpo.py"

pytestmark = pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="TRL is not installed")


def run(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *options], capture_output=True, text=True)


@pytest.mark.slow
def test_quick_run_measures_the_same_work_on_both_sides() -> None:
    done = run("--quick", "--threads", "1")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    sizes = result["sizes"]
    completions = sizes["prompts"] * sizes["group_size"]
    expected = {"single_turn": (sizes["new_tokens"], 0), "multi_turn": (None, sizes["turns"])}
    for scenario, (tokens, calls) in expected.items():
        found = result[scenario]
        assert found["same_work"], found
        for side in ("ours", "trl"):
            counts = found[side]
            assert counts["completions"] == completions
            assert counts["groups"] == sizes["prompts"]  # every group has a signal, i.e. is trained
            assert counts["tool_calls"] == completions * calls
            assert tokens is None or counts["sampled_tokens"] == completions * tokens
            assert counts["all_tokens"] > counts["sampled_tokens"]
            assert 0 < counts["step_memory_mb"] < counts["peak_mb"]
        seconds = found["trl"]["step_s"] / found["ours"]["step_s"]
        assert found["step_ratio"] == pytest.approx(seconds, rel=1e-2)
        assert found["step_tokens_per_s_ratio"] == pytest.approx(seconds, rel=1e-2)
        spread = found["spread"]["step"]
        assert spread["minimum"] <= spread["median"] <= spread["maximum"]
        assert math.isclose(spread["median"], found["step_ratio"])
    memory = [result[scenario]["peak_memory_ratio"] for scenario in expected]
    assert result["peak_memory_ratio"] == max(memory)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--new-tokens", "30"), "multiple of 4"),
        (("--group-size", "1"), "group of one"),
        (("--prompts", "3", "--batch-rows", "16"), "must divide"),
        (("--pairs", "0"), "pairs must be at least 1"),
    ],
)
def test_sizes_that_would_not_compare_are_refused(options: tuple[str, ...], message: str) -> None:
    done = run(*options)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
