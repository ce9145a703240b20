"""One life as a pure machine: numbering, counting of restarts, and giving up."""

from __future__ import annotations

from random import Random

import pytest

from orchestrator.core.lifecycle import Effect, Event, State
from orchestrator.core.restart import RestartPolicy
from orchestrator.errors import IllegalTransition
from orchestrator.launch.life import Life

POLICY = RestartPolicy(max_restarts=2, base_s=1.0, jitter=0.0, stable_s=100.0)
RNG = Random(0)


def started(incarnation: int = 0) -> Life:
    life, effects = Life(POLICY, incarnation=incarnation).on(Event.LAUNCH, 0.0)
    assert effects == (Effect.SPAWN, Effect.PROBE)
    return life


def test_the_first_start_is_no_restart_and_goes_on_with_the_numbering() -> None:
    life = started(incarnation=7)
    assert (life.state, life.incarnation, life.restarts) == (State.STARTING, 8, 0)


def test_a_failure_leads_through_backoff_to_the_next_incarnation() -> None:
    life, effects = started().failed(1.0, RNG)
    assert (life.state, life.retry_s, effects) == (State.BACKOFF, 1.0, (Effect.SWEEP, Effect.RETRY))
    life, effects = life.on(Event.LAUNCH, 2.0)
    assert (life.state, life.incarnation, life.restarts) == (State.STARTING, 2, 1)
    assert Effect.SPAWN in effects


def test_it_gives_up_after_the_last_restart() -> None:
    life = started()
    for _ in range(POLICY.max_restarts):
        life, _ = life.failed(1.0, RNG)
        life, _ = life.on(Event.LAUNCH, 1.0)
    life, effects = life.failed(1.0, RNG)
    assert (life.state, effects) == (State.FATAL, (Effect.SWEEP, Effect.REPORT))


def test_tries_are_spent_until_the_window_has_passed() -> None:
    life = started()
    for now_s in (1.0, 2.0):
        assert not life.spent(now_s)
        life, _ = life.failed(now_s, RNG)
        life, _ = life.on(Event.LAUNCH, now_s)
    assert life.spent(2.0)
    assert life.failed(2.0, RNG)[0].state is State.FATAL
    assert not life.spent(1.0 + POLICY.window_s)


def test_it_gives_up_at_once_on_what_cannot_change() -> None:
    assert started().failed(0.0, RNG, hopeless=True)[0].state is State.FATAL


def test_a_stable_time_forgives() -> None:
    life = started()
    for round_s in range(0, 1000, 200):
        life, _ = life.on(Event.PROBED, float(round_s))
        assert life.ready_at_s == round_s
        life, _ = life.failed(round_s + 100.0, RNG)
        assert life.state is State.BACKOFF
        life, _ = life.on(Event.LAUNCH, round_s + 101.0)
        assert life.ready_at_s is None
    assert life.restarts == 5


def test_events_without_a_place_are_refused() -> None:
    with pytest.raises(IllegalTransition):
        started().on(Event.GONE, 0.0)
