"""size-pools: each size of prompt has its own endpoints."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import ParamError
from orchestrator.policy.build import make_policy
from orchestrator.policy.testing import make_context, make_endpoint, make_request


def kept(tokens, endpoints, **params):
    policy = make_policy("size-pools", params)
    context = make_context(endpoints)
    return [e.id for e in policy.filter(make_request(prompt_tokens=tokens), endpoints, context)]


def fleet(n):
    return [make_endpoint(f"e{i}") for i in range(n)]


def test_half_of_the_endpoints_for_short_prompts():
    assert kept(8192, fleet(4)) == ["e0", "e1"]
    assert kept(8193, fleet(4)) == ["e2", "e3"]


def test_the_endpoints_go_by_id_whatever_their_order():
    assert kept(1, fleet(4)[::-1]) == ["e0", "e1"]


def test_shares():
    params = {"bounds": [1000, 10_000], "shares": [1, 2, 5]}
    sizes = [kept(tokens, fleet(8), **params) for tokens in (1000, 1001, 10_001)]
    assert sizes == [["e0"], ["e1", "e2"], ["e3", "e4", "e5", "e6", "e7"]]


@given(st.integers(1, 12), st.lists(st.floats(0.01, 10), min_size=1, max_size=5))
def test_every_size_has_an_endpoint_and_every_endpoint_a_size(n, shares):
    bounds = [1000 * (i + 1) for i in range(len(shares) - 1)] or [1000]
    given = shares if len(shares) > 1 else []
    endpoints = fleet(n)
    by_size = [kept(tokens, endpoints, bounds=bounds, shares=given) for tokens in [*bounds, bounds[-1] + 1]]
    assert all(by_size)
    assert {e for ids in by_size for e in ids} == {e.id for e in endpoints}


def test_by_a_label_of_the_endpoints():
    endpoints = [
        make_endpoint("short", labels={"max-prompt": "1000"}),
        make_endpoint("middle", labels={"max-prompt": "10000"}),
        make_endpoint("any"),
    ]
    sizes = [kept(tokens, endpoints, label="max-prompt") for tokens in (1, 1000, 1001, 10_000, 10_001)]
    assert sizes == [["short"], ["short"], ["middle"], ["middle"], ["any"]]
    assert kept(10**6, endpoints[:2], label="max-prompt") == ["middle"]


def test_short_ones_may_spill_over_and_long_ones_may_not():
    params = {"bounds": [1000, 10_000], "shares": [1, 1, 2], "spill": True}
    sizes = [kept(tokens, fleet(4), **params) for tokens in (1000, 1001, 10_001)]
    assert sizes == [["e0", "e1", "e2", "e3"], ["e1", "e2", "e3"], ["e2", "e3"]]
    endpoints = [make_endpoint("short", labels={"max": "1000"}), make_endpoint("any")]
    assert [kept(tokens, endpoints, label="max", spill=True) for tokens in (10, 10**5)] == [
        ["short", "any"],
        ["any"],
    ]


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"bounds": []}, "at least 1 item"),
        ({"bounds": [5, 5]}, "must be positive and ascending"),
        ({"bounds": [9, 5]}, "must be positive and ascending"),
        ({"bounds": [0]}, "must be positive and ascending"),
        ({"shares": [1]}, "must be 2 positive numbers, one for each size"),
        ({"shares": [1, 0]}, "must be 2 positive numbers"),
    ],
)
def test_what_makes_no_sense_is_refused(params, says):
    with pytest.raises(ParamError, match=says):
        make_policy("size-pools", params)
