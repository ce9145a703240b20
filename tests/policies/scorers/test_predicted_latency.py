"""predicted-latency: what each endpoint costs the request and those behind it, in seconds."""

import pytest

from orchestrator.policy import Inflight, Role, Step
from orchestrator.policy.build import make_policy
from orchestrator.policy.testing import (
    FakePredictor,
    FakePrefix,
    make_context,
    make_endpoint,
    make_request,
)


def costs(endpoints, role=Role.UNIFIED, params=None, **fields):
    usual = {"predictor": FakePredictor({"slow": 2.0})}
    context = make_context(endpoints, role, **{**usual, **fields})
    return make_policy("predicted-latency", params or {}).score(make_request(), endpoints, context)


def test_wait_and_work_twice_and_the_hand_off():
    endpoints = [make_endpoint(i) for i in ("idle", "slow", "busy", "warm")]
    fields = {
        "wait_s": {"idle": 0.0, "slow": 0.0, "busy": 0.3, "warm": 0.1}.__getitem__,
        "prefix": FakePrefix({"warm": 5}),
    }
    assert costs(endpoints, **fields) == pytest.approx([0.22, 0.44, 0.52, 0.1 + 2 * 0.0375 + 0.02])
    assert costs(endpoints, params={"others": 0}, **fields) == pytest.approx([0.12, 0.24, 0.42, 0.1575])


def test_a_prefill_endpoint_costs_the_hand_off_to_a_decode_endpoint():
    endpoints = [make_endpoint("p", Role.PREFILL), make_endpoint("slow", Role.DECODE)]
    assert costs(endpoints, Role.PREFILL)[0] == pytest.approx(0.24)


def test_a_decode_endpoint_costs_what_it_takes_to_decode_and_slows_the_others_down():
    step = Step(0.010, 0.001, 0.0)
    endpoints = [make_endpoint("few", inflight=Inflight(4)), make_endpoint("many", inflight=Inflight(9))]
    fields = {
        "role": Role.DECODE,
        "prefill": make_endpoint("p", Role.PREFILL),
        "predictor": FakePredictor(step=step, tokens=100),
    }
    few = 0.02 + 100 * (0.015 + 4 * 0.001)
    many = 0.02 + 100 * (0.020 + 9 * 0.001)
    assert costs(endpoints, **fields) == pytest.approx([few, many])
    assert costs(endpoints, params={"others": 0}, **fields) == pytest.approx([0.02 + 1.5, 0.02 + 2.0])


def test_without_a_predictor_it_says_nothing():
    assert costs([make_endpoint("a"), make_endpoint("b")], predictor=None) == [0.0, 0.0]
