"""`robustops monitor`: text, JSON, plot, profile, following a growing log."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from robustops import cli
from robustops.commands import monitor
from robustops.monitor.panel import Panel
from robustops.settings import MonitorCommandSettings
from tests.monitor.runs import healthy_panel, step_to

KEYS = {"verdict", "onset", "family", "type", "labels", "severity", "evidence", "missing"}


def write(path: Path, panel: Panel, rows: int | None = None) -> Path:
    """A panel as JSON lines with TRL's keys."""
    keys = {
        "reward_mean": "reward",
        "zero_signal_frac": "frac_reward_zero_std",
        "kl_ref_k3": "kl",
        "entropy": "entropy",
        "grad_norm": "grad_norm",
        "lr": "learning_rate",
        "len_mean": "completions/mean_length",
        "trunc_frac": "completions/clipped_ratio",
    }
    with path.open("w", encoding="utf-8") as file:
        for row in range(len(panel))[:rows]:
            body = {key: float(panel[name][row]) for name, key in keys.items() if name in panel.columns}
            file.write(json.dumps({"step": int(panel.steps[row]), **body, "speed": 1.0}) + "\n")
    return path


@pytest.fixture
def collapsed(tmp_path: Path) -> Path:
    return write(tmp_path / "bad.jsonl", healthy_panel(40, entropy=step_to(40, 20, 0.8, 0.02)))


def as_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    assert cli.main(["monitor", *arguments, "format=json"]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_json_has_the_keys_of_a_verdict(collapsed: Path, capsys: pytest.CaptureFixture[str]):
    body = as_json(capsys, f"source={collapsed}")
    assert set(body) >= KEYS
    assert (body["verdict"], body["onset"], body["family"]) == ("anomalous", 21, "optimisation")
    assert body["type"] == "entropy_collapse" and body["labels"] == {"entropy_collapse": 1.0}
    (evidence,) = body["evidence"]
    assert (evidence["column"], evidence["step"], evidence["invariant"]) == ("entropy", 21, "entropy")
    assert (body["format"], body["names"], body["rows"], body["steps"]) == ("trl", "trl", 40, [1, 40])
    assert "success_mean" in body["missing"] and body["unmapped"] == {"speed": "not in the key map"}
    assert body["p_value"] is None


def test_text_says_what_when_and_by_what_evidence(collapsed: Path, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["monitor", f"source={collapsed}"]) == 0
    text = capsys.readouterr().out
    assert "verdict: anomalous from step 21: optimisation / entropy_collapse" in text
    assert "may be: entropy_collapse (OD-3) 100%" in text
    assert "evidence, first mover first" in text and "not observed, would tell more:" in text
    assert "success_mean" in text


def test_a_log_that_cannot_tell_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = write(tmp_path / "short.jsonl", healthy_panel(40), rows=9)
    assert cli.main(["monitor", f"source={path}"]) == 0
    text = capsys.readouterr().out
    assert "verdict: not observed" in text and "the log has 9 of the 20 rows" in text
    assert as_json(capsys, f"source={path}")["not_observed_because"] == [
        "the log has 9 of the 20 rows that it takes to call a run healthy"
    ]


def test_a_horizon_that_is_too_short_is_a_reason(collapsed: Path, capsys: pytest.CaptureFixture[str]):
    body = as_json(capsys, f"source={collapsed}", "horizon=9")
    assert body["verdict"] == "not_observed" and body["rows"] == 40
    assert body["not_observed_because"][0].startswith("the log has 9 of the 20 rows")


def test_horizon_format_and_estimator_reach_their_places(
    collapsed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert as_json(capsys, f"source={collapsed}", "horizon=20")["verdict"] == "healthy"
    assert as_json(capsys, f"source={collapsed}", "source_format=jsonl")["format"] == "jsonl"
    verl = tmp_path / "verl.log"
    verl.write_text("step:1 - actor/kl_loss:20.0 - actor/entropy:0.5 - critic/rewards/mean:0.5\n")
    assert as_json(capsys, f"source={verl}")["verdict"] == "not_observed"
    body = as_json(capsys, f"source={verl}", "kl_estimator=k1")
    assert (body["verdict"], body["type"]) == ("anomalous", "kl_explosion")


def test_a_profile_is_a_log_or_a_folder_of_logs(
    collapsed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder = tmp_path / "healthy"
    folder.mkdir()
    (folder / "notes.txt").write_text("these went well")
    for seed in range(19):
        write(folder / f"{seed}.jsonl", healthy_panel(40, seed))
    assert as_json(capsys, f"source={collapsed}", f"profile={folder}")["p_value"] == 1 / 20
    one = as_json(capsys, f"source={collapsed}", f"profile={folder / '0.jsonl'}")
    assert one["p_value"] == 1 / 2
    (tmp_path / "empty").mkdir()
    assert cli.main(["monitor", f"source={collapsed}", f"profile={tmp_path / 'empty'}"]) == 2
    assert "holds no log of a healthy run" in capsys.readouterr().err


def test_the_plot_is_written_where_it_was_asked_for(
    collapsed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    pytest.importorskip("matplotlib")
    assert cli.main(["monitor", f"source={collapsed}", f"plot={tmp_path / 'run.png'}"]) == 0
    assert (tmp_path / "run.png").stat().st_size > 10_000
    assert "plot: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "monitor needs source=PATH"),
        (["source=nix"], "there is no nix"),
        (["source=nix", "source_format=tlr"], "choose one of: auto, ours"),
        (["source=nix", "horizon=0"], "horizon is 0; it must be at least 1"),
        (["source=nix", "kl_estimator=k2"], "choose one of: unknown, k1, k3"),
    ],
)
def test_a_wrong_request_is_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["monitor", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_following_tells_each_change_and_ends_with_the_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Sleeping makes the log grow: not there, one row, half a row, healthy, collapsed; then Ctrl-C."""
    path, panel = tmp_path / "run.jsonl", healthy_panel(60, entropy=step_to(60, 30, 0.8, 0.02))
    states = [1, 1, 25, 60]

    def grow(seconds: float) -> None:
        assert seconds == 0.5
        if not states:
            raise KeyboardInterrupt
        write(path, panel, states.pop(0))
        if len(states) == 2:
            path.write_text(path.read_text() + '{"step": 2, "rew')

    monkeypatch.setattr(time, "sleep", grow)
    settings = MonitorCommandSettings(source=str(path), follow=True, interval_s=0.5, format="json")
    body = monitor.run(settings, None)  # type: ignore[arg-type]
    assert (body["verdict"], body["rows"], body["type"]) == ("anomalous", 60, "entropy_collapse")
    told = capsys.readouterr().err
    assert "waiting: there is no" in told and "step 1: not observed" in told
    assert "step 25: healthy" in told and "step 60: anomalous from step 31" in told


def test_a_watch_that_saw_nothing_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def stop(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", stop)
    settings = MonitorCommandSettings(source=str(tmp_path / "nix"), follow=True)
    with pytest.raises(Exception, match="had nothing to read when the watch ended"):
        monitor.run(settings, None)  # type: ignore[arg-type]


@pytest.mark.slow
def test_ctrl_c_ends_a_watch_cleanly(collapsed: Path):
    arguments = [f"source={collapsed}", "follow=true", "interval_s=0.2", "format=json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "robustops.cli", "monitor", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=collapsed.parent,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "anomalous" in line:
            break
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert json.loads(out.splitlines()[-1])["type"] == "entropy_collapse"


def test_our_own_run_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    panel = healthy_panel(40, obs_roundtrip_mismatch_frac=step_to(40, 25, 0.0, 0.1))
    lines = []
    for row in range(40):
        metrics = {name: float(values[row]) for name, values in panel.columns.items()}
        lines.append(json.dumps({"step": row + 1, "stage": "grpo", "metrics": metrics, "facts": {}}))
    (tmp_path / "telemetry.jsonl").write_text("\n".join(lines) + "\n")
    body = as_json(capsys, f"source={tmp_path}")
    assert (body["format"], body["onset"], body["type"]) == ("ours", 26, "observation_corruption")
    assert body["evidence"][0]["score"] == "Infinity" and np.isfinite(body["severity"])


def test_fit_learns_from_a_folder_of_logs_and_a_run_is_judged_by_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    usual = healthy_panel(40, 50)["entropy"]
    broken = np.where(np.arange(40) < 20, usual, 0.02)
    collapsed = write(tmp_path / "bad.jsonl", healthy_panel(40, 50, entropy=broken))
    (tmp_path / "healthy").mkdir()
    for seed in range(20):
        write(tmp_path / "healthy" / f"{seed}.jsonl", healthy_panel(40, seed))
    logs, profile = f"fit={tmp_path / 'healthy'}", f"profile={tmp_path / 'profile'}"
    made = as_json(capsys, logs, profile)
    assert (made["runs"], made["steps"]) == (20, 40)
    assert 0.05 <= made["false_alarm_bound"] < 0.2
    body = as_json(capsys, f"source={collapsed}", profile)
    assert (body["verdict"], body["onset"]) == ("anomalous", 21)
    assert body["p_value"] == pytest.approx(1 / 21)
    assert "entropy" in {evidence["column"] for evidence in body["evidence"]}
    # As if learned at once from the same logs.
    assert as_json(capsys, f"source={collapsed}", f"profile={tmp_path / 'healthy'}") == body


def test_fit_wants_a_place_to_write_to_and_enough_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "healthy").mkdir()
    for seed in range(18):
        write(tmp_path / "healthy" / f"{seed}.jsonl", healthy_panel(40, seed))
    for arguments, said in ((), "profile=FOLDER"), ((f"profile={tmp_path / 'p'}",), "give 19 or more"):
        assert cli.main(["monitor", f"fit={tmp_path / 'healthy'}", *arguments]) == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "p").exists()
