from __future__ import annotations

import math

import numpy as np

from robustops.rollout.hf_session import Session
from robustops.rollout.sampler import NOT_FINITE, Request


def begun(*token_ids: int, budget: int = 3, cached: tuple[int, ...] = ()) -> Session:
    session = Session(slot=0, tokens=list(cached), cached=len(cached))
    session.begin(Request(7, token_ids, budget, seed=11))
    return session


def test_an_equal_start_stays_cached_and_the_last_token_is_fed_in_any_case():
    assert begun(4, 5, 6, cached=(4, 5)).pending == 1
    assert begun(4, 5, 6, 7, cached=(4, 5)).pending == 2
    assert begun(4, 5, cached=(4, 5)).pending == 1
    assert begun(4, 5, cached=(4, 5, 6)).pending == 2, "what follows the context may differ from the cached"
    assert begun(9, 5, 6, cached=(4, 5)).pending == 3


def test_every_token_has_its_own_uniform_of_the_requests_stream():
    session = begun(4, budget=3)
    seen = []
    for token in (20, 21, 22):
        seen.append(session.uniform)
        session.add(token, -1.0, {1})
    assert seen == np.random.default_rng(11).random(3).tolist()


def test_a_message_ends_at_a_stop_token_or_at_its_budget():
    session = begun(4, budget=3)
    assert session.add(20, -0.5, {1}) is None and session.request is not None
    stopped = session.add(1, -0.25, {1})
    assert stopped.session == 7 and stopped.finished and session.request is None
    assert stopped.token_ids == (20, 1) and stopped.log_probs == (-0.5, -0.25)
    session.begin(Request(7, (4, 20, 1, 5), 2, seed=1))
    assert session.add(20, -0.5, {1}) is None
    cut = session.add(21, -0.5, {1})
    assert cut.token_ids == (20, 21) and not cut.finished
    assert session.tokens == [4, 20, 1, 5, 20, 21]


def test_a_log_prob_that_is_not_finite_ends_the_message_with_an_error():
    for broken in (math.nan, -math.inf):
        session = begun(4)
        ended = session.add(20, broken, {1})
        assert ended.error == NOT_FINITE and not ended.token_ids and session.request is None
