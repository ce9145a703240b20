"""Medians with least and most, rounds in turn, ratios by round, and where a curve crosses a share."""

from __future__ import annotations

import pytest
from benchmarks.figures import Spread, best, crossing, digits, in_turn, ratios
from hypothesis import given
from hypothesis import strategies as st


def test_a_spread_is_median_least_and_most() -> None:
    spread = Spread.of([3.0, 1.0, 2.0])
    assert (spread.low, spread.median, spread.high) == (1.0, 2.0, 3.0)
    assert spread.text() == "2.00 (1.00-3.00)"
    with pytest.raises(ValueError):
        Spread.of([])


@pytest.mark.parametrize(
    ("value", "text"), [(1234.5, "1,234"), (12.34, "12.3"), (1.234, "1.23"), (0.0123, "0.012")]
)
def test_figures_have_three_digits(value: float, text: str) -> None:
    assert digits(value) == text


@given(st.integers(0, 5), st.integers(1, 5))
def test_each_round_has_every_contender_once(rounds: int, count: int) -> None:
    contenders = list(range(count))
    seen = list(in_turn(contenders, rounds))
    assert len(seen) == rounds * count
    for number in range(rounds):
        assert sorted(c for n, c in seen if n == number) == contenders


def test_each_round_begins_with_another() -> None:
    assert [c for _, c in in_turn(["a", "b", "c"], 2)] == ["a", "b", "c", "b", "c", "a"]
    assert list(in_turn([], 2)) == []


def test_ratios_go_round_by_round() -> None:
    assert ratios([1.0, 20.0], [2.0, 40.0]).values == (0.5, 0.5)


def test_a_curve_crosses_between_two_points() -> None:
    curve = [(2.0, 0.8), (1.0, 1.0)]
    assert crossing(curve, 0.9) == pytest.approx(1.5)
    assert crossing(curve, 0.7) == 2.0
    assert crossing([(1.0, 0.5), (2.0, 0.95)], 0.9) is None
    assert crossing([], 0.9) is None


def test_of_equals_the_earlier_is_best() -> None:
    assert best(["aa", "b", "c", "dd"], len, 3) == ["aa", "dd", "b"]
