from __future__ import annotations

import pytest
import torch

from robustops.errors import TrainingError
from robustops.learning.adapters import merged_weights
from robustops.learning.sync_probe import FLOAT32_TOLERANCE, SESSION, SyncProbe
from robustops.rollout.hf import HFSampler
from robustops.rollout.sampler import Completion
from tests.rollout.fake_sampler import FakeSampler
from tests.tiny_model import prompt, shake, tiny_model, tiny_renderer

CPU = torch.device("cpu")
PROBE = SyncProbe(prompt(40, seed=1), FLOAT32_TOLERANCE)


def pair():
    """The trainer's model, and a sampler with weights of its own that were the same."""
    return tiny_model(width=32), HFSampler(tiny_model(width=32), {1}, shared=False, max_in_flight=4)


@pytest.mark.parametrize("temperature", [1.0, 0.6, 0.0])
def test_sampler_and_trainer_agree_after_a_sync(temperature):
    model, sampler = pair()
    sampler.temperature = temperature
    probe = SyncProbe(PROBE.token_ids, FLOAT32_TOLERANCE, temperature=temperature)
    for version in range(3):
        shake(model, seed=version)
        sampler.sync(merged_weights(model), version)
        assert probe.check(sampler, model, CPU, version) < FLOAT32_TOLERANCE
        assert not sampler._sessions, "the probe leaves no session"


def test_a_stale_sync_is_caught_in_one_step():
    model, sampler = pair()
    sampler.sync(merged_weights(model), 0)
    PROBE.check(sampler, model, CPU, 0)
    shake(model, seed=1)
    with pytest.raises(TrainingError, match=r"version 1\) sampler and trainer differ by .*stale"):
        PROBE.check(sampler, model, CPU, 1)


def test_a_partial_sync_is_caught_in_one_step():
    """All weights but those of one layer."""
    model, sampler = pair()
    kept = {n: p.clone() for n, p in merged_weights(model) if ".layers.1." in n}
    shake(model, seed=1)
    sampler.sync([(name, kept.get(name, weight)) for name, weight in merged_weights(model)], 1)
    with pytest.raises(TrainingError, match="sampler and trainer differ"):
        PROBE.check(sampler, model, CPU, 1)


def test_keys_and_values_of_old_weights_are_caught(monkeypatch):
    """A sampler that forgets to drop its cache goes on from what it knows of the prompt."""
    model, sampler = pair()
    monkeypatch.setattr(sampler, "release", lambda session: None)
    PROBE.check(sampler, model, CPU, 0)
    session = sampler._sessions[SESSION]
    session.tokens, session.cached = list(PROBE.token_ids), len(PROBE.token_ids)
    shake(model, seed=1)
    sampler._load(dict(merged_weights(model)))
    with pytest.raises(TrainingError, match="sampler and trainer differ"):
        PROBE.check(sampler, model, CPU, 1)
    sampler.sync(merged_weights(model), 1)
    PROBE.check(sampler, model, CPU, 1)


def test_nan_weights_and_silence_are_told():
    model, _ = pair()
    broken = FakeSampler(
        tiny_renderer(), lambda request, turn: Completion(request.session, error="engine died")
    )
    with pytest.raises(TrainingError, match=r"failed on a probe .*engine died"):
        PROBE.check(broken, model, CPU, 3)
    mute = FakeSampler(tiny_renderer(), lambda request, turn: "", delay=lambda request, turn: 10**9)
    impatient = SyncProbe(PROBE.token_ids, 1.0, patience_s=0.05)
    with pytest.raises(TrainingError, match=r"no answer within 0.05 s"):
        impatient.check(mute, model, CPU, 3)
    with torch.no_grad():
        model.get_input_embeddings().weight.fill_(float("nan"))
    shared = HFSampler(model, {1}, max_in_flight=4)
    with pytest.raises(TrainingError, match="log-probs are not finite"):
        PROBE.check(shared, model, CPU, 3)
