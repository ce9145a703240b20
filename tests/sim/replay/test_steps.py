"""Runs of steps in closed form, their noise, and histograms of gaps."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.sim.replay.steps import Histogram, Noise, Worst


@given(st.integers(0, 400), st.integers(0, 100), st.floats(0.001, 0.1), st.floats(0.0, 1e-4), st.booleans())
def test_a_run_is_the_sum_of_its_steps(
    at: int, steps: int, first_s: float, grows_s: float, noisy: bool
) -> None:
    noise = Noise(0.2 if noisy else 0.0, Random(3), size=500)
    one_by_one = [noise.factors[at + i] * (first_s + grows_s * i) for i in range(steps)]
    assert noise.lasts_s(at, steps, first_s, grows_s) == pytest.approx(sum(one_by_one), rel=1e-9)
    limit_s = 0.6 * sum(one_by_one)
    within = noise.within(at, 0, steps, first_s, grows_s, limit_s)
    assert noise.lasts_s(at, within, first_s, grows_s) <= limit_s
    assert within == steps or noise.lasts_s(at, within + 1, first_s, grows_s) > limit_s


def test_noise_has_median_one_and_its_sigma() -> None:
    factors = sorted(Noise(0.1, Random(1)).factors)
    logs = [math.log(f) for f in factors]
    assert factors[len(factors) // 2] == pytest.approx(1.0, abs=0.01)
    assert math.sqrt(sum(x * x for x in logs) / len(logs)) == pytest.approx(0.1, rel=0.05)
    assert set(Noise().factors) == {1.0}


@given(st.lists(st.tuples(st.floats(1e-6, 1e3), st.integers(1, 50)), min_size=1), st.floats(0.0, 1.0))
def test_quantiles_are_right_within_a_bin(values: list[tuple[float, int]], share: float) -> None:
    histogram = Histogram()
    for value, weight in values:
        histogram.add(value, weight)
    every = sorted(v for value, weight in values for v in [value] * weight)
    exact = every[max(0, math.ceil(share * len(every) - 1e-9) - 1)]
    assert histogram.count == len(every)
    assert histogram.quantile(share) == pytest.approx(exact, rel=0.0101)


@given(st.floats(0.001, 0.1), st.floats(0.0, 0.01), st.integers(2, 300), st.integers(1, 60))
def test_a_ramp_counts_what_its_steps_do(first_s: float, growth: float, steps: int, weight: int) -> None:
    last_s = first_s * (1 + growth * steps)
    ramp, exact = Histogram(), Histogram()
    ramp.add_ramp(first_s, last_s, steps, weight)
    for i in range(steps):
        exact.add(first_s + (last_s - first_s) * i / (steps - 1), weight)
    assert ramp.count == exact.count
    for share in (0.1, 0.5, 0.9):
        assert ramp.quantile(share) == pytest.approx(exact.quantile(share), rel=0.025)


def test_merging_and_emptiness() -> None:
    one, other = Histogram(), Histogram()
    assert one.quantile(0.5) is None
    one.add(1.0, 3)
    other.add(2.0, 1)
    both = one.merge([other])
    assert (both.count, one.count) == (4, 3)
    assert both.quantile(0.75) == pytest.approx(1.0, rel=0.01)
    assert both.quantile(0.76) == pytest.approx(2.0, rel=0.01)


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0.0, 9.0)), max_size=40), st.integers(0, 60))
def test_the_worst_since_a_step(gaps: list[tuple[int, float]], since: int) -> None:
    worst, step, every = Worst(), 0, []
    for more, seconds in gaps:
        step += more
        worst.add(step, seconds)
        every.append((step, seconds))
    assert worst.since(since) == max((s for at, s in every if at >= since), default=0.0)
