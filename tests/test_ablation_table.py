"""The ablation table says what the runs of a sweep show, and what is noise."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from robustops.errors import ConfigError
from robustops.monitor.telemetry import StepRecord, TelemetryWriter
from robustops.records import Episode
from robustops.tracking.run_store import RunStore

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "ablation_table.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ablation_table", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["ablation_table"] = module
    spec.loader.exec_module(module)
    return module


def write_run(sweep: Path, variant: str, seed: int, solved: dict[str, int], cases: int = 40) -> None:
    """A run that solved the first so many of its cases in each condition."""
    folder = sweep / f"{variant}-{seed}"
    (folder / ".hydra").mkdir(parents=True)
    overrides = f"- model.checkpoint=somewhere\n- ablation={variant}\n- seed={seed}\n"
    (folder / ".hydra" / "overrides.yaml").write_text(overrides)
    with RunStore(folder / "run.db") as store:
        for condition, number in solved.items():
            episodes = [
                Episode(f"case-{i}", condition, 0, (), (), (), (), 0, "final_answer", (False,), (i < number,))
                for i in range(cases)
            ]
            store.add_episodes("evaluation", 0, episodes, policy="grpo")
    with TelemetryWriter(folder / "telemetry.jsonl") as telemetry:
        telemetry.write(StepRecord(1, "grpo", {"rollout/groups_accepted": 6.0}))
        telemetry.write(StepRecord(2, "grpo", {"rollout/groups_accepted": 9.0}))


def sweep_of_two(folder: Path) -> Path:
    """Clean: the variant is better on 8 more cases in every seed. Fault: the seeds contradict each other."""
    for seed in (0, 1):
        write_run(folder, "full", seed, {"clean": 20, "fault": 10})
        write_run(folder, "other", seed, {"clean": 28, "fault": 10 + (6 if seed else -4)})
    return folder


def test_differences_are_of_the_same_cases_and_seeds_by_hand(script: ModuleType, tmp_path: Path) -> None:
    runs = [script.read_run(path.parent) for path in sorted(sweep_of_two(tmp_path).glob("*/run.db"))]
    full, other = runs[:2], runs[2:]
    assert [run.groups for run in runs] == [7.5] * 4
    interval, seeds = script.difference(other, full, "clean")
    assert interval.estimate == pytest.approx(20.0) and seeds == pytest.approx([20.0, 20.0])
    assert script.verdict(interval, seeds) == "better"
    interval, seeds = script.difference(other, full, "fault")
    assert interval.estimate == pytest.approx(2.5) and seeds == pytest.approx([-10.0, 15.0])
    assert script.verdict(interval, seeds) == "noise"


def test_a_worse_variant_is_called_worse_only_if_all_seeds_agree(script: ModuleType) -> None:
    below = script.Interval(-3.0, -5.0, -1.0)
    assert script.verdict(below, [-2.0, -4.0]) == "worse"
    assert script.verdict(below, [0.5, -6.5]) == "noise"


def test_the_command_prints_a_row_a_variant(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(sweep_of_two(tmp_path))], capture_output=True, text=True
    )
    rows = done.stdout.splitlines()[2:]
    assert done.returncode == 0 and len(rows) == 2
    assert rows[0] == "| full | 2 | 7.5 | 50.0 | 25.0 | - | - |"
    assert rows[1].startswith("| other | 2 | 7.5 | 70.0 | 27.5 | +20.0 [") and rows[1].endswith(": noise |")


def test_runs_that_cannot_be_compared_are_named(script: ModuleType, tmp_path: Path) -> None:
    write_run(tmp_path, "other", 0, {"clean": 1, "fault": 1})
    run = script.read_run(tmp_path / "other-0")
    with pytest.raises(ConfigError, match="ablation=full"):
        script.table([run])
    write_run(tmp_path, "full", 1, {"clean": 1, "fault": 1})
    with pytest.raises(ConfigError, match="no seed in common"):
        script.table([run, script.read_run(tmp_path / "full-1")])
    (tmp_path / "other-0" / ".hydra" / "overrides.yaml").write_text("- seed=0\n")
    with pytest.raises(ConfigError, match="no run of an ablation"):
        script.read_run(tmp_path / "other-0")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path / "nothing")], capture_output=True, text=True
    )
    assert done.returncode == 1 and done.stderr.startswith("no run in these folders")
