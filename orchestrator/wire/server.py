"""An HTTP/1.1 server as a raw asyncio Protocol: strict, bounded, and without a task per request."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any, cast

from orchestrator.wire.exchange import Exchange, status_line
from orchestrator.wire.heads import Heads
from orchestrator.wire.limits import (
    BACKLOG,
    FRESH_S,
    LINGER_S,
    RETIRED_IDLE_S,
    TOLD,
    WRITE_HIGH_WATER,
    OnBad,
    Refusal,
    WireLimits,
    over,
    plain_refusal,
)
from orchestrator.wire.reader import Refused, RequestHead, RequestReader

__all__ = ["Exchange", "Handler", "OnBad", "Refusal", "Server", "WireLimits", "serve"]

log = logging.getLogger(__name__)

Handler = Callable[[Exchange], None]
"""Called once a request is whole; answers at once, or later from callbacks or a task of its own."""

CLOSING_PERIOD_S = 0.05
"""How often a closing server looks whether the last answers have been taken."""


class _Connection:
    """One client connection: the request being read, or the exchange being answered."""

    __slots__ = (
        "_answered", "_asked", "_deadline_s", "_exchange", "_loop", "_peer", "_reader", "_server",
        "_stalled_s", "_transport",
    )  # fmt: skip

    def __init__(self, server: Server) -> None:
        limits = server.limits
        self._server = server
        self._loop = server.loop
        self._reader = RequestReader(
            max_head_bytes=limits.max_header_bytes,
            max_body_bytes=limits.max_body_bytes,
            heads=server.heads,
        )
        self._transport: asyncio.Transport | None = None
        self._peer = ""
        self._exchange: Exchange | None = None
        self._answered = False
        self._asked = False
        self._stalled_s = inf
        self._deadline_s = self._loop.time() + (FRESH_S if server.closing else limits.header_timeout_s)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_WATER)
        name = transport.get_extra_info("peername")
        self._peer = f"{name[0]}:{name[1]}" if isinstance(name, tuple) else "unix"
        server, most = self._server, self._server.limits.max_connections
        server.connections.add(self)
        if most is not None and len(server.connections) > most:
            self._crowded(len(server.connections) - most)

    def _crowded(self, excess: int) -> None:
        """Say that there are too many, if there is room for that: words linger, and cost a socket."""
        log.info("client %s refused: too many connections", self._peer)
        if excess > TOLD:
            self.cut()
        else:
            self._refuse(503, "too many connections are open here; try again later")

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone, whoever ended it."""
        self._transport = None
        self._server.connections.discard(self)
        self._gone()

    def eof_received(self) -> bool:
        """A client that sends no more is taken to have left: the two cannot be told apart."""
        return False

    def pause_writing(self) -> None:
        """The client reads too slowly."""
        self._stalled_s = self._loop.time()
        if self._exchange is not None:
            self._exchange.paused = True
            if self._exchange.on_pause is not None:
                self._exchange.on_pause()

    def resume_writing(self) -> None:
        """The client has caught up."""
        self._stalled_s = inf
        if self._exchange is not None:
            self._exchange.paused = False
            if self._exchange.on_resume is not None:
                self._exchange.on_resume()

    def data_received(self, data: bytes) -> None:
        """Read on, and hand the request over once it is whole."""
        reader = self._reader
        if self._answered:
            return
        if self._exchange is not None:
            # A second request before the first is answered is not read, only remembered as a fault.
            if data.strip(b"\r\n"):
                reader.extra = True
            return
        fresh, was_body = not reader.in_head, reader.in_body
        try:
            reader.feed(data)
        except Refused as refused:
            self._refuse(refused.status, refused.message)
            return
        if reader.complete:
            self._dispatch()
        elif reader.in_body:
            if not was_body:
                self._deadline_s = self._loop.time() + self._server.limits.body_timeout_s
            if reader.wants_continue and not reader.body_bytes:
                reader.wants_continue = False
                self.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        elif fresh and reader.in_head:
            self._deadline_s = self._loop.time() + self._server.limits.header_timeout_s

    def _dispatch(self) -> None:
        self._asked = True
        self._deadline_s = inf
        server, reader = self._server, self._reader
        head = reader.head
        assert head is not None
        keep_alive = head.keep_alive and not server.leaving
        exchange = Exchange(self, head, reader.take_body(), self._peer, keep_alive)
        exchange.paused = self._stalled_s != inf
        self._exchange = exchange
        try:
            server.handler(exchange)
        except Exception:
            # The last boundary: one request's bug must not cost the process.
            log.exception("the handler failed on %s %s", exchange.method, exchange.path)
            if exchange.started:
                exchange.abort()
            else:
                exchange.respond(500, *server.on_bad(500, "internal error"))

    def send(self, data: bytes) -> None:
        """Queue bytes for the client; dropped when it is gone."""
        if self._transport is not None:
            self._transport.write(data)

    def finished(self, keep: bool) -> None:
        """The exchange has ended: read the next request, refuse a pipelined one, or close."""
        self._exchange = None
        if self._transport is None:
            return
        if keep and self._reader.extra:
            self._refuse(400, "a second request was sent before the first was answered")
        elif keep and not self._server.closing:
            self._reader.clear()
            self._deadline_s = self._loop.time() + self._server.limits.idle_timeout_s
            if self._server.leaving:
                self.retire()
        else:
            self._linger()
        if self._server.closing:
            self._server.settled()

    def _refuse(self, status: int, message: str) -> None:
        body, headers = self._server.on_bad(status, message)
        self.send(
            b"%b%bcontent-length: %d\r\nconnection: close\r\n\r\n%b"
            % (
                status_line(status),
                b"".join([b"%b: %b\r\n" % header for header in headers]),
                len(body),
                b"" if self._reader.method == "HEAD" else body,
            )
        )
        self._linger()

    def _linger(self) -> None:
        self._answered = True
        self._deadline_s = self._loop.time() + LINGER_S
        if self._transport is not None:
            if self._transport.can_write_eof():
                self._transport.write_eof()
            else:
                self._transport.close()

    def cut(self) -> None:
        """Close at once, dropping what is queued."""
        if self._transport is not None:
            self._transport.abort()
        self._gone()

    def _gone(self) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.closed = True
            if exchange.on_close is not None and not exchange.ended:
                exchange.on_close()
        self._server.settled()

    @property
    def busy(self) -> bool:
        """A request is being read or answered, or its answer is still to be taken by the client; while the
        server closes, also the first request that is still to come."""
        transport, reader = self._transport, self._reader
        if transport is None:
            return False
        if transport.get_write_buffer_size() or self._exchange is not None:
            return True
        if self._answered:
            return False
        return reader.in_head or reader.in_body or (self._server.closing and not self._asked)

    def sweep(self, now_s: float) -> None:
        """Act on the deadlines that have passed."""
        limits, reader, transport = self._server.limits, self._reader, self._transport
        if transport is None:
            return
        if now_s - self._stalled_s > limits.stall_timeout_s:
            log.info("client %s left its answer unread; cut", self._peer)
            self.cut()
        elif now_s < self._deadline_s:
            return
        elif self._answered:
            if not transport.get_write_buffer_size() or now_s - self._deadline_s > limits.stall_timeout_s:
                self.cut()
        elif reader.in_head or reader.in_body:
            part = "head" if reader.in_head else "body"
            self._refuse(408, f"the request's {part} did not arrive in time")
        else:
            transport.close()

    def retire(self) -> None:
        """Wait no longer than `RETIRED_IDLE_S` for a request to come."""
        if not self.busy:
            self._deadline_s = min(self._deadline_s, self._loop.time() + RETIRED_IDLE_S)

    def close_idle(self) -> None:
        """Close if nothing is under way, and soon if nothing was ever asked."""
        if self._transport is None:
            return
        if not self.busy:
            self._transport.close()
        elif not self._asked and not self._reader.in_head and not self._reader.in_body:
            self._deadline_s = min(self._deadline_s, self._loop.time() + FRESH_S)


class Server:
    """A listening server: `port` it is bound to, its `connections`, and the two ways to stop it."""

    def __init__(self, handler: Handler, limits: WireLimits, on_bad: OnBad) -> None:
        self.handler = handler
        self.limits = limits
        self.on_bad = on_bad
        self.loop = asyncio.get_running_loop()
        self.connections: set[_Connection] = set()
        self.heads: Heads[RequestHead] = Heads()
        self.closing = False
        self.leaving = False
        self.port = 0
        self.tls: ssl.SSLContext | None = None
        self._listeners: list[asyncio.AbstractServer] = []
        self._settled = asyncio.Event()
        # One timer for all connections, so that a request costs none.
        shortest_s = min(
            limits.header_timeout_s, limits.body_timeout_s, limits.idle_timeout_s, limits.stall_timeout_s
        )
        self._period_s = min(1.0, max(0.01, shortest_s / 4))
        self._timer = self.loop.call_later(self._period_s, self._sweep)

    def listening(self, listener: asyncio.AbstractServer, port: int) -> None:
        """Remember the listener once it is bound."""
        self._listeners.append(listener)
        self.port = port

    def sockets(self) -> list[int]:
        """The descriptors of the sockets that it listens on."""
        return [sock.fileno() for listener in self._listeners for sock in _sockets(listener)]

    def _sweep(self) -> None:
        now_s = self.loop.time()
        for connection in tuple(self.connections):
            connection.sweep(now_s)
        self.settled()
        if self.connections or not self.closing:
            period_s = CLOSING_PERIOD_S if self.closing else self._period_s
            self._timer = self.loop.call_later(period_s, self._sweep)

    def settled(self) -> None:
        """A connection came to rest; tells a waiting `drained` when it was the last."""
        if self.closing and not any(c.busy for c in self.connections):
            self._settled.set()

    def _shut(self) -> None:
        self.leaving = True
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()

    async def also(self, sock: socket.socket) -> None:
        """Listen on one more bound socket. Raises OSError."""
        self._listeners.append(
            await self.loop.create_server(
                partial(_accepted, self), sock=sock, backlog=BACKLOG, **over(self.tls, self.limits)
            )
        )

    async def retired(self) -> None:
        """Listen no more, for another process does, and return when no connection is left: each is closed
        after its next answer, or when none is asked for."""
        self._shut()
        for connection in tuple(self.connections):
            connection.retire()
        while self.connections:  # noqa: ASYNC110  what a connection's end costs is not to grow by this
            await asyncio.sleep(CLOSING_PERIOD_S)

    def close(self) -> None:
        """Listen no more and close idle connections; those at work close after their answer."""
        self._shut()
        self.closing = True
        for connection in tuple(self.connections):
            connection.close_idle()
        self._timer.cancel()
        self._sweep()

    async def drained(self, timeout_s: float) -> bool:
        """Close, wait for what is under way, cut what remains after `timeout_s`; True if nothing did."""
        self.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._settled.wait(), timeout_s)
        left = [c for c in self.connections if c.busy]
        for connection in tuple(self.connections):
            if connection in left:
                connection.cut()
        return not left


def _accepted(server: Server) -> asyncio.Protocol:
    """A protocol by its methods: compiled classes cannot inherit from asyncio's."""
    return cast(asyncio.Protocol, _Connection(server))


def _sockets(listener: asyncio.AbstractServer) -> list[socket.socket]:
    server: Any = listener  # uvloop lists its sockets where asyncio has a tuple of them
    return list(server.sockets)


async def serve(
    handler: Handler,
    *,
    host: str | None = None,
    port: int = 0,
    limits: WireLimits | None = None,
    sock: socket.socket | None = None,
    on_bad: OnBad = plain_refusal,
    backlog: int = BACKLOG,
    reuse_port: bool = False,
    tls: ssl.SSLContext | None = None,
) -> Server:
    """Listen on `host`:`port` (0: any free one) or on `sock`, a bound TCP or Unix socket; on TCP over `tls`.

    Raises OSError when the address cannot be bound.
    """
    loop = asyncio.get_running_loop()
    server = Server(handler, limits or WireLimits(), on_bad)
    server.tls = tls
    shake = over(tls, server.limits)
    factory = partial(_accepted, server)
    if sock is not None and sock.family == socket.AF_UNIX:
        listener = await loop.create_unix_server(factory, sock=sock, backlog=backlog)
    elif sock is not None:
        listener = await loop.create_server(factory, sock=sock, backlog=backlog, **shake)
    else:
        listener = await loop.create_server(
            factory, host, port, backlog=backlog, reuse_port=reuse_port or None, **shake
        )
    name = _sockets(listener)[0].getsockname()
    server.listening(listener, name[1] if isinstance(name, tuple) else 0)
    return server
