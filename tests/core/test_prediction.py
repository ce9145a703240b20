"""The cost curves that a predictor gives out."""

from __future__ import annotations

import pytest

from orchestrator.core.prediction import Curve, Exposed, Step


def test_a_cached_prefix_takes_its_own_cost_away() -> None:
    curve = Curve(token_s=250e-6, token2_s=3e-9)
    assert curve.seconds(8000, 6000) == pytest.approx(curve.seconds(8000) - curve.seconds(6000))
    assert curve.seconds(8000, 8000) == 0.0


def test_no_prefill_is_shorter_than_the_floor() -> None:
    curve = Curve(token_s=250e-6, fixed_s=0.002, floor_s=0.02)
    assert curve.seconds(10) == 0.02
    assert curve.seconds(1000) == pytest.approx(0.252)


def test_only_the_last_chunk_of_a_transfer_is_waited_for() -> None:
    capped, whole = Exposed(0.01, 1e-5, 8192), Exposed(0.01, 1e-5)
    assert capped.seconds(4000) == whole.seconds(4000) == pytest.approx(0.05)
    assert capped.seconds(100_000) == capped.seconds(8192)
    assert whole.seconds(100_000) == pytest.approx(1.01)


def test_a_step_grows_with_batch_and_context() -> None:
    assert Step(0.012, 60e-6, 50e-9).seconds(10, 100_000) == pytest.approx(0.0176)
