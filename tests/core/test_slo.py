"""Promises: the bounds of a class, and the moments that follow from them."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.slo import NO_GAP, NO_PROMISE, Priority, SloClass, Target, Unattainable

times = st.floats(0.0, 1e4)


def test_a_bound_may_grow_with_the_prompt():
    assert Target(1.5).bound_s(9.0) == 1.5
    assert Target(1.5, per_cold_prefill=2.0).bound_s(9.0) == 19.5


def test_nothing_is_promised_without_a_class():
    assert NO_PROMISE.first_token_by_s(1.0, 2.0, 3.0) == inf
    assert NO_PROMISE.step_s == inf
    assert NO_PROMISE.unattainable is Unattainable.BEST_EFFORT
    assert NO_PROMISE.pools is None


def test_the_first_token_is_due_by_the_first_promise_or_early_enough_for_the_last():
    chat = SloClass("chat", ttft=Target(2.0))
    bulk = SloClass("bulk", e2e=Target(60.0))
    both = SloClass("both", ttft=Target(2.0), e2e=Target(60.0))
    assert chat.first_token_by_s(10.0, 5.0, 20.0) == 12.0
    assert bulk.first_token_by_s(10.0, 5.0, 20.0) == 50.0
    assert both.first_token_by_s(10.0, 5.0, 20.0) == 12.0
    assert both.first_token_by_s(10.0, 5.0, 59.0) == 11.0


@given(times, times, times, times, times)
def test_no_promise_is_loosened_by_another(arrived_s, cold_s, decode_s, ttft_s, e2e_s):
    both = SloClass("c", ttft=Target(ttft_s, per_cold_prefill=1.0), e2e=Target(e2e_s))
    due_s = both.first_token_by_s(arrived_s, cold_s, decode_s)
    for one in (SloClass("t", ttft=both.ttft), SloClass("e", e2e=both.e2e)):
        assert due_s <= one.first_token_by_s(arrived_s, cold_s, decode_s)


@pytest.mark.parametrize(
    ("slo", "step_s"),
    [
        (SloClass("none", ttft=Target(1.0)), inf),
        (SloClass("itl", itl=Target(0.04)), 0.04),
        (SloClass("tpot", tpot=Target(0.03)), 0.03),
        (SloClass("both", itl=Target(0.04), tpot=Target(0.03)), 0.03),
    ],
)
def test_the_stricter_gap_promise_bounds_a_step(slo, step_s):
    assert slo.step_s == step_s


def test_of_equal_gap_promises_the_one_to_more_requests_counts():
    slo = SloClass("both", itl=Target(0.04, 0.9), tpot=Target(0.04, 0.99))
    assert slo.gap == (0.04, 0.99)
    assert SloClass("itl", itl=Target(0.04, 0.9), tpot=Target(0.05, 0.99)).gap == (0.04, 0.9)
    assert SloClass("none").gap == NO_GAP


def test_the_quantile_is_the_first_tokens_else_the_last_ones():
    assert SloClass("a", ttft=Target(1.0, 0.9), e2e=Target(9.0, 0.5)).quantile == 0.9
    assert SloClass("b", e2e=Target(9.0, 0.95)).quantile == 0.95
    assert SloClass("c").quantile == 0.99


def test_who_goes_first():
    assert Priority.REALTIME < Priority.INTERACTIVE < Priority.BATCH
    assert SloClass("c").priority is Priority.INTERACTIVE
    assert SloClass("c").unattainable is Unattainable.REJECT
