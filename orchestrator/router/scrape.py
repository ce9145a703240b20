"""The prober: one task per endpoint that asks it whether it is ready, who it is, and how loaded."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

from orchestrator.clock import Clock
from orchestrator.core.types import Role
from orchestrator.engines.base import HttpCall, NotYet
from orchestrator.router.ask import Reply, TooLong, ask, refused
from orchestrator.router.endpoints import Registry
from orchestrator.router.health import Answer
from orchestrator.router.state import State
from orchestrator.wire.client import BadAnswer, Pool, WireError

log = logging.getLogger(__name__)

SHOWN_BYTES = 200
"""How much of an engine's error answer is shown to people."""


class Counts(Protocol):
    """What the prober reports to; `RouterMetrics` is one."""

    def probe_error(self, endpoint: str, call: str, why: str) -> None:
        """A probe, discovery call or load read failed."""
        ...


@dataclass(frozen=True, slots=True)
class Cadence:
    """How often an endpoint is asked, in seconds.

    While it is out: every `out_s` at first, stretching with the time it has been out to at most
    `ready_s`. While it is ready: readiness and load every `ready_s`. Each pause is stretched or shrunk
    by up to `jitter` of itself, so that a fleet is not asked in one instant. `floor_s` bounds how fast
    hints can make it ask.
    """

    out_s: float = 0.2
    ready_s: float = 1.0
    jitter: float = 0.1
    floor_s: float = 0.05


@dataclass(slots=True)
class _Watch:
    state: State
    task: asyncio.Task[None]
    wake: asyncio.Event


class Prober:
    """Keeps the registry informed; endpoints never wait for each other.

    `key` is the engines' API key, sent with every call. Start it with `sync`, and call that again
    after each `Registry.apply`.
    """

    def __init__(
        self,
        registry: Registry,
        pool: Pool,
        counts: Counts,
        clock: Clock,
        rng: Random,
        key: str | None = None,
        cadence: Cadence = Cadence(),
    ) -> None:
        self._registry = registry
        self._pool = pool
        self._counts = counts
        self._clock = clock
        self._rng = rng
        self._cadence = cadence
        self._watches: dict[str, _Watch] = {}
        self._told: dict[tuple[str, str], str] = {}
        self._polls: dict[str, asyncio.Task[None]] = {}
        self.key = key
        registry.on_suspect(self._suspect)

    def sync(self) -> None:
        """Watch exactly the endpoints that the registry has now."""
        current = {s.plan.name: s for s in self._registry.states()}
        for name, watch in tuple(self._watches.items()):
            if current.get(name) is not watch.state:
                watch.task.cancel()
                del self._watches[name]
                self._told = {key: slug for key, slug in self._told.items() if key[0] != name}
        for name, state in current.items():
            if name not in self._watches:
                wake = asyncio.Event()
                task = asyncio.create_task(self._watch(state, wake), name=f"probe {name}")
                self._watches[name] = _Watch(state, task, wake)

    def poll(self, endpoint_id: str) -> None:
        """Read an endpoint's load now, beside the round that it is due for; one such read at a time."""
        state = self._registry.state(endpoint_id)
        if state is None or not state.joined or endpoint_id in self._polls:
            return
        task = asyncio.create_task(self._load(state), name=f"poll {endpoint_id}")
        self._polls[endpoint_id] = task
        task.add_done_callback(lambda _: self._polls.pop(endpoint_id, None))

    async def close(self) -> None:
        """Stop asking."""
        tasks = [*(w.task for w in self._watches.values()), *self._polls.values()]
        self._watches.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def call(self, endpoint_id: str, call: HttpCall) -> Reply:
        """Perform one call of an adapter on an endpoint. Raises KeyError, and what `ask` raises."""
        state = self._registry.state(endpoint_id)
        if state is None:
            raise KeyError(endpoint_id)
        return await ask(self._pool, state.plan.url, call, self.key)

    def _suspect(self, endpoint_id: str) -> None:
        if endpoint_id in self._watches:
            self._watches[endpoint_id].wake.set()

    async def _watch(self, state: State, wake: asyncio.Event) -> None:
        while True:
            started_s = self._clock.now_s()
            try:
                await self._round(state)
            except Exception as error:
                # An adapter may be a user's own file: its bug must not end the watch over its endpoint.
                log.exception("the engine adapter failed", extra={"endpoint": state.plan.name})
                self._registry.not_yet(state.plan.name, f"the engine adapter failed: {error!r}")
                self._counts.probe_error(state.plan.name, "adapter", "bug")
            try:
                async with asyncio.timeout(self._pause_s(state)):
                    await wake.wait()
            except TimeoutError:
                continue
            wake.clear()
            await asyncio.sleep(started_s + self._cadence.floor_s - self._clock.now_s())

    def _pause_s(self, state: State) -> float:
        cadence = self._cadence
        pause_s = cadence.ready_s
        if not state.joined:
            out_s = self._clock.now_s() - state.since_s
            pause_s = min(cadence.ready_s, max(cadence.out_s, out_s / 100))
        return pause_s * (1 + cadence.jitter * (2 * self._rng.random() - 1))

    async def _round(self, state: State) -> None:
        name = state.plan.name
        answer, why = await self._ready(state)
        if self._registry.answered(name, answer, why):
            learned = await self._discover(state)
            if learned is not None:
                self._registry.join(name, learned)
        # An encoder works for other engines, not for the router: it is watched, and not weighed.
        if state.joined and state.plan.role is not Role.ENCODE:
            await self._load(state)

    async def _ready(self, state: State) -> tuple[Answer, str]:
        for call in state.plan.probes.ready:
            reply, answer, why = await self._ask(state, "ready", call)
            if reply is None:
                return answer, why
        self._recovered(state, "ready")
        return Answer.OK, ""

    async def _discover(self, state: State) -> Mapping[str, Any] | None:
        facts: dict[str, Any] = dict(state.plan.facts)
        learned: dict[str, Any] = {}
        for name, call in state.engine.discover(state.plan.role, facts).items():
            try:
                reply = await ask(self._pool, state.plan.url, call, self.key)
            except (TimeoutError, WireError, TooLong) as error:
                _, slug, why = _fault(error)
                self._failed(state, name, slug, f"{_shown(call)}: {why}")
                self._registry.not_yet(state.plan.name, f"discovery {name}: {why}")
                return None
            try:
                told = state.engine.learn(name, reply.status, reply.body)
            except ValueError as error:
                self._failed(state, name, "garbage", f"{_shown(call)}: {error}")
                told = NotYet(f"its answer cannot be read: {error}")
            if isinstance(told, NotYet):
                self._registry.not_yet(state.plan.name, f"discovery {name}: {told.why}")
                return None
            self._recovered(state, name)
            learned.update(told)
        return learned

    async def _load(self, state: State) -> None:
        name, call = state.plan.name, state.engine.load_call()
        reply, _, _ = await self._ask(state, "load", call)
        # It may have left, or been taken off, while it was being asked.
        if reply is None or not state.joined:
            return
        try:
            load = state.engine.load(reply.body, {**state.plan.facts, **state.learned}, self._clock.now_s())
        except ValueError as error:
            self._failed(state, "load", "garbage", f"{_shown(call)}: {error}")
            return
        self._recovered(state, "load")
        self._registry.loaded(name, load)

    async def _ask(self, state: State, what: str, call: HttpCall) -> tuple[Reply | None, Answer, str]:
        """The reply if it is 200; otherwise what that says of the engine, and why in words."""
        try:
            reply = await ask(self._pool, state.plan.url, call, self.key)
        except (TimeoutError, WireError, TooLong) as error:
            answer, slug, why = _fault(error)
        else:
            if reply.status == 200:
                return reply, Answer.OK, ""
            answer, slug, why = _refusal(reply)
        why = f"{_shown(call)}: {why}"
        self._failed(state, what, slug, why)
        return None, answer, why

    def _failed(self, state: State, what: str, slug: str, why: str) -> None:
        """Count every failure; log one that repeats only once."""
        key = (state.plan.name, what)
        self._counts.probe_error(state.plan.name, what, slug)
        if self._told.get(key) != slug:
            self._told[key] = slug
            level = logging.WARNING if state.joined else logging.INFO
            log.log(level, "probe failed", extra={"endpoint": state.plan.name, "call": what, "why": why})

    def _recovered(self, state: State, what: str) -> None:
        self._told.pop((state.plan.name, what), None)


def _shown(call: HttpCall) -> str:
    port = f" on port {call.port}" if call.port is not None else ""
    return f"{call.method} {call.path.partition('?')[0]}{port}"


def _fault(error: BaseException) -> tuple[Answer, str, str]:
    if isinstance(error, TimeoutError):
        return Answer.SLOW, "slow", "no answer in time"
    if refused(error):
        return Answer.REFUSED, "refused", "connection refused"
    if isinstance(error, TooLong):
        return Answer.FAILING, "too-large", str(error)
    if isinstance(error, BadAnswer):
        return Answer.FAILING, "garbage", str(error)
    return Answer.FAILING, "unreachable", str(error)


def _refusal(reply: Reply) -> tuple[Answer, str, str]:
    said = reply.body[:SHOWN_BYTES].decode("utf-8", "replace").strip()
    said = "".join(c if c.isprintable() else " " for c in said)
    why = f"status {reply.status}" + (f": {said}" if said else "")
    if reply.status in (401, 403):
        why += " (is the engine key of the plan the one that it demands?)"
    slug = f"http-{reply.status}"
    if reply.status == 503:
        return Answer.UNAVAILABLE, slug, why
    return (Answer.FAILING if reply.status >= 500 else Answer.REJECTED), slug, why
