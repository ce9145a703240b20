"""The circuit breaker's three states."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.breaker import MOST_OPEN_S, OPEN_S, TRIP_AFTER, Breaker, Circuit


def test_failures_in_a_row_open_it_and_time_half_opens_it() -> None:
    breaker = Breaker()
    assert [breaker.failed(1.0) for _ in range(TRIP_AFTER)] == [False] * (TRIP_AFTER - 1) + [True]
    assert breaker.shut
    assert not breaker.look(1.0 + OPEN_S - 0.1)
    assert breaker.look(1.0 + OPEN_S)
    assert (breaker.circuit, breaker.shut) == (Circuit.HALF_OPEN, False)
    assert not breaker.look(50.0), "told once"
    assert breaker.succeeded()
    assert breaker.circuit is Circuit.CLOSED


def test_a_success_between_failures_starts_the_count_anew() -> None:
    breaker = Breaker()
    for _ in range(10):
        assert not any(breaker.failed(1.0) for _ in range(TRIP_AFTER - 1))
        assert not breaker.succeeded(), "it was never open"


def test_each_try_that_fails_makes_the_next_wait_longer() -> None:
    breaker, now_s, waits = Breaker(), 0.0, []
    breaker.trip(now_s)
    for _ in range(20):
        waits.append(breaker.until_s - now_s)
        now_s = breaker.until_s
        assert breaker.look(now_s)
        assert breaker.failed(now_s)
    assert waits[:3] == [OPEN_S, 2 * OPEN_S, 4 * OPEN_S]
    assert set(waits[5:]) == {MOST_OPEN_S}
    breaker.look(breaker.until_s)
    breaker.succeeded()
    breaker.trip(now_s)
    assert breaker.until_s - now_s == OPEN_S


@given(st.lists(st.sampled_from(["fail", "well", "look", "trip", "reset"])))
def test_whatever_happens_it_never_stays_open_for_ever(events: list[str]) -> None:
    breaker = Breaker()
    for at, what in enumerate(events):
        now_s = float(at)
        match what:
            case "fail":
                breaker.failed(now_s)
            case "well":
                breaker.succeeded()
            case "look":
                breaker.look(now_s)
            case "trip":
                breaker.trip(now_s)
            case _:
                breaker.reset()
        assert not breaker.shut or now_s < breaker.until_s <= now_s + MOST_OPEN_S or breaker.until_s <= now_s
    end_s = len(events) + MOST_OPEN_S
    breaker.look(end_s)
    assert not breaker.shut
