"""What every unit of legs shares: where endpoints are, and whom to tell what happens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from orchestrator.clock import Clock
from orchestrator.core.frozen import frozen
from orchestrator.core.hang import Signs
from orchestrator.core.types import LegEvent
from orchestrator.engines.base import Engine, HttpCall, Leg
from orchestrator.topology.plan import Timeouts
from orchestrator.wire.client import Pool

if TYPE_CHECKING:
    from orchestrator.router.forward import Unit
    from orchestrator.router.givenup import Orphans


class Counts(Protocol):
    """What units count; `RouterMetrics` is one."""

    itl: Callable[[float], None]

    def ttft(self, seconds: float, slo_class: str) -> None:
        """The first event of a stream was passed on, `seconds` after its request had come."""
        ...

    def leg_done(self, leg: str, endpoint: str, result: str) -> None:
        """An engine call ended; `result` is `ok` or a reason slug."""
        ...

    def stage(self, name: str, seconds: float) -> None:
        """A stage of a request ended."""
        ...


@frozen(frozen=True, slots=True)
class Place:
    """Where an endpoint's legs go: its address, how long connections keep, and its adapter."""

    endpoint: str
    host: str
    port: int
    authority: str
    idle_s: float
    engine: Engine


PROGRESS = frozenset(("sent", "first_token", "done", "failed"))
"""All that a `LegEvent` may tell."""


MAX_HEADS = 512
"""Heads of requests to engines that are kept. Some engines are told a request's id in a header."""


class Road:
    """What every unit shares; nothing of it is replaced.

    `place` finds an endpoint's Place, or raises NoCapacity; `progress` tells the scheduler; `hang_up`
    performs an engine's abort call and forgets it; `trouble` tells the registry that an endpoint failed
    below HTTP. `key` is the engines' API key. `heeds` is what of a leg's progress the scheduler is told.
    `orphans` takes legs that go on without their unit, `connects` are the tasks in which connections are
    being made. `well` tells the registry that an endpoint that had failed has answered; `signs` is what each
    has shown.
    """

    __slots__ = (
        "_heads", "clock", "connects", "counts", "hang_up", "heeds", "key", "orphans", "place", "pool",
        "progress", "signs", "timeouts", "trouble", "watch", "well",
    )  # fmt: skip

    def __init__(
        self,
        *,
        pool: Pool,
        clock: Clock,
        timeouts: Timeouts,
        counts: Counts,
        place: Callable[[str], Place],
        progress: Callable[[LegEvent], None],
        hang_up: Callable[[Place, HttpCall], None],
        trouble: Callable[[str, BaseException], None],
        watch: set[Unit],
        orphans: Orphans,
        key: str | None,
        well: Callable[[str], None],
        signs: dict[str, Signs],
        heeds: frozenset[str] = PROGRESS,
        connects: set[asyncio.Task[None]] | None = None,
    ) -> None:
        self.pool = pool
        self.clock = clock
        self.timeouts = timeouts
        self.counts = counts
        self.place = place
        self.progress = progress
        self.hang_up = hang_up
        self.trouble = trouble
        self.watch = watch
        self.orphans = orphans
        self.key = key
        self.well = well
        self.signs = signs
        self.heeds = heeds
        self.connects: set[asyncio.Task[None]] = set() if connects is None else connects
        self._heads: dict[tuple[str, str, tuple[tuple[str, str], ...]], bytes] = {}

    def signs_of(self, endpoint: str) -> Signs:
        """What the endpoint has shown in this life."""
        signs = self.signs.get(endpoint)
        if signs is None:
            signs = self.signs[endpoint] = Signs()
        return signs

    def heard(self, endpoint: str, sent_s: float, now_s: float) -> None:
        """A leg sent at `sent_s` has brought its answer, or its first token."""
        signs = self.signs_of(endpoint)
        signs.heard(sent_s, now_s)
        if signs.failing:
            signs.failing = False
            self.well(endpoint)

    def head(self, place: Place, leg: Leg) -> bytes:
        """The head of the request that starts `leg` at `place`."""
        key = (place.authority, leg.path, leg.headers)
        head = self._heads.get(key)
        if head is None:
            if len(self._heads) >= MAX_HEADS:
                self._heads.clear()
            head = self._heads[key] = self._begin(place, leg)
        return b"%b%d\r\n\r\n" % (head, sum(map(len, leg.body)))

    def _begin(self, place: Place, leg: Leg) -> bytes:
        """A head but for the length, which is all that differs where headers name no request."""
        head = f"POST {leg.path} HTTP/1.1\r\nhost: {place.authority}\r\n"
        for name, value in leg.headers:
            head += f"{name}: {value}\r\n"
        if self.key is not None:
            head += f"authorization: Bearer {self.key}\r\n"
        return f"{head}content-length: ".encode("latin-1")
