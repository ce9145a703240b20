"""Runs slices: a part of a waiting request's prompt is computed, and nobody but its life hears of it."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable
from typing import Protocol

from orchestrator.core.decisions import Slice
from orchestrator.core.types import LegEvent, LegKind
from orchestrator.engines.base import Handoff, HandoffRequest, Leg
from orchestrator.engines.kv import Parts
from orchestrator.errors import LegFailed, RequestError
from orchestrator.router.answer import Single
from orchestrator.router.forward import Unit
from orchestrator.router.intake import Ask
from orchestrator.router.legs import Call, Item
from orchestrator.router.offers import Registry
from orchestrator.router.record import Record
from orchestrator.router.road import Road
from orchestrator.wire.exchange import Exchange

log = logging.getLogger(__name__)

TOKEN_BYTES = 4

STAGE = "slices"
"""The stage of a request in which parts of its prompt are computed before it has its route."""


class Part(Unit):
    """The legs of one slice: a unit with its deadlines and hang detection, that is relayed to nobody."""

    __slots__ = ()

    def _fed(self, call: Call, body: bytes) -> None:
        self._drop(call, "ok")
        self._road.heard(call.leg.endpoint, call.sent_s, self._road.clock.now_s())
        if not self._calls and not self._due:
            self.stop()
            self._over()

    def _tell(self, leg: Leg, what: str, at_s: float) -> None:
        """The life tells, once for all legs."""


class Tells(Protocol):
    """Whoever tells the scheduler; the desk."""

    def progress(self, event: LegEvent) -> None:
        """Tell of a leg's progress."""
        ...


class Holds(Protocol):
    """Whoever has the tokens of prompts that may go in slices."""

    def of(self, request_id: str) -> bytes | None:
        """Those of a request, packed as `kvevents.pack` does."""
        ...


class Home(Protocol):
    """What all requests share, of which slices need this; `dispatch.Dispatch` is one."""

    @property
    def road(self) -> Road:
        """What every unit shares."""
        ...

    @property
    def registry(self) -> Registry:
        """Endpoints and their engines."""
        ...

    @property
    def desk(self) -> Tells:
        """Whom to tell."""
        ...

    @property
    def tokens(self) -> Holds | None:
        """None where nobody asks for tokens."""
        ...


class Pieces:
    """The slices of one request, one after the other.

    `blame` is told why a slice failed, and at which endpoint. What a failed one costs is time: the rest of
    the prompt goes whole.
    """

    def __init__(
        self,
        home: Home,
        exchange: Exchange,
        record: Record,
        ask: Ask,
        blame: Callable[[RequestError, tuple[str, ...]], None],
    ) -> None:
        self._road = home.road
        self._registry = home.registry
        self._desk = home.desk
        self._exchange = exchange
        self._record = record
        self._ask = ask
        self._tokens = None if home.tokens is None else home.tokens.of(record.id)
        self._blame = blame
        self._part: Part | None = None
        self._where = ""

    def send(self, piece: Slice) -> None:
        """Send a slice on its way."""
        record = self._record
        self._where = piece.route.prefill or piece.route.decode
        # Its own account: what it does with its legs is no stage of the request's answer.
        own = Record(record.id, record.kind, record.arrived_s)
        try:
            item = Item(_machine(self._registry, record, self._ask, piece, self._tokens))
            self._part = Part(self._road, own, Single(self._exchange, own), [item], self._over, self._failed)
            self._part.start()
        except RequestError as error:
            self._failed(error)

    def stop(self) -> None:
        """Nobody wants what is under way any more."""
        part, self._part = self._part, None
        if part is not None:
            part.stop()

    def _over(self) -> None:
        self._end("done")

    def _failed(self, error: RequestError) -> None:
        self._blame(error, () if self._part is None else self._part.failed_at)
        fields = {"request_id": self._record.id, "reason": error.reason, "why": error.message}
        log.info("a slice failed", extra=fields)
        self._end("failed")

    def _end(self, what: str) -> None:
        self._part = None
        now_s = self._road.clock.now_s()
        self._road.counts.stage(STAGE, self._record.mark(STAGE, now_s))
        self._desk.progress(LegEvent(self._record.id, LegKind.PREFILL, self._where, what, now_s))


def _machine(registry: Registry, record: Record, ask: Ask, piece: Slice, tokens: bytes | None) -> Handoff:
    route = piece.route
    where = registry.get(route.prefill or route.decode)
    if where is None or tokens is None or len(tokens) < TOKEN_BYTES * piece.tokens:
        raise LegFailed("a part of its prompt cannot be sent", reason="no-slice")
    engine = registry.engine(where.id)
    if not isinstance(engine, Parts):
        raise LegFailed("its engine computes no parts of prompts", reason="no-slice")
    ids = array("I")
    ids.frombytes(tokens[: TOKEN_BYTES * piece.tokens])
    request = HandoffRequest(
        request_id=record.id,
        path="",
        kind=record.kind,
        body=ask.body,
        stream=False,
        room=0,
        decode=where,
        attempt=record.attempts - 1,
        headers=ask.headers,
    )
    return engine.part(request, record.model, ids.tolist(), piece.number)
