"""Runs the legs of one request as one unit: they start, are relayed, fail and end together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from orchestrator.core.types import End, LegEvent, LegKind, PathKind
from orchestrator.engines.base import HandoffFailed, Leg
from orchestrator.errors import LegFailed, NoCapacity, RequestError
from orchestrator.router.answer import Answer
from orchestrator.router.legs import Call, Item, leg_name
from orchestrator.router.record import Record
from orchestrator.router.road import Place, Road
from orchestrator.router.stages import overdue
from orchestrator.router.stream import Stream, Usage, is_error, unfit
from orchestrator.wire.client import ConnectError, Connection, Progress, WireError, request_head
from orchestrator.wire.exchange import Exchange

log = logging.getLogger(__name__)

NEEDS_DONE = frozenset((PathKind.CHAT, PathKind.COMPLETION, PathKind.GENERATE))
"""Kinds whose streams say `[DONE]` when nothing is missing; the others end by their last event."""

LATE_LEG_S = 10.0
"""How long a leg may still answer once the client has everything; then it is aborted."""


class Unit:
    """The legs of one request, of all its items.

    A leg that fails before its item has begun fails the unit, and every other leg is aborted at once: its
    connection closed, and the engine told where it has a call for that. Callbacks do all of the work; the
    request's own task sleeps in `run` but for connecting.
    """

    def __init__(self, road: Road, record: Record, answer: Answer, items: Sequence[Item]) -> None:
        self._road = road
        self._record = record
        self._answer = answer
        self._items = items
        self._calls: dict[Call, None] = {}
        self._due: list[tuple[int, Leg]] = []
        self._failure: RequestError | None = None
        self._over_s: float | None = None
        self._wake: asyncio.Future[None] | None = None
        self.failed_at: tuple[str, ...] = ()
        """The endpoint whose leg failed the unit, if it was one's."""
        self.safe_to_repeat = False
        """The failed unit has run nowhere: it was never sent, or the engine ended it before it began."""

    @property
    def exchange(self) -> Exchange:
        """The client's exchange."""
        return self._answer.exchange

    async def run(self) -> None:
        """Until every leg is over. Raises RequestError when the client's answer cannot be completed.

        Cancelling it (the client left) aborts every leg.
        """
        exchange = self.exchange
        exchange.on_pause, exchange.on_resume = self._pause, self._resume
        self._road.watch.add(self)
        try:
            for place, item in enumerate(self._items):
                self._due += ((place, leg) for leg in item.machine.start())
            while True:
                if self._due:
                    await self._launch()
                if self._failure is not None:
                    raise self._failure
                if self._finished():
                    return
                if not self._due:
                    self._wake = asyncio.get_running_loop().create_future()
                    await self._wake
        finally:
            self._road.watch.discard(self)
            exchange.on_pause = exchange.on_resume = None
            self._abort()

    async def _launch(self) -> None:
        """Connect all legs that are due, then send them: a dead peer is found before anything runs."""
        road = self._road
        due, self._due = self._due, []
        ready: list[tuple[Place, Connection]] = []
        try:
            for _, leg in due:
                place = road.place(leg.endpoint)
                connection = road.pool.take(place.host, place.port)
                if connection is None:
                    connection = await road.pool.acquire(place.host, place.port, place.idle_s)
                ready.append((place, connection))
        except ConnectError as error:
            road.trouble(leg.endpoint, error)
            road.counts.leg_done(leg.kind, leg.endpoint, error.reason)
            self.safe_to_repeat = True
            self._fail(LegFailed(f"{leg_name(leg)}: {error}", reason=error.reason), leg.endpoint)
        finally:
            # Cancelled, failed, or another leg has failed meanwhile.
            if len(ready) < len(due) or self._failure is not None:
                for _, connection in ready:
                    connection.unused()
        if self._failure is None:
            for (item, leg), (place, connection) in zip(due, ready, strict=True):
                self._send(item, leg, place, connection)

    def _send(self, item: int, leg: Leg, place: Place, connection: Connection) -> None:
        road = self._road
        now_s = road.clock.now_s()
        headers = leg.headers if road.key is None else (*leg.headers, ("authorization", f"Bearer {road.key}"))
        call = Call(self, item, leg, place, connection, now_s)
        self._calls[call] = None
        head = request_head("POST", leg.path, place.authority, headers, sum(map(len, leg.body)))
        connection.send(head, leg.body, call)
        if leg.relay and self.exchange.paused:
            connection.pause()
        self._tell(leg, "sent", now_s)

    def usage(self) -> Usage:
        """The tokens of the whole request."""
        return self._answer.usage([item.usage() for item in self._items])

    # -- what the calls tell

    def streamed(self, call: Call, stream: Stream, events: bytes) -> None:
        """Pass events on; a failure or the final mark that came with them follows."""
        if self._items[call.item].done:
            return
        if events:
            now_s = self._road.clock.now_s()
            if call.last_s is None:
                self._begin(call, now_s)
            else:
                self._road.counts.itl(now_s - call.last_s)
            call.last_s = now_s
            try:
                self._answer.events(call.item, call.headers, events)
            except LegFailed as error:
                self._end(call, error)
                return
        if stream.refused is not None:
            self._end(call, stream.refused)
        elif stream.engine_error is not None:
            told = stream.engine_error
            self._end(call, call.place.engine.map_error(told.status, told.body))
        elif stream.done:
            # Clients hang up at this mark, before the engine has ended its body: nothing is missing then.
            self._settle(call, stream)

    def stream_ended(self, call: Call, stream: Stream) -> None:
        """The relayed stream is over: complete, or cut short without saying so."""
        if stream.failed:
            return
        if not self._items[call.item].done:
            if not stream.begun or self._record.kind in NEEDS_DONE:
                message = f"{leg_name(call.leg)}: the engine ended its stream before it was complete"
                self._end(call, LegFailed(message, reason="stream-truncated"))
                return
            self._settle(call, stream)
        self._drop(call, "ok")
        self._nudge()

    def answered(self, call: Call, body: bytes) -> None:
        """A gathered answer is whole: the client's, an error, or a step of the hand-off."""
        leg, item = call.leg, self._items[call.item]
        if not leg.relay:
            self._stepped(call, body)
            return
        if is_error(call.status, body):
            self._end(call, call.place.engine.map_error(call.status, body))
            return
        failure = unfit(self._record.kind, call.status, body)
        if failure is not None:
            self._end(call, failure)
            return
        if item.merges:
            item.relayed = (call, body)
            self._drop(call, "ok")
            self._merge(item)
            return
        self._relay(call, body)

    def crashed(self, call: Call, error: Exception) -> None:
        """A bug, ours or an adapter's, costs this request and no other."""
        log.error("forwarding failed", exc_info=error, extra={"request_id": self._record.id})
        self._end(call, RequestError("internal error", reason="internal"))

    def dropped(self, call: Call, error: Exception) -> None:
        """The connection failed under a leg, or its answer cannot be used."""
        if self._items[call.item].done and call.leg.relay:
            self._drop(call, "ok")
            self._nudge()
            return
        reason = error.reason if isinstance(error, WireError) else "bad-answer"
        self._road.trouble(call.leg.endpoint, error)
        if isinstance(error, WireError) and error.progress is Progress.NOTHING_SENT:
            self.safe_to_repeat = True
        self._end(call, LegFailed(f"{leg_name(call.leg)}: {error}", reason=reason))

    # -- what follows from it

    def _begin(self, call: Call, now_s: float) -> None:
        record, item = self._record, self._items[call.item]
        item.begun = True
        if record.first_s is None:
            record.first_s = now_s
            self._road.counts.ttft(now_s - record.arrived_s)
            self._stage("first_token", now_s - max(call.sent_s, item.fed_s))
        self._tell_begun(call.leg, now_s)

    def _stepped(self, call: Call, body: bytes) -> None:
        """A leg that is not relayed has answered: what the machine makes of it."""
        leg, item = call.leg, self._items[call.item]
        now_s = self._road.clock.now_s()
        step = item.machine.on_response(leg.kind, call.status, body)
        if isinstance(step, HandoffFailed):
            self._end(call, step.error)
            return
        self._drop(call, "ok")
        item.fed_s = now_s
        if leg.kind is LegKind.PREFILL:
            self._stage("prefill", now_s - call.sent_s)
            item.prefill_body = body if item.merges else None
        if len(self._items) == 1 or all(one.fed_s for one in self._items):
            self._tell(leg, "done", now_s)
        if isinstance(step, tuple):
            self._due += ((call.item, next_leg) for next_leg in step)
        self._merge(item)
        self._nudge()

    def _merge(self, item: Item) -> None:
        if item.relayed is None or item.prefill_body is None or self._failure is not None:
            return
        call, body = item.relayed
        item.relayed = None
        try:
            merged = call.place.engine.merge(self._record.kind, item.prefill_body, body)
        except LegFailed as error:
            self._fail(error, call.leg.endpoint)
            return
        self._relay(call, merged)

    def _relay(self, call: Call, body: bytes) -> None:
        self._answer.whole(call.item, call.status, call.headers, body)
        self._items[call.item].body = body
        self._drop(call, "ok")
        self._complete(call)

    def _settle(self, call: Call, stream: Stream) -> None:
        """A relayed stream has brought all that it has."""
        if stream.ended_badly():
            # The client has been told by the finish reason; the books should say so too.
            self._record.end, self._record.reason = End.BROKEN, "engine-aborted"
        self._items[call.item].stream = stream
        self._complete(call)

    def _complete(self, call: Call) -> None:
        """The client has all of an item; its answer ends with the last of them."""
        item = self._items[call.item]
        if not item.begun:
            item.begun = True
            self._tell_begun(call.leg, self._road.clock.now_s())
        item.done = True
        if len(self._items) > 1 and not all(one.done for one in self._items):
            return
        try:
            self._answer.end()
        except LegFailed as error:
            self._fail(error, call.leg.endpoint)
            return
        self._over_s = self._record.ended_s = self._road.clock.now_s()
        self._nudge()

    def _end(self, call: Call, error: RequestError) -> None:
        """A leg has failed; one that only served to begin its item's answer may, once that has begun."""
        self._drop(call, error.reason)
        self._tell(call.leg, "failed", self._road.clock.now_s())
        if call.leg.relay or not self._items[call.item].begun:
            self.safe_to_repeat |= isinstance(error, NoCapacity)
            self._fail(error, call.leg.endpoint)
        self._nudge()

    def _fail(self, error: RequestError, endpoint: str | None) -> None:
        if self._failure is None and self._over_s is None:
            self._failure = error
            self.failed_at = () if endpoint is None else (endpoint,)
            self._due.clear()
            self._abort()
        self._nudge()

    def _drop(self, call: Call, result: str) -> None:
        """The call is over, well or badly."""
        if call in self._calls:
            del self._calls[call]
            self._road.counts.leg_done(call.leg.kind, call.leg.endpoint, result)
            if result != "ok":
                call.abort()

    def _abort(self) -> None:
        """End every leg that still runs: nobody wants its answer."""
        road = self._road
        for call in tuple(self._calls):
            self._drop(call, "aborted")
            hang_up = call.place.engine.abort(call.leg)
            if hang_up is not None:
                road.hang_up(call.place, hang_up)

    # -- time

    def check(self, now_s: float) -> None:
        """Fail the unit if one of its stages is past its deadline."""
        if self._over_s is not None:
            if now_s - self._over_s > LATE_LEG_S:
                self._abort()
                self._nudge()
            return
        late = overdue(
            self._calls, self._items, self._record, self.exchange.paused, self._road.timeouts, now_s
        )
        if late is not None:
            self._fail(late.error, late.endpoint)

    def _pause(self) -> None:
        for call in self._calls:
            if call.leg.relay:
                call.connection.pause()

    def _resume(self) -> None:
        now_s = self._road.clock.now_s()
        for call in self._calls:
            if call.leg.relay:
                call.connection.resume()
                if call.last_s is not None:
                    call.last_s = now_s

    # -- telling others

    def _tell_begun(self, leg: Leg, now_s: float) -> None:
        if len(self._items) == 1 or all(one.begun for one in self._items):
            self._tell(leg, "first_token", now_s)

    def _tell(self, leg: Leg, what: str, at_s: float) -> None:
        if what in self._road.heeds:
            self._road.progress(LegEvent(self._record.id, leg.kind, leg.endpoint, what, at_s))

    def _stage(self, name: str, seconds: float) -> None:
        self._record.stages[name] = seconds
        self._road.counts.stage(name, seconds)

    def _nudge(self) -> None:
        """Wake the request's task, if there is something for it to do."""
        if not (self._due or self._failure is not None or self._finished()):
            return
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def _finished(self) -> bool:
        """The client has everything, and no leg runs."""
        return self._over_s is not None and not self._calls
