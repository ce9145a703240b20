"""Tails (modules tail and waiting): conformal quantiles, corrected online."""

from __future__ import annotations

from math import exp, inf, isfinite
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.predictor.tail import JITTER_S, Tail, Window, score
from orchestrator.predictor.waiting import Waiting


def test_a_window_keeps_the_newest_in_order() -> None:
    window = Window(3)
    for value in (5.0, 1.0, 4.0, 2.0):
        window.add(value)
    assert window.ordered == [1.0, 2.0, 4.0]


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=50), st.floats(-1, 2))
def test_less_misses_are_never_nearer(values: list[float], miss: float) -> None:
    window = Window(40)
    for value in values:
        window.add(value)
    assert len(window) == min(40, len(values))
    assert window.upper(miss) >= window.upper(miss + 0.1)


def test_the_rank_is_of_one_more_than_there_are() -> None:
    window = Window(99)
    for value in range(99):
        window.add(float(value))
    # 99 figures and one to come: the greatest is exceeded with probability 1 %.
    assert window.upper(0.01) == pytest.approx(98.0)
    assert window.upper(0.5) == pytest.approx(49.0)
    assert window.upper(0.005) > 98.0


def feed(tail: Tail, rng: Random, count: int, sd: float = 0.1, shift: float = 0.0) -> list[bool]:
    held = []
    for _ in range(count):
        actual_s = exp(shift + rng.gauss(0, sd))
        held.append(actual_s <= 1.0 + tail.seconds(1.0, 0.99))
        tail.learn(score(actual_s, 1.0), 0.0, 0.0)
    return held


def test_it_is_wide_at_first_and_right_later() -> None:
    tail, rng = Tail(None, 0.2, 0.09), Random(1)
    assert tail.seconds(1.0, 0.99) > 1.0
    feed(tail, rng, 1500)
    assert tail.seconds(1.0, 0.5) == pytest.approx(0.0, abs=0.02)
    assert tail.seconds(1.0, 0.9) == pytest.approx(exp(1.28 * 0.1) - 1, abs=0.06)
    assert tail.seconds(1.0, 0.99) == pytest.approx(exp(2.33 * 0.1) - 1, abs=0.08)


def test_its_own_counts_are_right() -> None:
    tail, rng = Tail(None, 0.2, 0.09), Random(2)
    feed(tail, rng, 3000)
    for quantile, within in tail.within.items():
        assert within / tail.seen == pytest.approx(quantile, abs=0.02)


def test_after_a_miss_it_covers_as_much_again_until_a_hit() -> None:
    tail, rng = Tail(None, 0.2, 0.0), Random(3)
    feed(tail, rng, 500)
    usual_s = tail.seconds(1.0, 0.99)
    tail.learn(score(1.4, 1.0), 0.0, 0.0)
    assert tail.seconds(1.0, 0.99) > 0.4
    for _ in range(4):
        tail.learn(score(1.0, 1.0), 0.0, 0.0)
    assert tail.seconds(1.0, 0.99) < usual_s + 0.2


def test_it_holds_while_residuals_widen() -> None:
    tail, rng = Tail(None, 0.2, 0.0), Random(4)
    held = feed(tail, rng, 1000) + feed(tail, rng, 2000, sd=0.3) + feed(tail, rng, 1000, shift=0.1)
    assert sum(held) / len(held) > 0.985


def test_a_new_endpoint_has_its_pools_residuals() -> None:
    shared, rng = Window(1000), Random(5)
    veteran = Tail(shared, 0.2, 0.0)
    feed(veteran, rng, 500)
    recruit = Tail(shared, veteran.spread_sd, 0.0)
    assert recruit.seconds(1.0, 0.99) == pytest.approx(exp(2.33 * 0.1) - 1, abs=0.08)
    assert Tail(Window(1000), veteran.spread_sd, 0.0).seconds(1.0, 0.99) > recruit.seconds(1.0, 0.99)


def test_an_unsure_model_has_a_wider_tail() -> None:
    tail, rng = Tail(None, 0.2, 0.0), Random(6)
    feed(tail, rng, 500)
    sure_s = tail.seconds(1.0, 0.99)
    tail.learn(0.0, 0.0, 0.04)
    assert tail.seconds(1.0, 0.99) > 1.5 * sure_s


def test_short_times_vary_by_a_jitter() -> None:
    assert score(0.0, 0.0) == 0.0
    assert score(2 * JITTER_S, JITTER_S) < score(2.0, 1.0)


@given(
    st.lists(st.tuples(st.floats(0, 1e9), st.floats(0, 1e9)), max_size=80),
    st.floats(0.0, 1.0),
    st.floats(0.0, 1e6),
)
def test_garbage_leaves_a_finite_tail(
    seen: list[tuple[float, float]], quantile: float, predicted_s: float
) -> None:
    tail = Tail(Window(50), 0.2, 0.1)
    for actual_s, guessed_s in seen:
        tail.learn(score(actual_s, guessed_s), 0.0, 0.0)
    added_s = tail.seconds(predicted_s, quantile)
    assert isfinite(added_s)
    assert added_s >= -predicted_s
    assert tail.seconds(predicted_s, 0.999) >= tail.seconds(predicted_s, 0.5)


def test_what_is_all_waiting_has_the_narrower_tail() -> None:
    waiting = Waiting()
    assert waiting.seconds(1.0, 0.9, 0.99) < waiting.seconds(1.0, 0.1, 0.99)
    assert waiting.seconds(0.0, 0.0, 0.99) < inf


def test_many_made_up_quantiles_take_no_memory() -> None:
    tail = Tail(None, 0.2, 0.0)
    for i in range(1000):
        tail.seconds(1.0, i / 1000)
    tail.learn(0.0, 0.0, 0.0)
    assert len(tail._asked) <= 12
