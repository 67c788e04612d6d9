"""scripts/bench_worlds.py: what it measures and the line that it ends with. Speed is not checked here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "bench_worlds.py"


@pytest.mark.slow
def test_the_last_line_holds_every_figure_of_at_least_five_pairs() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), "--quick"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["pairs"] >= 5
    assert set(found["calls_per_s"]) >= {"inprocess", "mcp_http"}
    assert set(found["snapshot_restore_ms"]) == {"100KB", "1MB", "10MB"}
    assert len(found["episodes_per_s"]) == len(found["mcp_http_in_flight"]) >= 2
    assert [world["rows"] for world in found["growth"]] == sorted({w["rows"] for w in found["growth"]})
    for name, ratio in found["ratio"].items():
        ours = found["ours_per_s"][name]
        assert 0 < ratio["minimum"] <= ratio["median"] <= ratio["maximum"]
        assert 0 < ours["minimum"] <= ours["median"] <= ours["maximum"]
    for name, rate in found["calls_per_s"].items():
        assert rate == found["ours_per_s"][name]["maximum"]
    times = found["snapshot_restore_ms"]
    assert 0 < times["100KB"] < times["10MB"]
