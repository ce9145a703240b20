"""One engine call each: receives what its connection reads, and tells its unit what it means."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, cast

from orchestrator.clock import Clock
from orchestrator.core.frozen import record
from orchestrator.core.types import Endpoint, PathKind
from orchestrator.engines.base import Handoff, LateHandoff, Leg
from orchestrator.errors import RequestError
from orchestrator.router.replies import Headers
from orchestrator.router.road import Place
from orchestrator.router.stream import Stream, Usage, is_error, last_int, unfit, usage
from orchestrator.wire.client import Connection

MAX_ANSWER_BYTES = 256 * 1024 * 1024
"""An answer that is gathered whole and grows beyond this is cut: log probabilities of the longest prompts
stay far below it."""


class Hears(Protocol):
    """The unit as its legs see it."""

    def answered(self, call: Call, body: bytes) -> None:
        """The whole answer of a call that is not a stream."""
        ...

    def streamed(self, call: Call, stream: Stream, events: bytes) -> None:
        """Whole events of a relayed stream, or its failure."""
        ...

    def stream_ended(self, call: Call, stream: Stream) -> None:
        """The engine has ended its stream."""
        ...

    def dropped(self, call: Call, error: Exception) -> None:
        """The call failed below HTTP, or its answer is too long."""
        ...

    def crashed(self, call: Call, error: Exception) -> None:
        """Our own code, or an adapter's, failed over what the call brought."""
        ...


class Call:
    """A leg under way.

    `sent_s` is when it was written; `last_s` when its stream last brought something, None before its
    first event. `unit` is who hears of it. A relayed answer that is a stream of events, and no error, is
    passed on as it comes; everything else is gathered.
    """

    __slots__ = (
        "_over", "_parts", "_size", "connection", "headers", "item", "last_s", "leg", "place", "sent_s",
        "status", "stream", "unit",
    )  # fmt: skip

    def __init__(
        self, unit: Hears, item: int, leg: Leg, place: Place, connection: Connection, now_s: float
    ) -> None:
        self.unit = unit
        self._parts: list[bytes] = []
        self._size = 0
        self._over = False
        self.item = item
        self.leg = leg
        self.place = place
        self.connection = connection
        self.sent_s = now_s
        self.last_s: float | None = None
        self.status = 0
        self.headers: Headers = ()
        self.stream: Stream | None = None

    def abort(self) -> None:
        """Close the connection, unless the call is over and another may be using it."""
        if not self._over:
            self._over = True
            self.connection.abort()

    def on_head(self, status: int, headers: Headers) -> None:
        """The engine's status and headers."""
        self.status = status
        self.headers = headers
        if self.leg.relay and status == 200:
            for name, value in headers:
                if name == b"content-type":
                    if value.startswith(b"text/event-stream"):
                        self.stream = Stream()
                    break

    def on_body(self, data: bytes) -> None:
        """A piece of the answer."""
        stream = self.stream
        if stream is None:
            self._parts.append(data)
            self._size += len(data)
            if self._size > MAX_ANSWER_BYTES:
                self.abort()
                self.unit.dropped(self, ValueError(f"its answer is over {MAX_ANSWER_BYTES} bytes"))
            return
        try:
            events = stream.feed(data)
            if events or stream.failed:
                self.unit.streamed(self, stream, events)
        except Exception as error:  # noqa: BLE001  adapters are plug-ins: their bugs end one request
            self.unit.crashed(self, error)

    def on_end(self) -> None:
        """The answer is whole."""
        self._over = True
        try:
            if self.stream is not None:
                self.unit.stream_ended(self, self.stream)
            else:
                self.unit.answered(self, b"".join(self._parts))
        except Exception as error:  # noqa: BLE001  as above
            self.unit.crashed(self, error)

    def on_failure(self, error: Exception) -> None:
        """The connection failed."""
        self._over = True
        self.unit.dropped(self, error)


@record(slots=True)
class Item:
    """One hand-off of the unit.

    `merges`: the client's answer is made of both legs' bodies, kept here until both are there. `begun`:
    its relayed leg is generating, `done`: has ended well. `fed_s`: when its other leg answered. What was
    relayed is in `stream`, or in `body`.
    """

    machine: Handoff
    merges: bool = False
    held: tuple[Call, bytes] | None = None
    """Prefill's answer, while nobody has been named to decode."""
    unspent: tuple[Call, bytes] | None = None
    """The same while decode's leg, which fetches what it leads to, has not been sent."""
    prefill_body: bytes | None = None
    relayed: tuple[Call, bytes] | None = None
    fed_s: float = 0.0
    begun: bool = False
    done: bool = False
    stream: Stream | None = None
    body: bytes = b""

    def bind(self, decode: Endpoint) -> tuple[Call, bytes]:
        """Name who decodes; what prefill had answered."""
        assert self.held is not None
        held, self.held = self.held, None
        cast(LateHandoff, self.machine).bind(decode)
        return held

    def usage(self) -> Usage:
        """The item's tokens: what finished legs told goes before what the client was told."""
        notes = self.machine.notes
        if self.stream is None and "prompt_tokens" in notes and "cached_tokens" in notes:
            completion = last_int(self.body, b"completion_tokens")
            return Usage(notes["prompt_tokens"], completion, notes["cached_tokens"])
        told = usage(self.body) if self.stream is None else self.stream.usage()
        return Usage(
            prompt=notes.get("prompt_tokens", told.prompt),
            completion=told.completion,
            cached=notes.get("cached_tokens", told.cached),
        )


def leg_name(leg: Leg) -> str:
    """The leg as people call it."""
    return f"the {leg.kind} leg on {leg.endpoint}"


def fault(kind: PathKind, call: Call, body: bytes) -> RequestError | None:
    """What is wrong with a whole relayed answer; None if the client may have it."""
    if is_error(call.status, body):
        return call.place.engine.map_error(call.status, body)
    return unfit(kind, call.status, body)


def pause(calls: Iterable[Call]) -> None:
    """Read no more of what is relayed: the client is slow."""
    for call in calls:
        if call.leg.relay:
            call.connection.pause()


def resume(calls: Iterable[Call], clock: Clock) -> None:
    """Read on; the time without reading is no gap of the engine's."""
    now_s = clock.now_s()
    for call in calls:
        if call.leg.relay:
            call.connection.resume()
            if call.last_s is not None:
                call.last_s = now_s
