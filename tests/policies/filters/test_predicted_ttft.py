"""predicted-ttft: whoever cannot make the deadline is left out, and nobody else."""

from math import inf

import pytest

from orchestrator.core.slo import SloClass, Target, Unattainable
from orchestrator.policy import Role
from orchestrator.policy.build import make_policy
from orchestrator.policy.testing import FakePredictor, make_context, make_endpoint, make_request

ENDPOINTS = [make_endpoint(i) for i in ("fast", "slow", "busy")]
PREDICTOR = FakePredictor({"slow": 10.0}, tail=0.5)
"""0.12 s on the fast one, 1.2 s on the slow one; half as much again in the tail."""


def kept(left_s, *, params=None, endpoints=ENDPOINTS, role=Role.UNIFIED, **fields):
    usual = {
        "predictor": PREDICTOR,
        "now_s": 10.0,
        "first_token_by_s": 10.0 + left_s,
        "wait_s": {"fast": 0.0, "slow": 0.0, "busy": 2.0}.__getitem__,
    }
    context = make_context(endpoints, role, **{**usual, **fields})
    policy = make_policy("predicted-ttft", params or {})
    return [e.id for e in policy.filter(make_request(), endpoints, context)]


@pytest.mark.parametrize(
    ("left_s", "expected"),
    [
        (0.17, []),
        (0.19, ["fast"]),
        (1.7, ["fast"]),
        (1.9, ["fast", "slow"]),
        (3.3, ["fast", "slow", "busy"]),
        (inf, ["fast", "slow", "busy"]),
    ],
)
def test_the_tail_of_the_prediction_must_be_in_time(left_s, expected):
    assert kept(left_s) == expected


def test_without_a_predictor_nobody_is_left_out():
    assert kept(0.01, predictor=None) == ["fast", "slow", "busy"]


@pytest.mark.parametrize(
    ("unattainable", "expected"),
    [
        (Unattainable.REJECT, []),
        (Unattainable.QUEUE, ["fast", "slow", "busy"]),
        (Unattainable.BEST_EFFORT, ["fast", "slow", "busy"]),
    ],
)
def test_a_class_that_is_not_to_be_refused_is_not(unattainable, expected):
    slo = SloClass("s", ttft=Target(1.0), unattainable=unattainable)
    assert kept(0.01, slo=slo) == expected


def test_the_quantile_is_the_classs_unless_it_is_given():
    class Asked(FakePredictor):
        def __init__(self):
            super().__init__()
            self.asked = []

        def tail_s(self, prefill, predicted_s, quantile, *, queued_s=0.0):
            self.asked.append((prefill, quantile, queued_s))
            return 0.0

    slo, asked = SloClass("s", ttft=Target(1.0, quantile=0.9)), Asked()
    kept(9.0, slo=slo, predictor=asked)
    assert asked.asked == [("fast", 0.9, 0.0), ("slow", 0.9, 0.0), ("busy", 0.9, 2.0)]
    for given, fields in ((0.75, {"slo": slo}), (0.99, {})):
        asked = Asked()
        kept(9.0, params={"quantile": 0.75} if given == 0.75 else {}, predictor=asked, **fields)
        assert {q for _, q, _ in asked.asked} == {given}


def test_the_decode_side_is_judged_with_the_prefill_endpoint_that_was_chosen():
    prefill = make_endpoint("slow", Role.PREFILL)
    endpoints = [make_endpoint("near", Role.DECODE), make_endpoint("far", Role.DECODE)]
    predictor = FakePredictor({"slow": 10.0, "far": 20.0})
    fields = {"role": Role.DECODE, "endpoints": endpoints, "prefill": prefill, "predictor": predictor}
    assert kept(1.1, **fields) == ["near"]
    assert kept(0.9, **fields) == []
    assert kept(1.5, **fields) == ["near", "far"]
