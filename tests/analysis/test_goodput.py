"""The highest rate that keeps a share, found by bisection."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.analysis.goodput import Curve, highest


@given(st.floats(0.01, 500.0), st.floats(0.05, 50.0))
def test_it_is_found_within_the_tolerance(true: float, start: float) -> None:
    asked = []

    def attains(rate: float, share: float) -> bool:
        asked.append(rate)
        return rate <= true

    found = highest(attains, 0.9, start, tolerance=0.01)
    if found == 0.0:
        assert true < start / 500
    else:
        assert found <= true <= found * 1.0101
    assert len(asked) < 45


def test_what_is_never_kept_has_no_rate() -> None:
    assert highest(lambda rate, share: False, 0.99, 2.0) == 0.0


def test_a_curve_answers_what_it_knows() -> None:
    curve = Curve()
    curve.attained(2.0, 0.95)
    curve.missed(3.0, 0.9)
    assert (curve.answer(2.0, 0.9), curve.answer(2.0, 0.99)) == (True, False)
    assert (curve.answer(3.0, 0.9), curve.answer(3.0, 0.99)) == (False, False)
    assert curve.answer(3.0, 0.8) is None
    assert curve.answer(4.0, 0.9) is None
    curve.missed(3.0, 0.99)
    assert curve.answer(3.0, 0.9) is False


def test_a_rate_that_stays_good_is_not_searched_for_ever() -> None:
    assert highest(lambda rate, share: True, 0.9, 1.0, steps=6) == pytest.approx(1.5**5)
