"""What a run wrote, in a form in which two runs can be compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from robustops.tracking.run_store import RunStore


def telemetry(folder: Path) -> bytes:
    return (folder / "telemetry.jsonl").read_bytes()


def rows_of(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """What run.db holds of steps and episodes, without ids and wall-clock times."""
    with RunStore(folder / "run.db") as store:
        steps = [{k: v for k, v in row.items() if k in ("stage", "step", "metrics")} for row in store.steps()]
        episodes = []
        for row in store.episodes():
            whole = store.episode(row["id"])
            parts = {name: whole.pop(name) for name in ("turns", "tool_faults", "checks")}
            for child in (row for rows in parts.values() for row in rows):
                child.pop("id")
                child.pop("episode_id")
            whole.pop("id")
            episodes.append({**whole, **parts})
    return {"steps": steps, "episodes": episodes}


def assert_same_run(folder: Path, finished: Path) -> None:
    """The same telemetry to the byte, the same rows once each, the same results and weights."""
    assert telemetry(folder) == telemetry(finished)
    mine, theirs = rows_of(folder), rows_of(finished)
    assert mine["steps"] == theirs["steps"]
    order = [json.dumps(row, sort_keys=True, default=str) for row in mine["episodes"]]
    assert sorted(order) == sorted(json.dumps(r, sort_keys=True, default=str) for r in theirs["episodes"])
    summaries = [json.loads((f / "summary.json").read_text()) for f in (folder, finished)]
    assert summaries[0]["evaluations"] == summaries[1]["evaluations"]
    for stage in ("sft", "grpo"):
        names = [f / "checkpoints" / stage / "policy" / "model.safetensors" for f in (folder, finished)]
        assert names[0].read_bytes() == names[1].read_bytes()
