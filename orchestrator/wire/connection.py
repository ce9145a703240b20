"""One HTTP/1.1 connection to an engine, driven by callbacks: no task per call, none per chunk."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import NamedTuple, Protocol, cast

import httptools

from orchestrator.errors import PdctlError
from orchestrator.wire.heads import BODILESS, Heads, Key, whole
from orchestrator.wire.reader import FRAMING

MAX_HEAD_BYTES = 256 * 1024
"""An answer whose head is longer is not an engine's."""

JOINED_BYTES = 16 * 1024
"""Up to this size a copy of the body costs less than what the loop keeps of each piece it is to write."""

PEEK_AFTER_S = 0.5
"""A connection idle for longer is asked whether its peer has closed it before it is reused."""


class Progress(IntEnum):
    """How far a call had come when it failed; only `NOTHING_SENT` may be repeated without thought."""

    NOTHING_SENT = 0
    WRITTEN = 1
    HEAD_SEEN = 2


class WireError(PdctlError):
    """A call to an engine failed below HTTP; `progress` tells how far it had come."""

    default_reason = "wire-failed"

    def __init__(self, message: str, *, progress: Progress = Progress.NOTHING_SENT) -> None:
        super().__init__(message)
        self.progress = progress


class ConnectError(WireError):
    """No connection could be made."""

    default_reason = "connect-failed"


class Dropped(WireError):
    """The engine closed the connection before its answer was whole."""

    default_reason = "connection-dropped"


class BadAnswer(WireError):
    """What the engine sent is not HTTP/1.1."""

    default_reason = "bad-answer"


class Sink(Protocol):
    """Receives one answer: a head, any number of body pieces, then exactly one of end and failure."""

    def on_head(self, status: int, headers: tuple[tuple[bytes, bytes], ...]) -> None:
        """Status and headers (lower-case names, without those of the framing); interim 1xx answers are
        never shown."""
        ...

    def on_body(self, data: bytes) -> None:
        """All body bytes that came with one read."""
        ...

    def on_end(self) -> None:
        """The answer is whole."""
        ...

    def on_failure(self, error: Exception) -> None:
        """The answer will never be whole; `error` is a WireError."""
        ...


class AnswerHead(NamedTuple):
    """The head of an answer, without the framing; `keep`: the connection may be used again after it."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    keep: bool


class Home(Protocol):
    """The pool as its connections see it; `heads` are those that any of them has read."""

    loop: asyncio.AbstractEventLoop
    heads: Heads[AnswerHead]

    def opened(self, connection: Connection) -> None:
        """A connection was made."""
        ...

    def lost(self, connection: Connection) -> None:
        """A connection is gone."""
        ...

    def cut(self, key: tuple[str, int]) -> None:
        """A connection to there is gone in the middle of a call."""
        ...

    def release(self, connection: Connection) -> None:
        """A connection's call is over and it may be used again."""
        ...


def request_head(
    method: str, path: str, authority: str, headers: Iterable[tuple[str, str]], length: int
) -> bytes:
    """The head of a request with a body of `length` bytes; header values must hold no line ends."""
    head = f"{method} {path} HTTP/1.1\r\nhost: {authority}\r\n"
    for name, value in headers:
        head += f"{name}: {value}\r\n"
    return f"{head}content-length: {length}\r\n\r\n".encode("latin-1")


class Connection:
    """One connection to an engine, good for one call at a time; it returns to its pool by itself."""

    __slots__ = (
        "_asked", "_complete", "_framed", "_fresh", "_fresh_head", "_head_bytes", "_headers",
        "_idle_since_s", "_keep", "_loop", "_parser", "_parts", "_paused", "_pool", "_sent", "_sink",
        "_spoke_first", "_status", "_transport", "_unwanted", "expires_s", "idle_s", "key", "reused",
    )  # fmt: skip

    def __init__(self, pool: Home, key: tuple[str, int], idle_s: float) -> None:
        self._pool = pool
        self._loop = pool.loop
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._sink: Sink | None = None
        self._paused = False
        self._unwanted = False
        self._asked = False
        self._spoke_first = False
        self._idle_since_s = 0.0
        self.key = key
        self.idle_s = idle_s
        self.expires_s = 0.0
        self.reused = False
        self._sent = False
        self._fresh = True
        self._clear()

    def _clear(self) -> None:
        """Forget what the parser has told; of an answer under a known head it has told nothing."""
        self._status = 0
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_bytes = 0
        self._fresh_head = False
        self._framed = False
        self._complete = False
        self._keep = False
        self._parts: list[bytes] = []

    # -- the caller's side

    def send(self, head: bytes, body: Sequence[bytes], sink: Sink) -> None:
        """Send one request; `sink` is told of the answer, never from within this call."""
        transport = self._transport
        self._sink = sink
        self._sent = transport is not None and not transport.is_closing()
        if transport is None or not self._sent:
            error: WireError = Dropped("the connection was closed before anything was sent")
            if self._spoke_first:
                error = BadAnswer("what listens there speaks before it is asked: it is no HTTP server")
            self._loop.call_soon(self._fail, error)
            return
        self._asked = True
        if sum(map(len, body)) <= JOINED_BYTES:
            transport.write(b"".join((head, *body)))
        else:
            transport.writelines((head, *body))

    def pause(self) -> None:
        """Stop reading, so that the engine feels a slow client; nothing happens without a call under way."""
        if self._sink is not None and not self._paused and self._usable():
            self._paused = True
            cast(asyncio.Transport, self._transport).pause_reading()

    def resume(self) -> None:
        """Read again."""
        if self._paused and self._usable():
            self._paused = False
            cast(asyncio.Transport, self._transport).resume_reading()

    def abort(self) -> None:
        """Close at once; the sink hears nothing more."""
        self._sink = None
        if self._transport is not None:
            self._transport.abort()

    def unused(self) -> None:
        """Return to the pool without having been used."""
        if self._usable():
            self._rest()

    def close(self) -> None:
        """Close at once, or as soon as it is made; a call under way fails."""
        self._unwanted = True
        if self._transport is not None:
            self._transport.abort()

    def _usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def stale(self, now_s: float) -> bool:
        """Whether an idle connection must not be reused: expired, closed, or closed by its peer just now."""
        transport = self._transport
        if transport is None or transport.is_closing() or now_s >= self.expires_s:
            return True
        if now_s - self._idle_since_s < PEEK_AFTER_S:
            return False
        poll = select.poll()
        poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
        return bool(poll.poll(0))

    # -- the transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        self._transport = cast(asyncio.Transport, transport)
        if self._unwanted:
            self._transport.abort()
        else:
            self._pool.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The engine has closed, or the network has failed."""
        self._transport = None
        self._pool.lost(self)
        if self._sink is None:
            return
        if self._status and not self._framed and exc is None:
            self._finish()
            return
        self._pool.cut(self.key)
        why = f": {exc}" if exc is not None else ""
        where = "within its answer" if self._status else "without an answer"
        self._fail(Dropped(f"the engine closed the connection {where}{why}", progress=self._progress()))

    def eof_received(self) -> None:
        """The engine sends no more; the transport closes."""

    def pause_writing(self) -> None:
        """The engine reads slowly; a request is handed over whole all the same."""

    def resume_writing(self) -> None:
        """The engine has caught up."""

    def data_received(self, data: bytes) -> None:
        """Parse what came and pass it on, outside of the parser, in order."""
        if self._sink is None:
            # Nobody asked: what an idle connection says cannot be trusted to be an answer.
            self._spoke_first = not self._asked
            self.abort()
            return
        if self._fresh:
            self._fresh = False
            self._read_first(data)
        else:
            self._parse(data)

    def _read_first(self, data: bytes) -> None:
        """Most whole answers come in one piece, under a head that was read before."""
        found = whole(data)
        head = None if found is None else self._pool.heads.get(found[0])
        if found is None or head is None:
            self._parse(data, found)
            return
        sink = self._sink
        assert sink is not None
        sink.on_head(head.status, head.headers)
        if self._sink is sink and len(data) > found[1]:
            sink.on_body(data[found[1] :])
        self._keep = head.keep
        self._finish()

    def _parse(self, data: bytes, found: tuple[Key, int] | None = None) -> None:
        """Read on with the parser; `found`: this is one whole answer if its body begins there."""
        broken: Exception | None = None
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._keep = False
            if not self._complete:
                broken = error
        if not self._status:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                broken = ValueError(f"the head is over {MAX_HEAD_BYTES} bytes")
        body = b""
        if self._parts:
            body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
            self._parts = []
        if self._fresh_head:
            self._fresh_head = False
            head = AnswerHead(self._status, tuple(self._headers), self._keep)
            whole_one = found is not None and len(body) == len(data) - found[1]
            if (
                found is not None
                and whole_one
                and self._complete
                and not broken
                and head.status not in BODILESS
            ):
                self._pool.heads.keep(found[0], head)
            if self._sink is not None:
                self._sink.on_head(head.status, head.headers)
        if body and self._sink is not None:
            self._sink.on_body(body)
        if broken is not None:
            message = f"the engine's answer is not valid HTTP/1.1: {broken}"
            self._fail(BadAnswer(message, progress=self._progress()))
            self.abort()
        elif self._complete:
            self._finish()

    def _finish(self) -> None:
        sink, self._sink = self._sink, None
        if sink is None:
            return
        transport = self._transport
        if transport is not None:
            # An early answer to a request not yet fully sent leaves the connection in no known state.
            if self._keep and not transport.get_write_buffer_size():
                if self._paused:
                    self.resume()
                if self._status:
                    self._clear()
                self._fresh = True
                self._rest()
            else:
                transport.close()
        sink.on_end()

    def _rest(self) -> None:
        self._idle_since_s = self._loop.time()
        self.expires_s = self._idle_since_s + self.idle_s
        self._pool.release(self)

    def _fail(self, error: WireError) -> None:
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.on_failure(error)

    def _progress(self) -> Progress:
        if not self._sent:
            return Progress.NOTHING_SENT
        return Progress.HEAD_SEEN if self._status else Progress.WRITTEN

    # -- what the parser calls

    def on_message_begin(self) -> None:
        """A message starts; one after the answer means that the connection is out of step."""
        if self._complete:
            self._keep = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header of the answer; trailers carry nothing for us."""
        if self._status:
            return
        name = name.lower()
        if name in FRAMING:
            self._framed = True
        else:
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """The head is whole; interim answers are forgotten."""
        if self._complete:
            return
        status = self._parser.get_status_code()
        if status < 100 or (status < 200 and self._framed):
            # An interim answer has no body; to the parser, what follows these would be one.
            raise ValueError(f"status {status} with a body")
        if status < 200:
            self._headers = []
            self._framed = False
            return
        self._status = status
        self._keep = self._parser.should_keep_alive()
        self._fresh_head = True

    def on_body(self, data: bytes) -> None:
        """A piece of the body; several of one read are passed on as one."""
        if not self._complete:
            self._parts.append(data)

    def on_message_complete(self) -> None:
        """The answer is whole, unless it was an interim one."""
        self._complete = self._status != 0
