"""Two connected processes, under every strategy, do what one process does."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from robustops.learning.strategies import make_strategy, zero_config
from robustops.settings import HardwareSettings
from tests.learning import two_processes
from tests.learning.support import same_weights
from tests.learning.two_processes import PROFILES, Start, train_sft

ROOT = Path(__file__).resolve().parents[2]
ALONE = HardwareSettings()


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """What each of two processes saw, in order of rank."""
    folder = tmp_path_factory.mktemp("two")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*torchrun, "-m", "tests.learning.two_processes", str(folder)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in (0, 1)]


@pytest.fixture(scope="module")
def alone():
    return train_sft(ALONE, 5)


def close(one, two):
    return one.keys() == two.keys() and all(torch.allclose(one[n], two[n], atol=1e-5) for n in one)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROFILES)
def test_losses_gradients_and_weights_are_those_of_one_process(seen, alone, name):
    for mine, theirs in zip(seen[0][name]["sft"]["metrics"], alone["metrics"], strict=True):
        if name == "zero3":  # no process has the weights whole
            theirs = {**theirs, "update_norm_rel": math.nan}
        assert mine == pytest.approx(theirs, rel=1e-5, nan_ok=True)
    assert alone["metrics"][0]["grad_norm"] > two_processes.GRAD_CLIP, "the clip has something to do"
    assert close(seen[0][name]["sft"]["weights"], alone["weights"])
    assert not close(alone["weights"], train_sft(ALONE, 5, steps=1)["weights"]), "training moves weights"
    assert str(seen[0][name]["sft"]["metrics"]) == str(seen[1][name]["sft"]["metrics"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ddp", "zero2"])
def test_both_processes_end_with_the_same_weights(seen, name):
    assert same_weights(*(part[name]["sft"]["weights"] for part in seen))


@pytest.mark.slow
@pytest.mark.parametrize("name", PROFILES)
def test_uneven_batches_do_not_hang_a_rank(seen, name):
    """Every rank makes as many backward passes a step, also where one trajectory is all there is."""
    assert seen[0][name]["sft"]["passes"] == seen[1][name]["sft"]["passes"]
    assert max(seen[0][name]["sft"]["passes"]) > 1, "several micro-batches a step"
    assert [part[name]["lonely"] for part in seen] == [[1] * two_processes.STEPS] * 2


@pytest.mark.slow
@pytest.mark.parametrize("name", PROFILES)
def test_a_resumed_run_is_the_run_that_was_not_stopped(seen, name):
    whole, resumed = seen[0][name]["sft"], seen[0][name]["resumed"]
    assert resumed["step"] == 2
    assert str(resumed["metrics"]) == str(whole["metrics"][2:])
    assert same_weights(resumed["weights"], whole["weights"])


@pytest.mark.slow
@pytest.mark.parametrize("name", PROFILES)
def test_weights_are_restored_before_a_callback_could_hand_them_to_a_sampler(seen, name):
    first, done = Start(), Start()
    train_sft(ALONE, 5, first, steps=1)
    module = two_processes.CountedSFT()
    module.model.load_state_dict(train_sft(ALONE, 5, steps=2)["weights"], strict=False)
    done.on_train_start(None, module)
    for part in seen:
        assert part[name]["resumed"]["loss_at_start"] == pytest.approx(done.loss, rel=1e-5)
    assert done.loss != pytest.approx(first.loss, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROFILES)
def test_a_gradient_is_the_sum_over_processes_and_a_step_without_one_moves_nothing(seen, name):
    for part in seen:
        assert part[name]["gradients"]["norms"] == pytest.approx([2 * 3.0, 0.0], rel=1e-6)
    one, two, _ = seen[0][name]["gradients"]["weights"]
    assert torch.equal(one, two)
    assert one.tolist() == pytest.approx([1 - 0.1 * 0.1 - 0.1] * 4, abs=1e-6)  # decay, then lr * sign(g)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROFILES)
def test_a_nan_on_one_process_stops_all_of_them_before_the_step(seen, name):
    for part in seen:
        assert "gradient of step 2 is not finite" in part[name]["gradients"]["error"]
    one, _, broken = seen[0][name]["gradients"]["weights"]
    assert torch.equal(one, broken)


@pytest.mark.slow
def test_gathering_keeps_order_and_threads_do_not_disturb_each_other(seen):
    for part in seen:
        messages = part["exchange"]
        assert messages["main"] == [[["main 0"], ["main 1", "main 1"]]] * 20
        assert messages["beside"] == [[["beside 0", n], ["beside 1", n]] for n in range(20)]
        assert messages["total"] == [3.0, 1.0]


def test_one_process_takes_lightning_s_own_strategy():
    assert make_strategy(HardwareSettings()) == "auto"


@pytest.mark.parametrize(
    ("strategy", "stage", "offloaded"),
    [
        ("deepspeed_stage_2", 2, set()),
        ("deepspeed_stage_2_offload", 2, {"offload_optimizer"}),
        ("deepspeed_stage_3", 3, set()),
        ("deepspeed_stage_3_offload", 3, {"offload_optimizer", "offload_param"}),
    ],
)
def test_what_deepspeed_is_told(strategy, stage, offloaded):
    hardware = HardwareSettings("x", "gpu", devices=8, strategy=strategy, precision="bf16-mixed")
    config = zero_config(hardware, 0.7)
    assert config["zero_optimization"]["stage"] == stage
    assert {name for name in config["zero_optimization"] if name.startswith("offload")} == offloaded
    assert config["gradient_clipping"] == 0.7
    assert config["bf16"]["enabled"] and config["bf16"]["check_grad_overflow"], "NaN must not become a step"
    assert config["data_types"]["grad_accum_dtype"] == config["communication_data_type"] == "fp32"
    assert "bf16" not in zero_config(HardwareSettings(strategy=strategy), 1.0)
