"""The lifecycle table: nothing leaves it, being asked to stop is final, STOPPED is always within reach."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.lifecycle import (
    EFFECTS,
    TRANSITIONS,
    Effect,
    Event,
    State,
    mermaid,
    resumed,
    step,
    takes,
)
from orchestrator.errors import IllegalTransition

DOC = Path(__file__).parents[2] / "docs" / "lifecycle.md"


def reachable(start: State) -> set[State]:
    found, todo = {start}, [start]
    while todo:
        new = set(TRANSITIONS[todo.pop()].values()) - found
        found |= new
        todo += new
    return found


def test_the_tables_know_every_state_and_every_event_has_a_place() -> None:
    assert set(TRANSITIONS) == set(EFFECTS) == set(State)
    assert {event for row in TRANSITIONS.values() for event in row} == set(Event)


@pytest.mark.parametrize("state", State)
def test_stopped_is_reachable_from_everywhere(state: State) -> None:
    assert State.STOPPED in reachable(state)


@pytest.mark.parametrize("asked", [Event.STOP, Event.KILL])
def test_an_instance_asked_to_stop_never_starts_again(asked: Event) -> None:
    for state, row in TRANSITIONS.items():
        if asked in row:
            assert State.STARTING not in reachable(row[asked]), state


def test_only_two_ways_lead_to_a_new_process() -> None:
    sources = {s for s, row in TRANSITIONS.items() if State.STARTING in row.values()}
    assert sources == {State.PENDING, State.BACKOFF}


@given(st.lists(st.sampled_from(Event)))
def test_random_events_never_leave_the_table(events: list[Event]) -> None:
    state = State.PENDING
    for event in events:
        if takes(state, event):
            state, effects = step(state, event)
            assert state in TRANSITIONS
            assert set(effects) <= set(Effect)
        else:
            with pytest.raises(IllegalTransition, match=f"{event} cannot happen .* {state}"):
                step(state, event)


@pytest.mark.parametrize("state", [State.STARTING, State.READY, State.DRAINING, State.STOPPING])
def test_kill_does_not_ask_first(state: State) -> None:
    assert step(state, Event.KILL) == (State.STOPPING, (Effect.KILL,))


def test_a_failed_incarnation_is_swept_before_the_next_is_started() -> None:
    assert EFFECTS[State.BACKOFF] == (Effect.SWEEP, Effect.RETRY)


@pytest.mark.parametrize("state", State)
def test_going_on_with_a_living_process_starts_no_other(state: State) -> None:
    assert Effect.SPAWN not in resumed(state)


def test_going_on_asks_for_the_rest() -> None:
    assert resumed(State.STARTING) == (Effect.PROBE,)
    assert resumed(State.READY) == (Effect.WATCH,)
    assert resumed(State.STOPPING) == (Effect.TERM,)


def test_the_diagram_shows_every_transition() -> None:
    lines = mermaid().splitlines()
    for state, row in TRANSITIONS.items():
        for event, after in row.items():
            line = next(x for x in lines if x.startswith(f"    {state.name} --> {after.name}: "))
            assert event.value in line.partition(": ")[2].split(", ")


def test_the_diagram_in_the_docs_is_current() -> None:
    held = DOC.read_text().partition("```mermaid\n")[2].partition("```")[0]
    assert held == mermaid(), "put the text of orchestrator.core.lifecycle.mermaid() into docs/lifecycle.md"
