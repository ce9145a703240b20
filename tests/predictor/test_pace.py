"""Pace: all is learned from while that tells anything, and beyond that an even share of every kind."""

from __future__ import annotations

from collections import Counter

import pytest

from orchestrator.predictor.pace import FIRST, MOST_PER_S, Pace


def taken(rate: float, seconds: float, *, kinds: int = 1) -> tuple[Counter[int], Counter[int]]:
    """Of so many outcomes a second, in turn of each kind: how many came, and how many were taken."""
    pace, came, took = Pace(), Counter[int](), Counter[int]()
    for n in range(int(rate * seconds)):
        came[n % kinds] += 1
        took[n % kinds] += pace.takes(100.0 + n / rate)
    return came, took


def test_all_are_taken_at_a_rate_that_engines_have() -> None:
    came, took = taken(0.9 * MOST_PER_S, 120.0)
    assert took == came


def test_the_first_are_all_taken_however_fast_they_come() -> None:
    _, took = taken(10_000.0, FIRST / 10_000.0)
    assert took[0] == FIRST


@pytest.mark.parametrize("rate", [100.0, 333.0, 2_000.0, 12_345.0])
def test_beyond_that_so_many_a_second(rate: float) -> None:
    _, at_first = taken(rate, 10.0)
    _, took = taken(rate, 70.0)
    assert took[0] - at_first[0] == pytest.approx(60.0 * MOST_PER_S, rel=0.05)


@pytest.mark.parametrize("kinds", [2, 3, 4, 7, 20, 40])
@pytest.mark.parametrize("rate", [100.0, 1_000.0, 2_000.0])
def test_no_kind_is_left_out_whatever_the_rhythm(rate: float, kinds: int) -> None:
    came, took = taken(rate, 200.0, kinds=kinds)
    share = took.total() / came.total()
    assert all(took[kind] == pytest.approx(share * came[kind], rel=0.15) for kind in came)


def test_when_the_rush_is_over_all_are_taken_again() -> None:
    pace = Pace()
    for n in range(5_000):
        pace.takes(n / 1_000.0)
    told = [pace.takes(6.0 + n / 10.0) for n in range(40)]
    assert all(told[10:])
