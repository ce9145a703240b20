"""The endpoints as relays see them: what is told of each, and the registry made of that."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from math import inf
from types import MappingProxyType
from typing import Any

import orjson

from orchestrator.clock import Clock
from orchestrator.core.types import Endpoint, Load, Snapshot
from orchestrator.engines.base import Engine
from orchestrator.router.adapters import adapters
from orchestrator.router.ask import refused
from orchestrator.router.health import Health, Thresholds
from orchestrator.router.listeners import Listeners
from orchestrator.router.state import State
from orchestrator.router.workers.messages import Kind, frame, json_frame
from orchestrator.topology.plan import Plan

log = logging.getLogger(__name__)

Note = Callable[[Sequence[Any]], None]
"""Tells the scheduler's process what a relay has seen of an endpoint."""


def view(state: State, heard_s: float) -> tuple[Any, ...]:
    """One endpoint for `Mirror.told`. `heard_s`: when it last showed a sign of life."""
    load = state.load
    told = None if load is None else (load.at_s, load.running, load.waiting, load.kv_used_tokens)
    total = None if load is None else load.kv_total_tokens
    shuns, facts = sorted(state.shuns), dict(state.learned)
    own = (state.plan.name, state.ready, state.incarnation, facts, state.since_s, shuns, state.cap)
    return (*own, told, total, max(heard_s, -1.0))


def steady(told: Sequence[Any]) -> Sequence[Any]:
    """What of a view matters to requests: all but its load and when it was heard of."""
    return told[:7]


def views_frame(told: Iterable[Sequence[Any]], lazy: bool) -> bytes:
    """A VIEWS frame."""
    return frame(Kind.VIEWS, orjson.dumps((list(told), lazy), default=_plain))


def note_frame(told: Sequence[Any]) -> bytes:
    """A NOTE frame."""
    return json_frame(Kind.NOTE, told)


class Mirror(Listeners):
    """The registry of a relay: endpoints as they were last told; what legs meet there goes to `note`.

    Raises TopologyError when the plan names an engine that does not load.
    """

    def __init__(self, plan: Plan, clock: Clock, note: Note) -> None:
        super().__init__()
        self._clock = clock
        self._note = note
        self._states: dict[str, State] = {}
        self._engines: dict[str, Engine] = {}
        self._heard: dict[str, float] = {}
        self._models: tuple[str, ...] = ()
        self._snapshot: Snapshot | None = None
        self.apply(plan)

    def apply(self, plan: Plan) -> None:
        """Serve `plan` from now on; of its endpoints nothing is known until it is told."""
        fresh, now_s = adapters(plan), self._clock.now_s()
        self._states = {i.name: State(i, fresh[i.name], Health(Thresholds()), now_s) for i in plan.instances}
        self._engines |= fresh
        self._models = tuple(sorted({i.model for i in plan.instances}))
        self._changed()

    def told(self, views: Iterable[Sequence[Any]]) -> None:
        """Take endpoints as `view` gives them."""
        moved = False
        for one in views:
            name, ready, incarnation, facts, since_s, shuns, cap, load, total, heard_s = one
            state = self._states.get(name)
            if state is None:
                continue
            self._heard[name] = heard_s
            before = (state.joined, state.incarnation, dict(state.learned), state.shuns, state.cap)
            another = bool(state.incarnation) and state.incarnation != incarnation
            state.joined, state.incarnation, state.cap = ready, incarnation, cap
            state.learned, state.since_s = MappingProxyType(facts), since_s
            state.shuns = frozenset(shuns)
            if load is not None:
                at_s, running, waiting, used = load
                state.load = Load(at_s, running, waiting, used, total)
            state.changed()
            self._snapshot = None
            if another:
                self._tell(self._on_incarnation, name)
            moved |= before != (ready, incarnation, facts, state.shuns, cap)
        if moved:
            self._changed()

    def hung(self, endpoint_id: str, why: str) -> None:
        """The engine there was found to hang."""
        for callback in self._on_hung:
            callback(endpoint_id, why)

    def snapshot(self, now_s: float) -> Snapshot:
        """Every endpoint as it was last told."""
        if self._snapshot is None:
            views = tuple(state.endpoint() for state in self._states.values())
            self._snapshot = Snapshot(at_s=now_s, endpoints=views, unix_s=self._clock.wall_s())
        return self._snapshot

    def get(self, endpoint_id: str) -> Endpoint | None:
        """One endpoint; None if the plan has no such instance."""
        state = self._states.get(endpoint_id)
        return state.endpoint() if state else None

    def engine(self, endpoint_id: str) -> Engine:
        """The adapter of an endpoint, also of one that was removed while it had legs. Raises KeyError."""
        return self._engines[endpoint_id]

    def models(self) -> tuple[str, ...]:
        """The served model names of the plan, sorted."""
        return self._models

    def moved_s(self, endpoint_id: str) -> float:
        """When it last showed a sign of life to anybody, as far as that was told."""
        return self._heard.get(endpoint_id, -inf)

    def leg_failed(self, endpoint_id: str, error: BaseException) -> None:
        """A leg met trouble at the endpoint below HTTP."""
        self._note(("trouble", endpoint_id, refused(error), str(error)))

    def failed(self, endpoint_id: str) -> None:
        """An engine failed at a leg."""
        self._note(("failed", endpoint_id))

    def well(self, endpoint_id: str) -> None:
        """A leg has been answered there, the first since something went wrong."""
        self._note(("well", endpoint_id))

    def hangs(self, endpoint_id: str, silent_s: float) -> None:
        """It has work, and has shown no sign of life for so long."""
        self._note(("hangs", endpoint_id, silent_s))

    def _changed(self) -> None:
        self._snapshot = None
        for callback in self._on_change:
            callback()


def _plain(value: object) -> object:
    """Of facts, what JSON has no form for."""
    if isinstance(value, set | frozenset):
        return sorted(value)
    if isinstance(value, MappingProxyType):
        return dict(value)
    raise TypeError(f"a fact of type {type(value).__name__} cannot be told to workers")
