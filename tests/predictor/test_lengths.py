"""Output lengths: a fading distribution that is not fooled by answers cut off."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.predictor.lengths import Lengths


def test_quantiles_of_what_was_seen() -> None:
    lengths, rng = Lengths(), Random(1)
    for _ in range(2000):
        lengths.learn(round(rng.lognormvariate(5.0, 0.8)), True)
    assert lengths.quantile(0.5) == pytest.approx(148, rel=0.2)
    assert lengths.quantile(0.9) == pytest.approx(148 * 2.79, rel=0.2)


def test_answers_cut_off_are_longer_than_they_seem() -> None:
    naive, lengths, rng = Lengths(), Lengths(), Random(2)
    for _ in range(2000):
        true = round(rng.lognormvariate(6.0, 1.0))
        limit = round(rng.uniform(20, 900))
        seen = max(1, min(true, limit))
        naive.learn(seen, True)
        lengths.learn(seen, true <= limit)
    assert lengths.quantile(0.5) == pytest.approx(403, rel=0.25)
    assert naive.quantile(0.5) < 0.75 * lengths.quantile(0.5)


def test_if_most_are_cut_off_it_is_the_longest_seen() -> None:
    lengths = Lengths()
    for _ in range(5000):
        lengths.learn(4096, False)
    assert lengths.quantile(0.9) == 4096


def test_what_was_long_ago_fades() -> None:
    lengths = Lengths()
    for _ in range(3000):
        lengths.learn(1000, True)
    for _ in range(1500):
        lengths.learn(100, True)
    assert lengths.quantile(0.5) == pytest.approx(100, rel=0.2)


def test_before_any_answer_there_is_a_guess() -> None:
    assert 64 <= Lengths().quantile(0.5) <= 1024


@given(
    st.lists(st.tuples(st.integers(1, 10**9), st.booleans()), max_size=100), st.floats(0, 1), st.floats(0, 1)
)
def test_quantiles_are_in_order(seen: list[tuple[int, bool]], one: float, two: float) -> None:
    lengths = Lengths()
    for tokens, complete in seen:
        lengths.learn(tokens, complete)
    low, high = sorted((one, two))
    assert 1 <= lengths.quantile(low) <= lengths.quantile(high)


def test_weights_do_not_overflow() -> None:
    lengths = Lengths()
    for _ in range(40_000):
        lengths.learn(200, True)
    assert lengths.quantile(0.99) == pytest.approx(200, rel=0.2)
