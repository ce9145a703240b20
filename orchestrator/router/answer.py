"""The client's side of a unit of legs: one answer passed through as it comes, or several merged into one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from orchestrator.router import merge, replies
from orchestrator.router.record import Record
from orchestrator.router.stream import DONE, Usage
from orchestrator.wire.exchange import Exchange

EVENT_STREAM = replies.lines(((b"content-type", b"text/event-stream; charset=utf-8"),))


class Answer(Protocol):
    """What relayed legs write to; `exchange.started` says whether the status line is committed."""

    exchange: Exchange

    def events(self, item: int, headers: replies.Headers, data: bytes) -> None:
        """Whole events of item `item`, judged good; `headers` are its leg's, for the first."""
        ...

    def whole(self, item: int, status: int, headers: replies.Headers, body: bytes) -> None:
        """The whole body of an answer that was not streamed."""
        ...

    def end(self) -> None:
        """Every item's answer is complete, and was not given whole."""
        ...

    def usage(self, parts: Sequence[Usage]) -> Usage:
        """The tokens of the whole request, from those of its several items."""
        ...


class Single:
    """One item: its bytes go through untouched. `record` names the request in the headers."""

    __slots__ = ("_record", "exchange")

    def __init__(self, exchange: Exchange, record: Record) -> None:
        self.exchange = exchange
        self._record = record

    def events(self, item: int, headers: replies.Headers, data: bytes) -> None:
        """Pass the events on."""
        exchange = self.exchange
        if not exchange.started:
            exchange.start(200, lines=replies.named(self._record) + replies.passed(headers))
        exchange.write(data)

    def whole(self, item: int, status: int, headers: replies.Headers, body: bytes) -> None:
        """Pass the body on."""
        self.exchange.respond(status, body, lines=replies.named(self._record) + replies.passed(headers))

    def end(self) -> None:
        """End the stream."""
        self.exchange.end()

    def usage(self, parts: Sequence[Usage]) -> Usage:
        """What the one item used."""
        return parts[0]


class Merged:
    """Several items of one request that was split: one stream or one body, indexed by item."""

    def __init__(self, exchange: Exchange, record: Record, items: int, samples: int) -> None:
        self.exchange = exchange
        self._record = record
        self._bodies: list[bytes] = [b""] * items
        self._events = merge.Events(record.kind, items, samples)
        self._samples = samples

    def events(self, item: int, headers: replies.Headers, data: bytes) -> None:
        """Pass the events on under the item's index; usage and the final mark wait for all items."""
        out = self._events.take(item, data)
        if not out:
            return
        if not self.exchange.started:
            self.exchange.start(200, lines=replies.named(self._record) + EVENT_STREAM)
        self.exchange.write(out)

    def whole(self, item: int, status: int, headers: replies.Headers, body: bytes) -> None:
        """Keep the body until all are there."""
        self._bodies[item] = body

    def end(self) -> None:
        """The merged usage and the final mark, or the merged body."""
        if self.exchange.started:
            self.exchange.write(self._events.rest() + DONE[0])
            self.exchange.end()
            return
        body = merge.bodies(self._record.kind, self._bodies, self._samples)
        self.exchange.respond(200, body, lines=replies.named(self._record) + replies.JSON_LINE)

    def usage(self, parts: Sequence[Usage]) -> Usage:
        """The tokens of all items: a prompt counts once, however many samples it was asked for."""
        return merge.total(parts, self._samples)
