"""HTTP as clients and engines may write it: one reading of any bytes, and whole answers to them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any, cast

import httptools

from fuzzing.target import splits
from orchestrator.wire.client import Pool
from orchestrator.wire.connection import MAX_HEAD_BYTES, Connection
from orchestrator.wire.exchange import Exchange
from orchestrator.wire.heads import Heads
from orchestrator.wire.limits import WireLimits, plain_refusal
from orchestrator.wire.reader import Refused, RequestHead, RequestReader
from orchestrator.wire.server import Server, _Connection

HEAD, BODY = 400, 100
"""Limits small enough to be met."""

_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_VALUE = re.compile(rb"[^\x00-\x08\x0a-\x1f\x7f]*")


# -- what a client sends

_known: Heads[RequestHead] = Heads()


def _request(pieces: Sequence[bytes], heads: Heads[RequestHead] | None) -> tuple[Any, ...]:
    reader = RequestReader(max_head_bytes=HEAD, max_body_bytes=BODY, heads=heads)
    try:
        for piece in pieces:
            if reader.complete:
                reader.extra = reader.extra or bool(piece.strip(b"\r\n"))
                continue
            reader.feed(piece)
    except Refused as refused:
        return "refused", refused.status
    head = reader.head
    if not reader.complete or head is None:
        return ("open",)
    for name, value in head.headers:
        assert _TOKEN.fullmatch(name), name
        assert _VALUE.fullmatch(value), value
    assert b"\r" not in head.target
    assert b"\n" not in head.target
    assert b" " not in head.target
    body = reader.take_body()
    assert len(body) <= BODY
    return "whole", head.method, head.target, head.headers, body, head.keep_alive, reader.extra


def request(data: bytes) -> None:
    """One reading of a request, whatever the reads, kept heads or not, and the one that RFC 9112 gives."""
    first = _request([data], None)
    for pieces in splits(data):
        assert _request(pieces, None) == first, pieces
    for _ in range(2):
        assert _request([data], _known) == first
    if first[0] == "whole" and b"\nupgrade:" not in data.lower():
        assert framed(data.lstrip(b"\r\n")) == first[4]


def framed(data: bytes) -> bytes:
    """The body of a request that was taken whole, by the words of RFC 9112 6 and 7 alone."""
    head, _, rest = data.partition(b"\r\n\r\n")
    lines = [line.partition(b":") for line in head.split(b"\r\n")[1:]]
    fields = [(name.lower(), value.strip(b" \t")) for name, _, value in lines]
    lengths = [value for name, value in fields if name == b"content-length"]
    codings = [value.lower() for name, value in fields if name == b"transfer-encoding"]
    if codings:
        assert codings == [b"chunked"]
        assert not lengths
        body = b""
        while True:
            line, _, rest = rest.partition(b"\r\n")
            size = int(line.partition(b";")[0].strip(b" \t"), 16)
            if not size:
                return body
            body += rest[:size]
            assert rest[size : size + 2] == b"\r\n"
            rest = rest[size + 2 :]
    assert len(lengths) <= 1
    return rest[: int(lengths[0])] if lengths else b""


class Wire:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.closed = False

    def write(self, data: bytes) -> None:
        self.written += data

    def writelines(self, data: Sequence[bytes]) -> None:
        self.written += b"".join(data)

    def close(self) -> None:
        self.closed = True

    abort = write_eof = close

    def is_closing(self) -> bool:
        return self.closed

    def can_write_eof(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else None

    def set_write_buffer_limits(self, **_: int) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class _Answers:
    """Counts whole answers for httptools."""

    def __init__(self) -> None:
        self.whole = 0

    def on_message_complete(self) -> None:
        self.whole += 1


def server(data: bytes) -> None:
    """Whatever comes, what goes out is whole answers and nothing else, and at most one after a refusal."""
    asked = [0]

    def handle(exchange: Exchange) -> None:
        asked[0] += 1
        if exchange.path == "/stream":
            exchange.start(200, ((b"x-path", b"s"),))
            exchange.write(exchange.body)
            exchange.end()
        else:
            exchange.respond(200, exchange.body)

    for pieces in ([data], *splits(data)):
        made = Server(handle, WireLimits(max_body_bytes=BODY, max_header_bytes=HEAD), plain_refusal)
        made._timer.cancel()
        asked[0] = 0
        wire, connection = Wire(), _Connection(made)
        connection.connection_made(cast(asyncio.BaseTransport, wire))
        for piece in pieces:
            if not wire.closed:
                connection.data_received(piece)
        connection.connection_lost(None)
        assert not made.connections
        sent = bytes(wire.written).replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"")
        heads = len(re.findall(rb"HTTP/1\.1 \d{3} [\w ]+\r\nserver: pdctl\r\n", sent))
        assert heads >= asked[0]
        if sent and b"HEAD" not in data and b"HTTP/1.0" not in data:
            counted = _Answers()
            httptools.HttpResponseParser(counted).feed_data(sent)
            assert counted.whole == heads, sent


# -- what an engine answers


class _Heard:
    """A sink that holds its caller to the order of calls."""

    def __init__(self) -> None:
        self.head: tuple[int, tuple[tuple[bytes, bytes], ...]] | None = None
        self.body = b""
        self.over = ""

    def on_head(self, status: int, headers: tuple[tuple[bytes, bytes], ...]) -> None:
        assert self.head is None
        assert not self.over
        assert sum(len(n) + len(v) for n, v in headers) <= 2 * MAX_HEAD_BYTES
        for name, value in headers:
            assert _TOKEN.fullmatch(name), name
            assert _VALUE.fullmatch(value), value
        self.head = (status, headers)

    def on_body(self, data: bytes) -> None:
        assert data
        assert self.head is not None
        assert not self.over
        self.body += data

    def on_end(self) -> None:
        assert self.head is not None
        assert not self.over
        self.over = "end"

    def on_failure(self, error: Exception) -> None:
        assert not self.over
        self.over = type(error).__name__


_pools: list[Pool] = []


def _heard(pieces: Sequence[bytes], pool: Pool) -> tuple[Any, ...]:
    connection, heard, wire = Connection(pool, ("h", 1), 5.0), _Heard(), Wire()
    connection.connection_made(cast(asyncio.BaseTransport, wire))
    connection.send(b"GET / HTTP/1.1\r\nhost: h\r\n\r\n", (), heard)
    for piece in pieces:
        if not wire.closed and not heard.over:
            connection.data_received(piece)
    if not heard.over:
        connection.connection_lost(None)
    connection.abort()
    pool.lost(connection)
    assert heard.over
    return heard.head, heard.body, heard.over


def answer(data: bytes) -> None:
    """One reading of an engine's answer, whatever the reads, kept heads or not."""
    if not _pools:
        _pools.append(Pool())
    shared = _pools[0]
    first = _heard([data], Pool())
    for pieces in splits(data):
        assert _heard(pieces, Pool()) == first, pieces
    for _ in range(2):
        assert _heard([data], shared) == first
    shared._open.clear()
