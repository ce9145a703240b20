"""One request's life, read top to bottom: who asks, what for, where it goes, its legs, and the one exit."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from random import Random
from typing import Protocol

from orchestrator.core.types import End, Outcome, PathKind
from orchestrator.errors import NoCapacity, Overloaded, RequestError
from orchestrator.router import handover, intake, replies
from orchestrator.router.budget import RetryBudget
from orchestrator.router.desk import Desk
from orchestrator.router.forward import Unit
from orchestrator.router.intake import Ask
from orchestrator.router.offers import Offers, Registry
from orchestrator.router.record import Record
from orchestrator.router.road import Road
from orchestrator.router.rooms import Rooms
from orchestrator.router.settings import Settings
from orchestrator.wire.exchange import Exchange

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 2


class Counts(intake.Counts, Protocol):
    """What lives are counted in; `RouterMetrics` is one."""

    def request_done(self, outcome: Outcome, path: str, model: str) -> None:
        """A request ended."""
        ...

    def stage(self, name: str, seconds: float) -> None:
        """A stage of a request ended."""
        ...


class Dispatch:
    """Takes requests through their lives. `settings` and `road` are replaced by a reload."""

    def __init__(
        self, *, settings: Settings, road: Road, registry: Registry, desk: Desk, counts: Counts, rng: Random
    ) -> None:
        self.settings = settings
        self.road = road
        self.rooms = Rooms(rng)
        self._registry = registry
        self._intake = intake.Intake(registry, Offers(registry, road.clock), counts)
        self._desk = desk
        self._counts = counts
        self._rng = rng
        self._budget = RetryBudget()

    def new_id(self) -> str:
        """An id for a request: 32 hex digits."""
        return f"{self._rng.getrandbits(128):032x}"

    async def serve(self, exchange: Exchange, kind: PathKind, others: int) -> None:
        """Answer one request for engines, whatever happens; `others` are under way beside it.

        Cancelled when the client leaves, or to end it when the router stops.
        """
        record = Record(
            id=self.new_id(),
            kind=kind,
            arrived_s=self.road.clock.now_s(),
            client_id=exchange.header(replies.CLIENT_ID),
        )
        try:
            record.tenant = self.settings.clients.tenant(exchange)
            if others >= self.settings.limits.max_inflight:
                message = f"{others} requests are under way, the most there may be"
                raise Overloaded(message, reason="too-many-requests", retry_after_s=1.0)
            ask = self._intake.read(exchange, record, self.settings)
            await self._route(exchange, record, ask)
        except RequestError as error:
            self._fail(exchange, record, error)
        except asyncio.CancelledError:
            if exchange.closed:
                record.cancelled(exchange.started)
            elif not exchange.ended:
                # The router stops and could not wait for this one.
                self._fail(exchange, record, NoCapacity("the router is stopping", reason="draining"))
        except Exception:
            log.exception("a request failed on a bug", extra={"request_id": record.id})
            self._fail(exchange, record, RequestError("internal error", reason="internal"))
        finally:
            self._close(record)

    async def _route(self, exchange: Exchange, record: Record, ask: Ask) -> None:
        """Get a route and run the legs; once more elsewhere if they have run nowhere."""
        self._budget.earn()
        request = ask.view
        while True:
            record.attempts += 1
            record.submitted = True
            assign = await self._desk.assign(request)
            record.assigned(assign.route, self.road.clock.now_s())
            self._counts.stage("queue", record.stages["queue"])
            legs = handover.plan(self._registry, ask, assign.route)
            rooms = self.rooms.take(sum(legs.rooms))
            try:
                items = legs.items(exchange.path, record, ask, rooms.start)
                unit = Unit(self.road, record, handover.answer(exchange, record, ask, len(items)), items)
                if await self._run(unit, exchange, record):
                    return
            finally:
                self.rooms.free(rooms)
            request = replace(request, avoid=(*request.avoid, *unit.failed_at))

    async def _run(self, unit: Unit, exchange: Exchange, record: Record) -> bool:
        """Run the legs; False when they have failed in a way that another attempt may follow."""
        try:
            await unit.run()
        except RequestError as error:
            untouched = unit.safe_to_repeat and not exchange.started
            if not untouched or record.attempts == MAX_ATTEMPTS or not self._budget.spend():
                raise
            record.failed(error, begun=False)
            self._desk.finish(record.outcome(self.road.clock.now_s()))
            record.again()
            return False
        record.usage = unit.usage()
        return True

    def _fail(self, exchange: Exchange, record: Record, error: RequestError) -> None:
        """Tell the client: an HTTP error while that is possible, else an event and no final mark."""
        record.failed(error, exchange.started)
        if not exchange.started:
            headers = (*replies.identity(record.id, record.client_id), *replies.error_headers(error))
            exchange.respond(error.http_status, replies.error_body(error), headers)
        elif not exchange.ended:
            exchange.write(replies.error_event(error))
            exchange.end()

    def _close(self, record: Record) -> None:
        """The one exit: whatever became of the request, everyone who keeps books is told here."""
        outcome = record.outcome(self.road.clock.now_s())
        if record.submitted:
            self._desk.finish(outcome)
        self._counts.request_done(outcome, record.kind, record.model)
        level = logging.WARNING if outcome.end in (End.FAILED, End.BROKEN) else logging.DEBUG
        if log.isEnabledFor(level):
            log.log(level, "request %s", outcome.end, extra=record.fields(outcome))
