from __future__ import annotations

import pytest
import torch

from robustops.errors import ConfigError
from robustops.learning.hardware import check_hardware, check_share, device_of, group_size, sharded
from robustops.settings import HardwareSettings


@pytest.mark.parametrize(
    ("options", "size"),
    [
        ({}, 0),
        ({"strategy": "ddp"}, 0),
        ({"devices": 2}, 2),
        ({"devices": 8, "num_nodes": 2, "strategy": "deepspeed_stage_3"}, 16),
        ({"strategy": "deepspeed_stage_2_offload"}, 1),
    ],
    ids=["one", "one, ddp", "two", "two machines", "DeepSpeed connects even one"],
)
def test_how_many_processes_are_connected(options, size):
    assert group_size(HardwareSettings(**options)) == size


def test_only_stage_3_spreads_the_weights():
    names = ("auto", "ddp", "deepspeed_stage_2_offload", "deepspeed_stage_3", "deepspeed_stage_3_offload")
    found = [sharded(HardwareSettings(devices=2, strategy=name)) for name in names]
    assert found == [False, False, False, True, True]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"accelerator": "tpu"}, r"unknown hardware.accelerator 'tpu'; choose one of: cpu, gpu"),
        ({"strategy": "fsdp"}, r"unknown hardware.strategy 'fsdp'; choose one of: auto, ddp, deepspeed"),
        (
            {"precision": "16-mixed"},
            r"unknown hardware.precision '16-mixed'; choose one of: 32-true, bf16-mixed",
        ),
        ({"accelerator": "gpu", "devices": 99}, r"asks for 99 CUDA devices a machine.*hardware=cpu"),
    ],
)
def test_what_cannot_train_here_is_refused_with_what_can(options, message):
    with pytest.raises(ConfigError, match=message):
        check_hardware(HardwareSettings("mine", **options))


def test_deepspeed_is_named_where_it_is_missing(monkeypatch):
    check_hardware(HardwareSettings(strategy="deepspeed_stage_2"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'robustops\[deepspeed\]'.*hardware\.strategy=ddp"):
        check_hardware(HardwareSettings(strategy="deepspeed_stage_2"))
    check_hardware(HardwareSettings(strategy="ddp"))


def test_each_process_has_a_device_of_its_own(monkeypatch):
    gpu = HardwareSettings("mine", "gpu", devices=2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device_of(gpu) == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert device_of(gpu) == torch.device("cuda", 1)
    assert device_of(HardwareSettings()) == torch.device("cpu")


@pytest.mark.parametrize(("count", "processes"), [(1, 2), (15, 16)])
def test_per_rank_batch_smaller_than_one_trajectory_is_refused(count, processes):
    profile = HardwareSettings(name="many", devices=processes)
    with pytest.raises(ConfigError, match=rf"sft.batch_trajectories={count} leaves some of the {processes} "):
        check_share("sft.batch_trajectories", count, profile)
    check_share("sft.batch_trajectories", processes, profile)
    check_share("sft.batch_trajectories", count, HardwareSettings())
