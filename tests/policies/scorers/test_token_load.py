"""token-load: work in tokens, where prompts are computed and where they are decoded."""

import pytest

from orchestrator.policy import Inflight, Load, Role
from orchestrator.policy.build import make_policy
from orchestrator.policy.testing import make_context, make_endpoint, make_request


def scores(endpoints, role, **params):
    context = make_context(endpoints, role)
    return make_policy("token-load", params).score(make_request(), endpoints, context)


@pytest.mark.parametrize("role", [Role.PREFILL, Role.UNIFIED])
def test_one_long_prompt_outweighs_many_short_ones(role):
    """Case 34."""
    long = make_endpoint("long", inflight=Inflight(1, 30_000, 0))
    short = make_endpoint("short", inflight=Inflight(50, 5_000, 0))
    assert scores([long, short], role, scale_tokens=50_000) == [0.5, 1.0]


def test_a_decode_endpoints_work_is_the_kv_in_use():
    endpoints = [
        make_endpoint("a", inflight=Inflight(1, 999, 1_000)),
        make_endpoint("b", load=Load(0.0, kv_used_tokens=4_000), inflight=Inflight(1, 0, 2_000)),
    ]
    assert scores(endpoints, Role.DECODE, scale_tokens=10_000) == [1.0, 0.5]


def test_waiting_requests_of_others_count_as_so_many_tokens():
    load = Load(0.0, running=4, waiting=6)
    given = Inflight(10, 2_000)
    ours = make_endpoint("ours", load=load, inflight=given, inflight_at_load=given)
    others = make_endpoint("others", load=load)
    assert scores([ours, others], Role.PREFILL, scale_tokens=8_000, foreign_tokens=1_000) == [1.0, 0.5]
    assert scores([ours, others], Role.PREFILL, scale_tokens=8_000, foreign_tokens=0) == [0.75, 1.0]
