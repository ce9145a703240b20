"""Runs the legs of one attempt at a request as one unit: they start, are relayed, fail and end together."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

from orchestrator.core.hang import Overdue
from orchestrator.core.types import End, Endpoint, LegKind, PathKind
from orchestrator.engines.base import HandoffFailed
from orchestrator.errors import LegFailed, RequestError
from orchestrator.router import connects, givenup
from orchestrator.router.attempt import Attempt
from orchestrator.router.connects import Due, Ready
from orchestrator.router.legs import Call, Item, fault, leg_name, pause, resume
from orchestrator.router.stages import look
from orchestrator.router.stream import Stream
from orchestrator.wire.client import Progress, WireError

log = logging.getLogger(__name__)

NEEDS_DONE = frozenset((PathKind.CHAT, PathKind.COMPLETION, PathKind.GENERATE))
"""Kinds whose streams say `[DONE]` when nothing is missing; the others end by their last event."""

MAX_NAMED = 3
"""Decode sides that are named one after the other for one finished prefill."""

LATE_LEG_S = 10.0
"""How long a leg may still answer once the client has everything; then it is aborted."""


class Unit(Attempt):
    """The legs of one attempt, of all its items.

    A leg that fails before its item has begun fails the unit, and every other leg is aborted at once: its
    connection closed, and the engine told where it has a call for that. There is no task: callbacks do all
    of the work, `_go_on` is the last act of each, and the end is told once, by `over` or `broke`, unless
    `stop` came first. Only a connection that must be made first is waited for, in a task of its own.
    `late`: who decodes is told by `bound`, once prefill is done.
    """

    __slots__ = ()

    def start(self) -> None:
        """Start the legs. Raises what an adapter raises when it cannot."""
        for place, item in enumerate(self._items):
            for leg in item.machine.start():
                self._due.append((place, leg))
        self._road.watch.add(self)
        self._launch()
        self._go_on()

    def stop(self) -> None:
        """Abort every leg: the client left, or nobody waits for the rest. Nothing is told any more."""
        if self.closed:
            return
        self.closed = True
        self._road.watch.discard(self)
        self.exchange.on_pause = self.exchange.on_resume = None
        if self._connecting is not None:
            self._connecting.cancel()
        if self._calls or self._due or self._waiting or self._late:
            self._give_up()

    def _go_on(self) -> None:
        """What follows from what has happened."""
        if self.closed:
            return
        if self._failure is not None:
            self.stop()
            self._broke(self._failure)
        elif self._over_s is not None:
            if not self._calls:
                self.stop()
                self._over()
        elif self._due and self._connecting is None:
            self._launch()
            self._go_on()

    # -- starting legs

    def _launch(self) -> None:
        """Have a connection for every leg that is due before any is sent: a dead peer is found while nothing
        runs."""
        due, self._due = self._due, []
        ready = connects.idle(self._road, due)
        if len(ready) == len(due):
            self._send(due, ready)
        else:
            self._waiting = due
            self._connecting = connects.make(self._road, due, ready, self._connected)

    def _connected(self, due: Due, ready: Ready, failure: RequestError | None, endpoint: str | None) -> None:
        self._connecting = None
        if failure is not None:
            if endpoint is None or not self._name_another(due, failure, endpoint):
                self._fail(failure, endpoint)
        elif self._failure is not None:
            connects.unused(ready)
        else:
            self._waiting = []
            self._send(due, ready)
        self._go_on()

    def _name_another(self, due: Due, why: RequestError, endpoint: str) -> bool:
        """Have another decode side named for a finished prefill that this one was never asked to fetch; False
        if there is none to be named.

        Once a byte of its leg is written, what prefill told may be used up: fetched twice, it may lead to
        another prompt's tokens.
        """
        item = self._items[0]
        if self._another is None or item.unspent is None or self._failure is not None:
            return False
        if len(due) > 1 or len(self._items) > 1 or self._named >= MAX_NAMED:
            return False
        self._waiting = []
        item.held, item.unspent = item.unspent, None
        self._late = True
        self._unreached = (why, endpoint)
        self._named += 1
        self._another(endpoint)
        return True

    def _send(self, due: Due, ready: Ready) -> None:
        road, paused = self._road, self.exchange.paused
        tells = "sent" in road.heeds
        now_s = road.clock.now_s()
        self._look_s = 0.0
        for (item, leg), (place, connection) in zip(due, ready, strict=True):
            call = Call(self, item, leg, place, connection, now_s)
            self._calls[call] = None
            if leg.release is not None:
                self._items[item].unspent = None
            connection.send(road.head(place, leg), leg.body, call)
            if paused and leg.relay:
                connection.pause()
            if tells:
                self._tell(leg, "sent", now_s)
        if self._record.first_s is None:
            self._record.mark("bind" if "prefill" in self._record.stages else "connect", now_s)

    # -- what the calls tell

    def streamed(self, call: Call, stream: Stream, events: bytes) -> None:
        """Pass events on; a failure or the final mark that came with them follows."""
        if self._items[call.item].done:
            return
        if events:
            road = self._road
            now_s = road.clock.now_s()
            if call.last_s is None:
                self._begin(call, now_s)
            else:
                road.counts.itl(now_s - call.last_s)
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
            self._go_on()

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
        self._go_on()

    def answered(self, call: Call, body: bytes) -> None:
        """A gathered answer is whole: the client's, an error, or a step of the hand-off."""
        if not call.leg.relay:
            self._stepped(call, body)
            return
        item = self._items[call.item]
        failure = fault(self._record.kind, call, body)
        if failure is not None:
            self._end(call, failure)
            return
        if item.merges:
            item.relayed = (call, body)
            self._drop(call, "ok")
            self._merge(item)
        else:
            self._relay(call, body)
        self._go_on()

    def crashed(self, call: Call, error: Exception) -> None:
        """A bug, ours or an adapter's, costs this request and no other."""
        log.error("forwarding failed", exc_info=error, extra={"request_id": self._record.id})
        self._end(call, RequestError("internal error", reason="internal"))

    def dropped(self, call: Call, error: Exception) -> None:
        """The connection failed under a leg, or its answer cannot be used."""
        if self._items[call.item].done and call.leg.relay:
            self._drop(call, "ok")
            self._go_on()
            return
        reason = error.reason if isinstance(error, WireError) else "bad-answer"
        if isinstance(error, WireError) and error.progress is Progress.NOTHING_SENT:
            reason = "connect-failed"
        self._road.trouble(call.leg.endpoint, error)
        self._end(call, LegFailed(f"{leg_name(call.leg)}: {error}", reason=reason))

    # -- what follows from it

    def _begin(self, call: Call, now_s: float) -> None:
        record, item, exchange = self._record, self._items[call.item], self.exchange
        item.begun = True
        self._look_s = 0.0
        self._road.heard(call.leg.endpoint, call.sent_s, now_s)
        exchange.on_pause = partial(pause, self._calls)
        exchange.on_resume = partial(resume, self._calls, self._road.clock)
        if record.first_s is None:
            record.first_s = now_s
            record.mark("first_token", now_s)
            slo_class = record.view.slo_class if record.view is not None else None
            self._road.counts.ttft(now_s - record.arrived_s, slo_class or "")
            self._road.counts.stage("first_token", now_s - max(call.sent_s, item.fed_s))
        self._tell_begun(call.leg, now_s)

    def _stepped(self, call: Call, body: bytes) -> None:
        """A leg that is not relayed has answered: what the machine makes of it."""
        leg, item = call.leg, self._items[call.item]
        if self._late and leg.kind is LegKind.PREFILL and call.status == 200:
            item.held = (call, body)
            self._fed(call, body)
            return
        if self._follow(call, body):
            self._fed(call, body)
            if item.relayed is not None:
                self._merge(item)
            self._go_on()

    def bound(self, decode: Endpoint) -> None:
        """The decode side of a hand-off that began without: what prefill answered leads there."""
        self._late = False
        for item in self._items:
            if not self._follow(*item.bind(decode)):
                return
        self._go_on()

    def unbound(self, why: RequestError) -> None:
        """Nobody took the finished prefill in time: the attempt is over, and has given the client nothing."""
        # That the one that was named could not be reached tells more than that there was no other.
        self._fail(*(self._unreached or (why, None)))
        self._go_on()

    def _follow(self, call: Call, body: bytes) -> bool:
        """What the hand-off makes of an answer; False if it failed the unit."""
        step = self._items[call.item].machine.on_response(call.leg.kind, call.status, body)
        if isinstance(step, HandoffFailed):
            self._end(call, step.error)
            return False
        if isinstance(step, tuple):
            for next_leg in step:
                self._due.append((call.item, next_leg))
                if next_leg.release is not None:
                    self._items[call.item].unspent = (call, body)
        return True

    def _fed(self, call: Call, body: bytes) -> None:
        """A leg that is not relayed is over, and well."""
        leg, item = call.leg, self._items[call.item]
        self._drop(call, "ok")
        item.fed_s = now_s = self._road.clock.now_s()
        self._look_s = 0.0
        self._road.heard(leg.endpoint, call.sent_s, now_s)
        if self._record.first_s is None:
            self._record.mark(str(leg.kind), now_s)
        if leg.kind is LegKind.PREFILL:
            self._road.counts.stage("prefill", now_s - call.sent_s)
            if item.merges:
                item.prefill_body = body
        if len(self._items) == 1 or all(one.fed_s for one in self._items):
            self._tell(leg, "done", now_s)

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
        now_s = self._road.clock.now_s()
        self._look_s = 0.0
        if not item.begun:
            item.begun = True
            self._road.heard(call.leg.endpoint, call.sent_s, now_s)
            self._tell_begun(call.leg, now_s)
        item.done = True
        if len(self._items) > 1 and not all(one.done for one in self._items):
            return
        if not self.exchange.ended:
            try:
                self._answer.end()
            except LegFailed as error:
                self._fail(error, call.leg.endpoint)
                return
        self._over_s = self._record.ended_s = now_s
        self._record.mark("answer" if self._record.first_s is None else "decode", now_s)

    def _end(self, call: Call, error: RequestError) -> None:
        """A leg has failed; one that only served to begin its item's answer may, once that has begun."""
        self._drop(call, error.reason)
        self._tell(call.leg, "failed", self._road.clock.now_s())
        if call.leg.relay or not self._items[call.item].begun:
            self._fail(error, call.leg.endpoint)
        self._go_on()

    def _fail(self, error: RequestError, endpoint: str | None) -> None:
        if self._failure is None and self._over_s is None:
            self._failure = error
            self.failed_at = () if endpoint is None else (endpoint,)
            self._give_up()

    def _give_up(self) -> None:
        """Nobody wants the answers of what runs, nor what was to run."""
        calls, unsent = tuple(self._calls), [leg for _, leg in (*self._due, *self._waiting)]
        self._calls.clear()
        self._due, self._waiting = [], []
        givenup.end(self._road, calls)
        givenup.release(self._road, self._items, [x for x in unsent if x.endpoint not in self.failed_at])

    # -- time

    def check(self, now_s: float) -> Sequence[Overdue]:
        """Fail the unit if one of its stages is past its deadline; which of its legs are overdue."""
        if now_s < self._look_s or self.closed:
            return ()
        overdue: Sequence[Overdue] = ()
        if self._over_s is not None:
            if now_s - self._over_s > LATE_LEG_S:
                self._give_up()
        else:
            paused = self.exchange.paused
            late, overdue, self._look_s = look(
                self._calls, self._items, self._record, paused, self._road, now_s
            )
            if late is not None:
                self._fail(late.error, late.endpoint)
        self._go_on()
        return overdue

    def lose(self, endpoint: str, error: RequestError) -> None:
        """What runs at this endpoint will never answer."""
        for call in [call for call in self._calls if call.leg.endpoint == endpoint]:
            if call.leg.relay or not self._items[call.item].begun:
                self._fail(error, endpoint)  # every call is aborted by that, this one too
                break
            self._end(call, error)
        self._go_on()
