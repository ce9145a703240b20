"""slo-headroom: how much of the promise is left, the most or the least that is enough."""

from math import inf

import pytest

from orchestrator.core.slo import SloClass, Target
from orchestrator.policy import Inflight, Role, Step
from orchestrator.policy.build import make_policy
from orchestrator.policy.testing import FakePredictor, make_context, make_endpoint, make_request

ENDPOINTS = [make_endpoint(i) for i in ("now", "soon", "late", "later")]
WAITS = {"now": 0.08, "soon": 0.88, "late": 2.88, "later": 6.88}
"""With 0.12 s of prefill and first token: 0.2, 1, 3 and 7 s."""


def scores(prefer, by_s=2.0, endpoints=ENDPOINTS, role=Role.UNIFIED, predictor=None, **fields):
    usual = {
        "predictor": predictor or FakePredictor(),
        "first_token_by_s": by_s,
        "wait_s": lambda endpoint_id: WAITS.get(endpoint_id, 0.0),
    }
    context = make_context(endpoints, role, **{**usual, **fields})
    return make_policy("slo-headroom", {"prefer": prefer}).score(make_request(), endpoints, context)


def test_spread_prefers_the_most_headroom():
    assert scores("spread") == pytest.approx([0.95, 0.75, 0.5 / 1.5, 0.5 / 3.5])


def test_best_fit_prefers_the_least_that_is_enough():
    assert scores("best-fit") == pytest.approx([0.55, 0.75, 0.5 / 1.5, 0.5 / 3.5])


def test_the_tail_counts():
    assert scores("spread", predictor=FakePredictor(tail=0.5))[1] == pytest.approx(0.5 + 0.5 * 0.25)


def test_what_has_been_waited_is_gone():
    now = scores("spread", now_s=1.0)
    assert now[0] == pytest.approx(0.5 + 0.5 * 0.4)
    assert now[1] == pytest.approx(0.5)


def test_without_a_promise_the_shortest_is_preferred():
    assert scores("spread", by_s=inf) == pytest.approx([1.0, 1 - 0.8 / 7, 1 - 2.8 / 7, 1 - 6.8 / 7])
    assert scores("best-fit", by_s=inf) == scores("spread", by_s=inf)


def test_on_a_decode_endpoint_it_is_the_gap_that_has_headroom():
    endpoints = [make_endpoint(f"d{n}", Role.DECODE, inflight=Inflight(n)) for n in (4, 9, 39)]
    fields = {
        "role": Role.DECODE,
        "endpoints": endpoints,
        "prefill": make_endpoint("p", Role.PREFILL),
        "predictor": FakePredictor(step=Step(0.010, 0.001, 0.0)),
        "slo": SloClass("s", tpot=Target(0.04)),
    }
    assert scores("spread", **fields) == pytest.approx([0.5 + 0.5 * 5 / 8, 0.75, 0.5 / 1.25])
    assert scores("best-fit", **fields) == pytest.approx([1 - 0.5 * 5 / 8, 0.75, 0.5 / 1.25])
    without = scores("spread", **{**fields, "slo": None})
    assert without == pytest.approx([1.0, 0.9, 0.3])


def test_without_a_predictor_it_says_nothing():
    context = make_context(ENDPOINTS, first_token_by_s=2.0)
    assert make_policy("slo-headroom", {}).score(make_request(), ENDPOINTS, context) == [0.0] * 4
