from __future__ import annotations

from robustops.monitor.telemetry import StepRecord
from robustops.tracking.silent import SilentStore, SilentTelemetry
from tests.tracking.test_run_store import EPISODE


def test_a_silent_store_takes_everything_and_keeps_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with SilentStore() as store:
        for _ in range(2):
            store.add_step("sft", 1, {"loss": 1.0}, 0.1)
            store.add_episodes("grpo", 1, [EPISODE])
        store.add_alert("sft", 1, kind="x", severity=1.0, message="y")
        store.add_timing("sft", "total", 1.0)
        assert store.truncate("sft", 0)["steps"] == 0
        assert store.steps() == store.episodes() == store.alerts() == []
    assert list(tmp_path.iterdir()) == []


def test_silent_telemetry_takes_steps_in_any_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with SilentTelemetry() as telemetry:
        for step in (2, 1, 1):
            telemetry.write(StepRecord(step, "sft", {"loss": 1.0}))
        assert telemetry.last is not None and telemetry.last.step == 1
        assert telemetry.truncate_after(0, "sft") == 0
        assert telemetry.last is None
    assert list(tmp_path.iterdir()) == []
