"""What the predictor promises: its tails hold and its medians are near, on engines it knows little of.

The engines (tests/support/guessed_fleet.py) share no code with what is fitted to them: layers and chunks with
a floor under each step, speed factors from 0.7 to 1.5, log-normal noise of 0.1, and everything 1.3 times as
slow from half-way on. Covers stages, instance, handoff, pool, waiting and tail together.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from guessed_fleet import Fleet, Result, middle

from orchestrator.predictor import StagePredictor

SEEDS = (1, 2, 3)


def run(seed: int, **how: Any) -> Result:
    return Fleet(StagePredictor(), Random(seed), **how).run(7000)


def hold(result: Result) -> None:
    for horizon in (result.dispatch, result.admission):
        assert len(horizon.late) >= 5000
        assert 0.985 <= horizon.coverage() <= 0.995
        assert horizon.coverage("early") >= 0.97
        assert middle(horizon.errors) <= middle(horizon.noise) + 0.05


@pytest.mark.parametrize("seed", SEEDS)
def test_tails_hold_through_a_drift(seed: int) -> None:
    hold(run(seed))


@pytest.mark.parametrize("seed", SEEDS)
def test_tails_hold_when_only_first_tokens_are_seen(seed: int) -> None:
    hold(run(seed, timed=False))


@pytest.mark.parametrize("how", [{"drift": 1.0}, {"drift": 1 / 1.3}, {"noise": 0.2}, {"typical": 200}])
def test_tails_hold_on_other_fleets(how: dict[str, Any]) -> None:
    hold(run(4, **how))


def test_tails_hold_when_requests_overtake() -> None:
    hold(run(5, shortest=True))


def test_tails_hold_without_a_launch_profile() -> None:
    hold(run(6, prior={}))


def test_curves_are_told_anew_sparingly() -> None:
    assert run(7).versions < 0.5 * 7000


def test_the_median_and_the_ninth_decile_hold_too() -> None:
    for quantile in (0.5, 0.9):
        result = run(8, quantile=quantile)
        assert abs(result.dispatch.coverage() - quantile) < 0.02
        assert result.admission.coverage() > quantile - 0.03
