"""What is tried again, how often, and what the fleet's budget allows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.retry import BURST, RETRY_SHARE, RetryBudget, Tries, Verdict, repeatable
from orchestrator.errors import (
    BadRequest,
    LegFailed,
    NoCapacity,
    NotServed,
    Overloaded,
    RequestError,
    StageDeadline,
    TooLarge,
)


@pytest.mark.parametrize("error", [LegFailed("x"), NoCapacity("x"), StageDeadline("x"), Overloaded("x")])
def test_what_an_engine_failed_at_or_did_not_begin_is_repeatable(error: RequestError) -> None:
    assert repeatable(error)


@pytest.mark.parametrize(
    "error",
    [
        BadRequest("x"), NotServed("x"), TooLarge("x"), RequestError("a bug"),
        LegFailed("x", reason="engine-auth"), StageDeadline("x", reason="total-deadline"),
    ],
)  # fmt: skip
def test_case_37_what_would_fail_anywhere_is_not(error: RequestError) -> None:
    assert not repeatable(error)
    assert Tries().failed(error, RetryBudget()) is Verdict.FINAL


def test_three_attempts_and_two_deaths() -> None:
    tries, budget = Tries(), RetryBudget()
    verdicts = [tries.failed(LegFailed("x"), budget) for _ in range(3)]
    assert verdicts == [Verdict.AGAIN, Verdict.AGAIN, Verdict.ATTEMPTS]
    tries = Tries()
    dead = LegFailed("x", reason="connection-dropped")
    assert [tries.failed(dead, budget) for _ in range(2)] == [Verdict.AGAIN, Verdict.ATTEMPTS]


def test_what_was_never_sent_costs_no_budget() -> None:
    budget = RetryBudget(0.0, 0.0)
    assert Tries().failed(LegFailed("x", reason="connect-failed"), budget) is Verdict.AGAIN
    assert Tries().failed(LegFailed("x"), budget) is Verdict.BUDGET


@given(st.lists(st.booleans(), max_size=500), st.integers(0, 100))
def test_case_37_retries_stay_a_share_of_the_traffic(steps: list[bool], live: int) -> None:
    budget, came, spent = RetryBudget(), 0, 0
    for comes in steps:
        if comes:
            budget.earn(live)
            came += 1
        else:
            spent += budget.spend()
    assert spent <= BURST + RETRY_SHARE * came + 1e-6


def test_it_saves_up_for_all_that_are_under_way() -> None:
    budget = RetryBudget()
    for _ in range(10_000):
        budget.earn(live=100)
    assert sum(budget.spend() for _ in range(200)) == 100
