"""An instance's lifecycle as a table: the states, what moves between them, and what entering one asks for."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from orchestrator.errors import IllegalTransition


class State(StrEnum):
    """Where an instance is in its life."""

    PENDING = "pending"
    """Planned; nothing has been started."""
    STARTING = "starting"
    """A process runs and has not yet answered its readiness probes."""
    READY = "ready"
    """It may be given work."""
    DRAINING = "draining"
    """Asked to stop; gets no new work, what it has is being finished."""
    STOPPING = "stopping"
    """Told to end; stays here until none of its processes is left."""
    STOPPED = "stopped"
    """Nothing of it is left, and this lifecycle is over for good."""
    BACKOFF = "backoff"
    """It failed; what was left of it is removed, then it is started again after a delay."""
    FATAL = "fatal"
    """It failed too often; somebody has to look."""


class Event(StrEnum):
    """What can happen to an instance."""

    LAUNCH = "launch"
    """It is time to start: the first time, or again after the back-off."""
    PROBED = "probed"
    """All readiness probes answered 200."""
    CRASHED = "crashed"
    """It exited unasked, could not be started, or missed its deadline; another try is due."""
    GAVE_UP = "gave-up"
    """As CRASHED, but the tries are spent."""
    STOP = "stop"
    """The operator or a new plan wants it gone."""
    DRAINED = "drained"
    """No request is left on it, the drain deadline has passed, or its process is gone."""
    KILL = "kill"
    """The time to end by itself has passed, or the operator will not wait."""
    GONE = "gone"
    """None of its processes is left."""


class Effect(StrEnum):
    """What the shell has to do on entering a state, in the order given."""

    SPAWN = "spawn"
    """Start the process of the next incarnation."""
    PROBE = "probe"
    """Ask the readiness probes until they agree, the process exits, or the deadline passes."""
    WATCH = "watch"
    """Wait for the process to exit."""
    DRAIN = "drain"
    """Have the router send nothing new, and wait for what is in flight."""
    TERM = "term"
    """Ask the leading process to end, then see that the others follow it."""
    KILL = "kill"
    """Kill every process of the instance."""
    SWEEP = "sweep"
    """Remove whatever a failed incarnation left behind."""
    RETRY = "retry"
    """Wait for the back-off to pass."""
    REPORT = "report"
    """Say what failed and what to look at."""


_S, _E = State, Event

TRANSITIONS: Mapping[State, Mapping[Event, State]] = {
    _S.PENDING: {
        _E.LAUNCH: _S.STARTING,
        _E.STOP: _S.STOPPED,
        _E.KILL: _S.STOPPED,
    },
    _S.STARTING: {
        _E.PROBED: _S.READY,
        _E.CRASHED: _S.BACKOFF,
        _E.GAVE_UP: _S.FATAL,
        _E.STOP: _S.STOPPING,
        _E.KILL: _S.STOPPING,
    },
    _S.READY: {
        _E.CRASHED: _S.BACKOFF,
        _E.GAVE_UP: _S.FATAL,
        _E.STOP: _S.DRAINING,
        _E.KILL: _S.STOPPING,
    },
    _S.DRAINING: {
        _E.DRAINED: _S.STOPPING,
        _E.KILL: _S.STOPPING,
    },
    _S.STOPPING: {
        _E.KILL: _S.STOPPING,
        _E.GONE: _S.STOPPED,
    },
    # Processes of the failed incarnation may still be there: the way out leads through STOPPING.
    _S.BACKOFF: {
        _E.LAUNCH: _S.STARTING,
        _E.STOP: _S.STOPPING,
        _E.KILL: _S.STOPPING,
    },
    _S.FATAL: {
        _E.STOP: _S.STOPPING,
        _E.KILL: _S.STOPPING,
    },
    _S.STOPPED: {},
}
"""The program. No row leads from a state that STOP or KILL leads to back to STARTING: an instance that
was asked to stop never starts again; a restart begins a new lifecycle."""

EFFECTS: Mapping[State, tuple[Effect, ...]] = {
    _S.PENDING: (),
    _S.STARTING: (Effect.SPAWN, Effect.PROBE),
    _S.READY: (Effect.WATCH,),
    _S.DRAINING: (Effect.DRAIN,),
    _S.STOPPING: (Effect.TERM,),
    _S.STOPPED: (),
    _S.BACKOFF: (Effect.SWEEP, Effect.RETRY),
    _S.FATAL: (Effect.SWEEP, Effect.REPORT),
}
"""What entering each state asks of the shell."""


def step(state: State, event: Event) -> tuple[State, tuple[Effect, ...]]:
    """The state after `event`, and what entering it asks for. Raises IllegalTransition."""
    after = TRANSITIONS[state].get(event)
    if after is None:
        raise IllegalTransition(f"{event} cannot happen to an instance that is {state}")
    if event is Event.KILL and after is State.STOPPING:
        return after, (Effect.KILL,)
    return after, EFFECTS[after]


def takes(state: State, event: Event) -> bool:
    """Whether `event` has a place in `state`; what a request from outside is asked before it is posted."""
    return event in TRANSITIONS[state]


def resumed(state: State) -> tuple[Effect, ...]:
    """What the shell has to do for a living process that was in `state` under an earlier controller."""
    return tuple(effect for effect in EFFECTS[state] if effect is not Effect.SPAWN)


def mermaid() -> str:
    """The table as a Mermaid state diagram; `docs/lifecycle.md` holds it, and a test compares them."""
    lines = ["stateDiagram-v2", "    [*] --> PENDING"]
    for state, row in TRANSITIONS.items():
        targets: dict[State, list[str]] = {}
        for event, after in row.items():
            targets.setdefault(after, []).append(event.value)
        lines += [
            f"    {state.name} --> {after.name}: {', '.join(events)}" for after, events in targets.items()
        ]
    return "\n".join([*lines, "    STOPPED --> [*]"]) + "\n"
