"""The weights that itsm runs begin with."""

from __future__ import annotations

import pytest

from robustops.bench.campaign.claims import claimed
from robustops.bench.transfer.policy import OVERRIDES, WithPolicy, remember, starting_policy
from robustops.commands.composition import composed_training
from robustops.errors import ConfigError
from robustops.resources import data_dir


def test_a_model_or_a_run_may_be_given(tmp_path):
    policy = tmp_path / "run" / "checkpoints" / "sft" / "policy"
    policy.mkdir(parents=True)
    (policy / "config.json").write_text("{}")
    assert starting_policy(tmp_path / "own", str(tmp_path / "run"), composed_training) == policy
    assert starting_policy(tmp_path / "own", str(policy), composed_training) == policy
    with pytest.raises(ConfigError, match=r"transfer\.policy="):
        starting_policy(tmp_path / "own", str(tmp_path), composed_training)


def test_runs_begin_with_these_weights(tmp_path):
    compose = WithPolicy(composed_training, tmp_path)
    settings, _ = compose(["experiment=faultbench", f"paths.run_dir='{tmp_path}'"])
    assert settings.model.checkpoint == str(tmp_path)


def test_other_weights_are_refused(tmp_path):
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(name.encode())
    remember(tmp_path, tmp_path / "one")
    remember(tmp_path, tmp_path / "one")
    with pytest.raises(ConfigError, match="other weights"):
        remember(tmp_path, tmp_path / "other")


def test_two_starts_do_not_train_it_twice(tmp_path):
    with claimed(tmp_path, "policy"), pytest.raises(ConfigError, match="another start"):
        starting_policy(tmp_path / "policy", None, composed_training)


@pytest.mark.slow
def test_it_is_trained_once(tmp_path):
    small = ("sft.tasks=4", "sft.max_steps=1", "domain.train=4", "domain.val=0", "domain.test=2")
    overrides = (*OVERRIDES, *small)
    first = starting_policy(tmp_path / "policy", None, composed_training, overrides)
    before = (first / "model.safetensors").stat().st_mtime_ns
    assert starting_policy(tmp_path / "policy", None, composed_training, overrides) == first
    assert (first / "model.safetensors").stat().st_mtime_ns == before
    assert (data_dir() / "models" / "tiny" / "model.safetensors").read_bytes() != (
        first / "model.safetensors"
    ).read_bytes()
