"""Histories of one instance, told as facts: what the pure life makes of them, in order."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.lifecycle import Effect, Event, State, takes
from orchestrator.core.restart import RestartPolicy
from orchestrator.launch.life import Life

POLICY = RestartPolicy(max_restarts=2, jitter=0.0, stable_s=1000.0)
FAIL = "fail"


def tell(*facts: Event | str) -> tuple[Life, list[str]]:
    """Tell a new life what happened, a second apart; the states it went through."""
    life, states = Life(POLICY), [State.PENDING.name]
    for now_s, fact in enumerate(facts):
        if isinstance(fact, Event):
            life, _ = life.on(fact, float(now_s))
        else:
            life, _ = life.failed(float(now_s), Random(0))
        states.append(life.state.name)
    return life, states


E = Event
HISTORIES: dict[str, tuple[tuple[Event | str, ...], str]] = {
    "up and down": (
        (E.LAUNCH, E.PROBED, E.STOP, E.DRAINED, E.GONE),
        "PENDING STARTING READY DRAINING STOPPING STOPPED",
    ),
    "a stop while it loads does not wait for a drain": (
        (E.LAUNCH, E.STOP, E.GONE),
        "PENDING STARTING STOPPING STOPPED",
    ),
    "never started": ((E.STOP,), "PENDING STOPPED"),
    "one crash while serving": (
        (E.LAUNCH, E.PROBED, FAIL, E.LAUNCH, E.PROBED),
        "PENDING STARTING READY BACKOFF STARTING READY",
    ),
    "never gets ready": (
        (E.LAUNCH, FAIL, E.LAUNCH, FAIL, E.LAUNCH, FAIL),
        "PENDING STARTING BACKOFF STARTING BACKOFF STARTING FATAL",
    ),
    "given up, then taken down": (
        (E.LAUNCH, FAIL, E.LAUNCH, FAIL, E.LAUNCH, FAIL, E.STOP, E.GONE),
        "PENDING STARTING BACKOFF STARTING BACKOFF STARTING FATAL STOPPING STOPPED",
    ),
    "a stop in the back-off": (
        (E.LAUNCH, FAIL, E.STOP, E.GONE),
        "PENDING STARTING BACKOFF STOPPING STOPPED",
    ),
    "TERM is ignored": (
        (E.LAUNCH, E.PROBED, E.STOP, E.DRAINED, E.KILL, E.GONE),
        "PENDING STARTING READY DRAINING STOPPING STOPPING STOPPED",
    ),
    "the operator does not wait for the drain": (
        (E.LAUNCH, E.PROBED, E.STOP, E.KILL, E.GONE),
        "PENDING STARTING READY DRAINING STOPPING STOPPED",
    ),
}


@pytest.mark.parametrize("name", HISTORIES)
def test_history(name: str) -> None:
    facts, states = HISTORIES[name]
    assert tell(*facts)[1] == states.split()


def test_each_start_is_a_new_incarnation() -> None:
    life, _ = tell(E.LAUNCH, E.PROBED, FAIL, E.LAUNCH, FAIL, E.LAUNCH)
    assert (life.incarnation, life.restarts) == (3, 2)


@given(st.lists(st.sampled_from([*Event, FAIL]), max_size=60), st.integers())
def test_whatever_happens_the_rules_hold(facts: list[Event | str], seed: int) -> None:
    life, rng, asked, spawned = Life(POLICY), Random(seed), False, 0
    for now_s, fact in enumerate(facts):
        if isinstance(fact, Event):
            if not takes(life.state, fact) or fact in (E.CRASHED, E.GAVE_UP):
                continue
            after, effects = life.on(fact, float(now_s))
            asked = asked or fact in (E.STOP, E.KILL)
        elif life.state in (State.STARTING, State.READY):
            after, effects = life.failed(float(now_s), rng)
        else:
            continue
        if Effect.SPAWN in effects:
            spawned += 1
            assert not asked, "started after it was asked to stop"
            assert after.incarnation == life.incarnation + 1
        else:
            assert after.incarnation == life.incarnation
        if after.state is State.BACKOFF:
            assert len(after.failures) <= POLICY.max_restarts
        life = after
    assert life.incarnation == spawned
    assert life.restarts == max(0, spawned - 1)
