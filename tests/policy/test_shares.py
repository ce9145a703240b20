"""Loads as shares."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.policy import share_of_least


def test_relative_to_the_least_and_never_below_zero():
    assert share_of_least([10, 15, 20, 99], 10) == [1.0, 0.5, 0.0, 0.0]
    assert share_of_least([], 10) == []


def test_what_all_carry_alike_cancels():
    assert share_of_least([1010, 1015], 10) == share_of_least([10, 15], 10)


def test_a_scale_is_positive():
    with pytest.raises(ValueError, match="positive"):
        share_of_least([1], 0)


@given(st.lists(st.integers(0, 10**9), min_size=1), st.floats(1e-3, 1e9))
def test_always_shares_and_the_least_has_the_most(values, scale):
    shares = share_of_least(values, scale)
    assert all(0.0 <= s <= 1.0 for s in shares)
    assert shares[values.index(min(values))] == 1.0
    ranked = [s for _, s in sorted(zip(values, shares, strict=True))]
    assert ranked == sorted(shares, reverse=True)
