"""kv-capacity: room is what is left of memory after what is reported, in flight and asked for."""

import pytest

from orchestrator.policy import Inflight, Load, PathKind, Role
from orchestrator.policy.build import make_policy
from orchestrator.policy.testing import FakePredictor, make_context, make_endpoint, make_request


def kept(endpoints, role=Role.UNIFIED, params=None, **request):
    policy = make_policy("kv-capacity", params or {})
    answer = policy.filter(make_request(**request), endpoints, make_context(endpoints, role))
    return [e.id for e in answer]


def with_free(endpoint_id, free, total=10_000, **fields):
    return make_endpoint(endpoint_id, load=Load(0.0, 1, 0, total - free, total), **fields)


def test_case_18_prompt_and_expected_output_must_fit():
    endpoints = [with_free("just", 1100), with_free("short", 1099)]
    assert kept(endpoints, prompt_tokens=1000, max_tokens=100) == ["just"]
    assert kept(endpoints, Role.DECODE, prompt_tokens=1000, max_tokens=100) == ["just"]


def test_a_prefill_endpoint_needs_to_hold_the_prompt_only():
    endpoints = [with_free("just", 1000), with_free("short", 999)]
    assert kept(endpoints, Role.PREFILL, prompt_tokens=1000, max_tokens=100) == ["just"]


def test_each_answer_counts_and_none_beyond_what_is_expected():
    endpoints = [with_free("a", 1400), with_free("b", 1512), with_free("c", 1100)]
    assert kept(endpoints, prompt_tokens=1000, max_tokens=100, n=4) == ["a", "b"]
    assert kept(endpoints, prompt_tokens=1000, max_tokens=10**6) == ["b"]
    assert kept(endpoints, prompt_tokens=1000, max_tokens=10**6, params={"output_tokens": 50}) == [
        "a",
        "b",
        "c",
    ]


def test_what_went_there_since_the_report_counts():
    """Case 33."""
    busy = with_free("busy", 5000, inflight=Inflight(4, 0, 4500), inflight_at_load=Inflight())
    assert kept([busy, with_free("idle", 5000)], prompt_tokens=1000, max_tokens=0) == ["idle"]


@pytest.mark.parametrize(("overcommit", "expected"), [(1.0, []), (1.05, ["a"]), (2.0, ["a"])])
def test_overcommit(overcommit, expected):
    params = {"overcommit": overcommit}
    assert kept([with_free("a", 600)], prompt_tokens=1000, max_tokens=0, params=params) == expected


def test_one_that_tells_no_capacity_is_kept():
    assert kept([make_endpoint("silent", inflight=Inflight(9, 0, 10**9))]) == ["silent"]


def test_an_empty_one_takes_what_is_larger_than_itself():
    """The router refuses what no engine could hold; a filter that did would answer 429 for ever."""
    assert kept([with_free("empty", 10_000)], prompt_tokens=9_900, max_tokens=500) == ["empty"]


def test_what_needs_no_memory_goes_anywhere():
    over = with_free("over", -500)
    assert kept([over], path=PathKind.TOKENIZE) == ["over"]
    assert kept([over], prompt_tokens=1, max_tokens=0) == []


def test_the_output_that_is_expected_is_the_classs():
    endpoints = [with_free("just", 1070), with_free("short", 1069)]
    policy = make_policy("kv-capacity", {})
    context = make_context(endpoints, predictor=FakePredictor(tokens=70))
    request = make_request(prompt_tokens=1000, max_tokens=10**6)
    assert [e.id for e in policy.filter(request, endpoints, context)] == ["just"]


def test_what_is_still_to_be_transferred_counts():
    """Of four requests the engine knew of one: three times 1500 tokens have yet to arrive."""
    seen = Inflight(4, 0, 6000)
    coming = with_free("coming", 5000, inflight=seen, inflight_at_load=seen)
    arrived = make_endpoint(
        "arrived", load=Load(0.0, 4, 0, 5000, 10_000), inflight=seen, inflight_at_load=seen
    )
    assert kept([coming, arrived], prompt_tokens=1000, max_tokens=0) == ["arrived"]
