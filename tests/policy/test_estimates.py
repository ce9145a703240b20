"""What a policy may estimate: the stages to the first token in each role, and the memory promised."""

from math import inf

import pytest

from orchestrator.core.slo import SloClass, Target
from orchestrator.core.types import Inflight, Load, PathKind, Role
from orchestrator.policy.estimates import (
    cached_tokens,
    first_tokens,
    kv_tokens,
    left_s,
    output_tokens,
    projected_kv_tokens,
    quantile_of,
    step_s,
)
from orchestrator.policy.testing import (
    FakePredictor,
    FakePrefix,
    make_context,
    make_endpoint,
    make_request,
)

A, B = make_endpoint("a"), make_endpoint("b")


def test_what_is_cached_is_less_than_the_prompt():
    context = make_context([A, B], prefix=FakePrefix({"a": 3, "b": 8}))
    request = make_request(prompt_tokens=1000)
    assert [cached_tokens(request, e, context) for e in (A, B)] == [375, 999]
    assert cached_tokens(make_request(prompt_tokens=0), A, context) == 0
    assert cached_tokens(make_request(block_hashes=()), B, context) == 0


def test_alone():
    context = make_context([A, B], prefix=FakePrefix({"a": 3}), wait_s={"a": 0.5, "b": 0.0}.__getitem__)
    a, b = first_tokens(make_request(), [A, B], context, FakePredictor({"b": 2.0}))
    assert (a.prefill, a.wait_s, a.prefill_s, a.handoff_s) == ("a", 0.5, pytest.approx(0.0625), 0.02)
    assert (b.prefill, b.wait_s, b.prefill_s, b.handoff_s) == ("b", 0.0, pytest.approx(0.2), 0.04)
    assert a.total_s == pytest.approx(0.5825)


def test_media_are_encoded_before():
    (a,) = first_tokens(make_request(media=3), [A], make_context([A]), FakePredictor(media_s=0.1))
    (plain,) = first_tokens(make_request(), [A], make_context([A]), FakePredictor(media_s=0.1))
    assert (a.encode_s, plain.encode_s) == (pytest.approx(0.3), 0.0)
    assert a.total_s == pytest.approx(plain.total_s + 0.3)


def test_where_decode_is_decided_the_prompt_is_computed_by_the_prefill_endpoint():
    prefill = make_endpoint("p", Role.PREFILL)
    context = make_context([A, B], Role.DECODE, prefill=prefill, prefix=FakePrefix({"p": 3, "a": 8}))
    a, b = first_tokens(make_request(), [A, B], context, FakePredictor({"b": 2.0}))
    assert (a.prefill, b.prefill) == ("p", "p")
    assert a.prefill_s == b.prefill_s == pytest.approx(0.0625)
    assert (a.handoff_s, b.handoff_s) == (0.02, 0.04)


def test_where_prefill_is_decided_the_hand_off_is_to_the_first_decode_endpoint_that_is_ready():
    p = make_endpoint("p", Role.PREFILL)
    decodes = [
        make_endpoint("d0", Role.DECODE, ready=False),
        make_endpoint("d1", Role.DECODE, model="another"),
        make_endpoint("d2", Role.DECODE),
    ]
    predictor = FakePredictor({"d2": 3.0})
    context = make_context([p, *decodes], Role.PREFILL)
    assert first_tokens(make_request(), [p], context, predictor)[0].handoff_s == pytest.approx(0.06)
    assert first_tokens(make_request(), [p], make_context([p], Role.PREFILL), predictor)[0].handoff_s == 0.02


def test_a_step_with_the_request_in_the_batch():
    endpoint = make_endpoint("a", inflight=Inflight(4, 0, 10_000))
    predicted_s = step_s(make_request(n=2), endpoint, FakePredictor())
    assert predicted_s == pytest.approx(0.012 + 6 * 6e-5 + 11_000 * 2e-8)


def test_expected_output():
    request = make_request(max_tokens=10_000)
    assert output_tokens(request, make_context([A])) == 512
    assert output_tokens(request, make_context([A], predictor=FakePredictor(tokens=70))) == 70
    assert output_tokens(make_request(max_tokens=50), make_context([A], predictor=FakePredictor())) == 50


def test_memory_a_request_takes():
    request = make_request(prompt_tokens=1000, max_tokens=10_000, n=3)
    context = make_context([A], predictor=FakePredictor(tokens=70))
    assert kv_tokens(request, context) == 1210
    assert kv_tokens(request, make_context([A], Role.PREFILL, predictor=FakePredictor(tokens=70))) == 1000
    assert kv_tokens(make_request(path=PathKind.TOKENIZE), context) == 0


def given(used, running, seen, now):
    """An endpoint that reported `running` requests and `used` tokens when it had been given `seen`."""
    load = Load(0.0, running=running, kv_used_tokens=used, kv_total_tokens=100_000)
    return make_endpoint("a", load=load, inflight_at_load=Inflight(*seen), inflight=Inflight(*now))


@pytest.mark.parametrize(
    ("endpoint", "tokens"),
    [
        (make_endpoint("a", inflight=Inflight(1, 0, 700)), 700),
        # All that was promised has arrived; another client's is there too.
        (given(9_000, 4, (4, 0, 5_000), (4, 0, 5_000)), 9_000),
        # Three of four had not arrived when it reported: 3/4 of what was promised is still to come.
        (given(9_000, 1, (4, 0, 8_000), (4, 0, 8_000)), 15_000),
        # And one more was given since.
        (given(9_000, 1, (4, 0, 8_000), (5, 0, 10_000)), 17_000),
        # What is promised is the least.
        (given(100, 0, (4, 0, 8_000), (4, 0, 8_000)), 8_100),
        (given(100, 4, (4, 0, 8_000), (4, 0, 8_000)), 8_000),
    ],
)
def test_what_is_in_transfer_counts(endpoint, tokens):
    assert projected_kv_tokens(endpoint) == tokens


def test_what_is_left_of_a_promise():
    assert left_s(make_context([A], now_s=5.0, first_token_by_s=7.5)) == 2.5
    assert left_s(make_context([A])) == inf
    slo = SloClass("s", ttft=Target(1.0, quantile=0.9))
    assert quantile_of(make_context([A], slo=slo)) == 0.9
    assert quantile_of(make_context([A])) == 0.99
