"""The reader against a slow writer of the file format, and against a run of the package itself."""

import json
import struct
import time
import zlib

import pytest

from robustops.errors import ConfigError
from robustops.monitor.importers import load

messages = pytest.importorskip("wandb.proto.wandb_internal_pb2")
BLOCK = 32 * 1024


def history(step, **values):
    record = messages.Record()
    for key, value in {"_step": step, **values}.items():
        record.history.item.add(nested_key=key.split("/"), value_json=json.dumps(value))
    return record.SerializeToString()


def config(**values):
    record = messages.Record()
    for key, value in values.items():
        record.run.config.update.add(key=key, value_json=json.dumps(value))
    return record.SerializeToString()


def file_of(bodies):
    """The bytes of a run's file: records cut at the ends of blocks."""
    data = bytearray(b":W&B" + b"\xe1\xbe\x00")
    for body in bodies:
        first = True
        while first or body:
            room = BLOCK - len(data) % BLOCK
            if room < 7:
                data += bytes(room)
                continue
            part, body = body[: room - 7], body[room - 7 :]
            kind = (1 if first else 4) if not body else (2 if first else 3)
            data += struct.pack("<IHB", zlib.crc32(bytes([kind]) + part), len(part), kind) + part
            first = False
    return bytes(data)


def rows(count, **more):
    return [
        history(step, **{"train/global_step": step, "train/reward": 0.1, "train/kl": 0.01, **more})
        for step in range(1, count + 1)
    ]


def test_history_over_many_blocks(tmp_path):
    path = tmp_path / "run-x.wandb"
    path.write_bytes(file_of(rows(300, filler="x" * 1000)))  # some 400 kB
    found = load(path)
    assert (found.format, found.names, found.panel.steps.tolist()) == ("wandb", "trl", list(range(1, 301)))
    assert found.panel["kl_ref_k3"].tolist() == [0.01] * 300 and found.notes == ()


def test_a_record_longer_than_a_block(tmp_path):
    path = tmp_path / "run-x.wandb"
    path.write_bytes(file_of([config(text="y" * 3 * BLOCK), *rows(3)]))
    assert len(load(path).panel) == 3


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_growing_file_is_read_up_to_its_last_whole_record(cut, tmp_path):
    path = tmp_path / "run-x.wandb"
    path.write_bytes(file_of(rows(5))[:-cut])
    found = load(path)
    assert len(found.panel) == 4 and "torn or still being written" in found.notes[0]


def test_a_damaged_file_is_read_up_to_the_damage(tmp_path):
    path, whole = tmp_path / "run-x.wandb", bytearray(file_of(rows(5)))
    whole[-10] ^= 1
    path.write_bytes(bytes(whole))
    found = load(path)
    assert len(found.panel) == 4 and "the file is damaged at byte" in found.notes[0]


def test_the_estimator_is_read_off_the_configuration(tmp_path):
    path = tmp_path / "run-x.wandb"
    verl = {"actor/kl_loss": 0.2, "actor/entropy": 0.5, "critic/rewards/mean": 0.5}
    bodies = [history(step, **verl) for step in (1, 2)]
    actor = {"actor": {"kl_loss_type": "low_var_kl"}}
    path.write_bytes(file_of([config(actor_rollout_ref=actor), *bodies]))
    assert load(path).panel["kl_ref_k3"].tolist() == [0.2, 0.2]
    path.write_bytes(file_of(bodies))
    assert "kl_ref_k3" not in load(path).panel.columns


def test_several_runs_are_named_and_a_link_to_one_is_no_second(tmp_path):
    for name in ("run-a", "run-b"):
        (tmp_path / "wandb" / name).mkdir(parents=True)
        (tmp_path / "wandb" / name / f"{name}.wandb").write_bytes(file_of(rows(2)))
    with pytest.raises(ConfigError, match=r"holds 2 runs \(run-a, run-b, ...\)"):
        load(tmp_path)
    (tmp_path / "wandb" / "run-a" / "run-a.wandb").unlink()
    (tmp_path / "wandb" / "latest-run").symlink_to(tmp_path / "wandb" / "run-b")
    assert len(load(tmp_path).panel) == len(load(tmp_path / "wandb" / "latest-run").panel) == 2


@pytest.mark.slow
def test_a_run_of_the_package(tmp_path, monkeypatch):
    import wandb

    monkeypatch.setenv("WANDB_MODE", "offline")
    run = wandb.init(dir=tmp_path, project="x", settings=wandb.Settings(silent=True, console="off"))
    for step in range(1, 6):
        run.log({"train/global_step": step, "train/reward": 0.1 * step, "train/kl": float("nan")})
    run.finish()
    deadline = time.monotonic() + 60  # the package's service writes in a process of its own
    while True:
        try:
            found = load(tmp_path)
        except ConfigError:
            assert time.monotonic() < deadline
        else:
            if len(found.panel) == 5:
                break
            assert time.monotonic() < deadline, found.notes
        time.sleep(0.2)
    assert found.panel["reward_mean"].tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])
    assert found.panel["nan_count"].tolist() == [1.0] * 5
