from __future__ import annotations

import math

import pytest
import torch

from robustops.learning.batching import Sequences, pad
from robustops.learning.forward import score_tokens
from tests.tiny_model import prompt, tiny_model

TEMPERATURES = (1.0, 0.6)


@pytest.fixture(scope="module")
def model():
    return tiny_model(seed=3, tied=False)


def batch_of(lengths: list[int]) -> Sequences:
    ids = [prompt(length, seed=length) for length in lengths]
    masks = [[position % 3 != 0 for position in range(length)] for length in lengths]
    return pad(ids, masks, range(len(lengths)))


def slow_scores(model, ids: list[int], temperature: float) -> list[tuple[float, float]]:
    """Log-prob at the temperature, and entropy at temperature 1, of each token, from a separate pass over its
    own prefix in float64."""
    scores = [(0.0, 0.0)]
    for position in range(1, len(ids)):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids[:position]])).logits[0, -1].double()
        plain = probabilities(logits)
        entropy = -sum(p * math.log(p) for p in plain if p > 0)
        scores.append((math.log(probabilities(logits / temperature)[ids[position]]), entropy))
    return scores


def probabilities(logits) -> list[float]:
    parts = [math.exp(x) for x in (logits - logits.max()).tolist()]
    return [part / sum(parts) for part in parts]


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_scores_agree_with_one_pass_a_token(model, temperature):
    batch = batch_of([13, 9])
    scores = score_tokens(model, batch, temperature=temperature)
    for row in range(2):
        length = int(batch.attention_mask[row].sum())
        reference = slow_scores(model, batch.token_ids[row, :length].tolist(), temperature)
        for position, (log_prob, entropy) in enumerate(reference):
            trained = bool(batch.loss_mask[row, position]) and position > 0
            expected = (log_prob, entropy) if trained else (0.0, 0.0)
            got = (scores.log_probs[row, position].item(), scores.entropy[row, position].item())
            assert got == pytest.approx(expected, abs=1e-4)


def test_scores_do_not_depend_on_the_rows_beside_them(model):
    together = batch_of([21, 5, 13])
    scores = score_tokens(model, together)
    for row, length in enumerate([21, 5, 13]):
        alone = score_tokens(model, batch_of([length]))
        torch.testing.assert_close(scores.log_probs[row, :length], alone.log_probs[0], atol=1e-5, rtol=0)
        assert not scores.log_probs[row, length:].any()


def test_position_zero_is_never_scored(model):
    batch = pad([[5, 6]], [[True, False]], [0])
    scores = score_tokens(model, batch)
    assert scores.log_probs.tolist() == [[0.0, 0.0]] and scores.entropy.tolist() == [[0.0, 0.0]]


def test_later_tokens_do_not_reach_back(model):
    ids = list(prompt(12, seed=1))
    mask = [position in (4, 5) for position in range(12)]
    first = score_tokens(model, pad([ids], [mask], [0])).log_probs
    second = score_tokens(model, pad([[*ids[:6], *prompt(6, seed=2)]], [mask], [0])).log_probs
    torch.testing.assert_close(first, second, atol=1e-6, rtol=0)


def test_the_gradient_is_that_of_the_full_log_softmax(model):
    batch = batch_of([11])
    weight = model.get_output_embeddings().weight
    (fast,) = torch.autograd.grad(score_tokens(model, batch, temperature=0.6).log_probs.sum(), weight)
    log_probs = (model(input_ids=batch.token_ids).logits[:, :-1] / 0.6).log_softmax(-1)
    chosen = log_probs.gather(-1, batch.token_ids[:, 1:, None])[..., 0][batch.loss_mask[:, 1:]]
    (slow,) = torch.autograd.grad(chosen.sum(), weight)
    assert slow.abs().max() > 0.1
    torch.testing.assert_close(fast, slow, atol=1e-4, rtol=1e-4)


def test_entropy_carries_no_gradient(model):
    scores = score_tokens(model, batch_of([7]))
    assert scores.log_probs.requires_grad and not scores.entropy.requires_grad


def test_a_batch_without_its_padding_mask_is_scored_the_same(model):
    batch = batch_of([21, 5, 13])
    hidden = model.base_model(batch.token_ids, attention_mask=batch.attention_mask.long()).last_hidden_state
    states, targets = hidden[:, :-1][batch.loss_mask[:, 1:]], batch.token_ids[:, 1:][batch.loss_mask[:, 1:]]
    masked = model.get_output_embeddings()(states).log_softmax(-1).gather(-1, targets[:, None])[:, 0]
    scored = score_tokens(model, batch).log_probs[:, 1:][batch.loss_mask[:, 1:]]
    torch.testing.assert_close(scored, masked, atol=1e-6, rtol=0)


@pytest.mark.parametrize("max_logits", [2**25, 1024])
def test_the_entropy_can_be_left_out(model, max_logits):
    batch = batch_of([13, 9])
    whole = score_tokens(model, batch, max_logits=max_logits)
    scores = score_tokens(model, batch, max_logits=max_logits, with_entropy=False)
    assert torch.equal(scores.log_probs, whole.log_probs)
    scored = whole.entropy != 0
    assert scored.any() and scores.entropy[scored].isnan().all() and not scores.entropy[~scored].any()
