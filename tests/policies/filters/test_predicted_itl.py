"""predicted-itl: nobody's gap between tokens becomes longer than promised."""

from math import inf

import pytest

from orchestrator.core.slo import SloClass, Target, Unattainable
from orchestrator.policy import Inflight, Role, Step
from orchestrator.policy.build import make_policy
from orchestrator.policy.testing import (
    FakePredictor,
    FakePrefix,
    make_context,
    make_endpoint,
    make_request,
)

PREDICTOR = FakePredictor(step=Step(0.010, 0.001, 0.0))
"""10 ms and one more for each request in the batch."""


def busy(endpoint_id, requests, **fields):
    return make_endpoint(endpoint_id, fields.pop("role", Role.DECODE), inflight=Inflight(requests), **fields)


ENDPOINTS = [busy("d9", 9), busy("d19", 19), busy("d29", 29)]


def kept(
    slo=None, *, endpoints=ENDPOINTS, role=Role.DECODE, limits=None, params=None, request=None, **fields
):
    usual = {"predictor": PREDICTOR, "slo": slo, "step_limit_s": lambda e: (limits or {}).get(e, inf)}
    if role is Role.DECODE:
        usual["prefill"] = make_endpoint("p", Role.PREFILL)
    context = make_context(endpoints, role, **{**usual, **fields})
    policy = make_policy("predicted-itl", params or {"tail": 1.0})
    return [e.id for e in policy.filter(request or make_request(), endpoints, context)]


@pytest.mark.parametrize(
    ("bound_s", "expected"),
    [(0.0199, []), (0.0201, ["d9"]), (0.0301, ["d9", "d19"]), (0.0401, ["d9", "d19", "d29"])],
)
def test_the_requests_own_promise(bound_s, expected):
    assert kept(SloClass("s", tpot=Target(bound_s))) == expected
    assert kept(SloClass("s", itl=Target(bound_s))) == expected


def test_the_promise_of_those_that_decode_there():
    assert kept(limits={"d9": 0.019, "d19": 0.031}) == ["d19", "d29"]
    assert kept(SloClass("s", tpot=Target(0.035)), limits={"d9": 0.019}) == ["d19"]


def test_the_tail_and_not_the_median():
    assert kept(SloClass("s", tpot=Target(0.024)), params={"tail": 1.25}) == []
    assert kept(SloClass("s", tpot=Target(0.026)), params={"tail": 1.25}) == ["d9"]


@pytest.mark.parametrize(("tail", "bound_s"), [(0.25, 0.025), (0.1, 0.022), (9.0, 0.03)])
def test_the_tail_is_the_learned_one_but_for_those_that_have_shown_little(tail, bound_s):
    predictor = FakePredictor(step=Step(0.010, 0.001, 0.0), itl_tail=tail)
    learned = {"endpoints": ENDPOINTS[:1], "params": {"tail": None}, "predictor": predictor}
    for bound, expected in ((bound_s - 1e-4, []), (bound_s + 1e-4, ["d9"])):
        assert kept(SloClass("s", tpot=Target(bound)), **learned) == expected
        assert kept(limits={"d9": bound}, **learned) == expected


def test_an_endpoint_with_nobody_on_it_is_as_fast_as_it_can_be():
    assert kept(SloClass("s", tpot=Target(0.001)), endpoints=[*ENDPOINTS, busy("idle", 0)]) == ["idle"]


def test_beside_decoding_a_chunk_of_the_prompt_is_in_the_gap():
    endpoints = [
        busy("whole", 9, role=Role.UNIFIED),
        busy("chunked", 9, role=Role.UNIFIED, facts={"chunk_tokens": 512}),
        busy("cached", 9, role=Role.UNIFIED),
    ]
    fields = {"endpoints": endpoints, "role": Role.UNIFIED, "prefix": FakePrefix({"cached": 6})}
    # 0.1 s for the whole prompt, 0.0512 s for a chunk, 0.0232 s for what is not cached.
    assert kept(SloClass("s", itl=Target(0.121)), **fields) == ["whole", "chunked", "cached"]
    assert kept(SloClass("s", itl=Target(0.119)), **fields) == ["chunked", "cached"]
    assert kept(SloClass("s", itl=Target(0.071)), **fields) == ["cached"]
    assert kept(SloClass("s", itl=Target(0.043)), **fields) == []


def test_nothing_is_promised_or_predicted():
    assert kept() == ["d9", "d19", "d29"]
    assert kept(SloClass("s", tpot=Target(0.001)), predictor=None) == ["d9", "d19", "d29"]
    assert kept(SloClass("s", tpot=Target(0.001)), role=Role.PREFILL) == ["d9", "d19", "d29"]


def test_a_class_that_is_not_to_be_refused_is_not():
    slo = SloClass("s", tpot=Target(0.001), unattainable=Unattainable.QUEUE)
    assert kept(slo) == ["d9", "d19", "d29"]
