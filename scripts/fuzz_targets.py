"""What `scripts/fuzz` throws bytes at, and what must hold of each whatever they are."""

from __future__ import annotations

import asyncio
import json
import math
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, cast
from zlib import crc32

import httptools
import orjson

from orchestrator.core.types import PathKind, Role
from orchestrator.engines.sglang import SGLang
from orchestrator.engines.splice import JsonBody
from orchestrator.engines.vllm import VLLM
from orchestrator.errors import BadRequest, LegFailed, RequestError, TopologyError
from orchestrator.router.continuing import Lasting
from orchestrator.router.record import Record
from orchestrator.router.stream import Stream, unfit, usage
from orchestrator.router.view import Asked, check_depth, check_length, model_of, prompt_of, read
from orchestrator.topology.planner import plan_file
from orchestrator.wire.client import Pool
from orchestrator.wire.connection import MAX_HEAD_BYTES, Connection
from orchestrator.wire.exchange import Exchange
from orchestrator.wire.heads import Heads
from orchestrator.wire.limits import WireLimits, plain_refusal
from orchestrator.wire.reader import Refused, RequestHead, RequestReader
from orchestrator.wire.server import Server, _Connection

ROOT = Path(__file__).resolve().parent.parent
ENGINES = (SGLang(), VLLM())
HEAD, BODY = 400, 100
"""Limits small enough to be met."""

_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_VALUE = re.compile(rb"[^\x00-\x08\x0a-\x1f\x7f]*")


@dataclass(frozen=True, slots=True)
class Target:
    """`check` fails by whatever it raises; `seeds` are whole inputs, `words` what inputs are made of."""

    name: str
    check: Callable[[bytes], None]
    seeds: Sequence[bytes]
    words: Sequence[bytes]


def splits(data: bytes) -> Iterator[list[bytes]]:
    """The bytes as several reads may bring them: some cuts that hang on the bytes alone, then each byte."""
    rng = Random(crc32(data))
    for count in (1, 2, 5):
        cuts = sorted({0, len(data), *(rng.randint(0, len(data)) for _ in range(count))})
        yield [data[a:b] for a, b in zip(cuts, cuts[1:], strict=False)]
    if len(data) <= 600:
        yield [data[i : i + 1] for i in range(len(data))]


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
        assert _framed(data.lstrip(b"\r\n")) == first[4]


def _framed(data: bytes) -> bytes:
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


def _streamed(pieces: Sequence[bytes]) -> tuple[Any, ...]:
    stream, out = Stream(), b""
    for piece in pieces:
        passed = stream.feed(piece)
        assert stream.begun or not passed
        assert passed.endswith((b"\n\n", b"\r\n\r\n")) or not passed
        out += passed
    refused = None if stream.refused is None else str(stream.refused)
    return out, stream.begun, stream.done, stream.engine_error, refused, stream.failed


class _Nobody:
    """A client that takes everything."""

    def send(self, data: bytes) -> None:
        pass

    def finished(self, keep: bool) -> None:
        pass

    def cut(self) -> None:
        pass


_HEAD = RequestHead("POST", b"/", (), http10=False, keep_alive=True)


def stream(data: bytes) -> None:
    """One reading of a stream, and no surprise where it is kept to go on elsewhere."""
    first = _streamed([data])
    for pieces in splits(data):
        assert _streamed(pieces) == first, pieces
    for kind, field in ((PathKind.CHAT, b'"messages":[]'), (PathKind.COMPLETION, b'"prompt":"x"')):
        body = JsonBody(b'{"model":"m","stream":true,"max_tokens":9,%b}' % field)
        lasting = Lasting(Exchange(_Nobody(), _HEAD, b"", "", True), Record("r", kind, 0.0), body)
        for piece in (first[0], first[0]):
            if piece:
                try:
                    lasting.events(0, (), piece)
                    lasting.rest(5)
                except LegFailed:
                    break
                lasting.resume()


def engine(data: bytes) -> None:
    """Whatever an engine answers to a call of ours or in place of an answer, it is read or refused."""
    for status in (200, 400, 500):
        for kind in (PathKind.CHAT, PathKind.GENERATE):
            unfit(kind, status, data)
        usage(data)
        for adapter in ENGINES:
            assert isinstance(adapter.map_error(status, data), RequestError)
            for name in adapter.discover(Role.PREFILL, {"bootstrap_port": 1}):
                try:
                    adapter.learn(name, status, data)
                except ValueError:
                    pass
    for adapter in ENGINES:
        try:
            adapter.load(data, {}, 0.0)
        except ValueError:
            pass
        try:
            adapter.merge(PathKind.GENERATE, data, data)
        except LegFailed:
            pass


# -- what is in a body


def body(data: bytes) -> None:
    """A body is refused, or means to us what it means to any other parser, before and after our edits."""
    try:
        parsed = JsonBody(data)
    except BadRequest:
        return
    pairs = json.loads(data, object_pairs_hook=list, parse_constant=_never)
    assert len({name for name, _ in pairs}) == len(pairs), "a field twice"
    assert _same(json.loads(data), parsed.fields)
    names = list(parsed.fields)
    changed = b"".join(parsed.edit({"room": b"7", **dict.fromkeys(names[:1], b"[]")}, drop=names[1:2]))
    told = json.loads(changed)
    assert told.pop("room") == 7 or "room" in names
    kept = {n: v for n, v in parsed.fields.items() if n not in (*names[:2], "room")}
    assert _same({n: told[n] for n in kept}, kept)
    for name in names:
        assert _same(json.loads(parsed.text(name)), parsed.fields[name])
    try:
        check_depth(parsed, 16)
    except BadRequest:
        return
    for kind in PathKind:
        _viewed(kind, parsed)


def _viewed(kind: PathKind, parsed: JsonBody) -> None:
    try:
        model_of(parsed, ("m",))
        prompt = prompt_of(kind, parsed)
        check_length(prompt, 1000)
        read(kind, parsed, "m", prompt, 7, Asked("r", 0.0, None, None, {}))
    except RequestError:
        pass
    for adapter in ENGINES:
        for disaggregated in (False, True):
            try:
                adapter.check(kind, parsed, disaggregated, {"vocab_size": 1000})
                parts = adapter.split(kind, parsed, disaggregated)
                if adapter.serves(kind, Role.PREFILL, disaggregated) and parts is None:
                    assert adapter.rooms(kind, parsed) >= 1
            except RequestError:
                continue
            for part in parts or ():
                assert orjson.loads(part.raw) == part.fields


def _never(word: str) -> None:
    raise AssertionError(f"{word} is no JSON")


def _same(one: Any, other: Any) -> bool:
    """Whether two parsers mean the same: a number beyond 64 bits is a float to one of them."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[n], other[n]) for n in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, int | float) and isinstance(other, int | float):
        return one == other or math.isclose(one, other, rel_tol=1e-15) or math.isinf(one)
    return bool(one == other)


# -- a topology

_site: list[Path] = []


def _planned(file: Path) -> tuple[str, ...]:
    try:
        plan_file(file, environ={"HOME": "/home/me", "PDCTL_CLIENT_KEY": "a-client-key"})
    except TopologyError as error:
        assert error.problems
        return tuple(map(str, error.problems))
    return ()


def topology(data: bytes) -> None:
    """A topology is planned, or refused with findings that name the file, and twice alike."""
    if not _site:
        _site.append(Path(tempfile.mkdtemp(prefix="pdctl-fuzz-")))
    file = _site[0] / "t.yaml"
    file.write_bytes(data)
    first = _planned(file)
    assert _planned(file) == first


# -- all of them


def _texts(*folders: str) -> list[bytes]:
    return [p.read_bytes() for f in folders for p in sorted((ROOT / f).iterdir()) if p.is_file()]


_GET = b"GET /a?b HTTP/1.1\r\nHost: x\r\n"
_POST = b"POST /stream HTTP/1.1\r\nHost: x\r\n"
_OK = b"HTTP/1.1 200 OK\r\n"
_CHUNKS = b"Transfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\n\r\n"
_LENGTH = b"Content-Length: 5\r\n\r\nhello"
_REQUESTS = [
    _GET + b"\r\n",
    _POST + _LENGTH,
    _POST + _CHUNKS,
    _POST + b"Expect: 100-continue\r\n" + _LENGTH,
    b"POST / HTTP/1.0\r\nConnection: keep-alive\r\n" + _LENGTH,
    _POST + b"Connection: Upgrade\r\nUpgrade: h2c\r\n" + _CHUNKS,
    _GET + b"\r\n" + _POST + _LENGTH,
    _POST + _CHUNKS[:-2] + b"X-T: 1\r\n\r\n" + _GET + b"\r\n",
    _POST + b"Transfer-Encoding: chunked\r\n" + _LENGTH,
]
_HTTP = [
    b"\r\n", b"\n", b"\r", b"\r\n\r\n", b"\x00", b" ", b"\t", b":", b";", b",", b"0\r\n\r\n", b"5\r\nhello\r\n",
    b"Content-Length: 5\r\n", b"content-length: 5\r\n", b"Content-Length: 5, 5\r\n", b"Content-Length: +5\r\n",
    b"Content-Length : 5\r\n", b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: gzip, chunked\r\n",
    b"Transfer-Encoding:\x0bchunked\r\n", b"Transfer-Encoding: identity\r\n", b"Connection: close\r\n",
    b"Connection: keep-alive\r\n", b"Connection: Upgrade\r\nUpgrade: h2c\r\n", b"Host: y\r\n", b" folded\r\n",
    b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"GET ", b"HEAD ", b"CONNECT ", b"OPTIONS * ", b"http://x/", b"fffffff",
    b"100 Continue\r\n\r\n", b"204 No Content", b"304 Not Modified", b"101 Switching Protocols",
]  # fmt: skip
_ANSWERS = [
    _OK + _LENGTH,
    _OK + _CHUNKS,
    _OK + b"\r\nto the end",
    b"HTTP/1.1 100 Continue\r\n\r\n" + _OK + _LENGTH,
    b"HTTP/1.1 204 No Content\r\n\r\n",
    b"HTTP/1.0 503 Busy\r\n" + _LENGTH,
    b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n",
]
_EVENT = b'data: {"id":"e","choices":[{"index":0,"text":"a","finish_reason":null}]}\n\n'
_STREAMS = [
    _EVENT + _EVENT.replace(b'"a"', b'"b"') + b"data: [DONE]\n\n",
    b'data: {"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
    b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":"stop"}]}\n\n'
    b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":5,"completion_tokens":1,"total_tokens":6}}\n\n'
    b"data: [DONE]\n\n",
    _EVENT + b'data: {"error": {"message": "m", "code": 400}}\n\n',
    (_EVENT + b"data: [DONE]\n\n").replace(b"\n", b"\r\n"),
    b'data: {"text":"a","output_ids":[1],"meta_info":{"finish_reason":{"type":"abort"},"id":"x"}}\n\n',
    b": ping\n\n" + _EVENT,
]
_JSON = [
    b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"\\\\", b'\\"', b"\\u0061", b"\\ud800", b"null", b"true", b"1e999",
    b"-0", b"1.5", b"18446744073709551616", b"NaN", b'"a":1,', b'"n":', b'"prompt":', b'"messages":', b'"role":"user"',
    b'"content":', b'"stream":true,', b'"sampling_params":{"n":2}', b'"input_ids":[[1],[2]]', b"\xff", b"\xc3\xa9", b"\x00",
]  # fmt: skip
_BODIES = [
    b'{"model":"m","prompt":"hello","max_tokens":5}',
    b'{"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}], "n": 2, "stream": false}',
    b'{ "input_ids" : [1, 2, 3], "sampling_params": {"n": 1, "max_new_tokens": 7} }',
    b'{"prompt":["a","b"],"logprobs":1,"logit_bias":{"5":1},"top_k":3,"kv_transfer_params":{"a":"\\"}"}}',
    b'{"text":["a","b"],"image_data":["x"],"bootstrap_room":1,"p\\u0072ompt":null}',
]
_SSE = [
    b"data: ", b"data:", b"\n\n", b"\r\n\r\n", b"\n", b"\r\n", b": c\n", b"event: x\n", b"[DONE]", b'{"error"', b'{"error": {}}',
    b'"finish_reason":"abort"', b'"finish_reason":{"type":"error"}', b'"usage":{', b'"usage":{"prompt_tokens":1}', b'"id":""',
    b'"delta":{"role":"assistant"}', b'"text":"x"', b'data: {"error":1}\n\n', b'"completion_tokens":3', b'"choices":[]',
]  # fmt: skip

TARGETS = {
    target.name: target
    for target in (
        Target("request", request, _REQUESTS, _HTTP),
        Target("server", server, _REQUESTS, _HTTP),
        Target("answer", answer, _ANSWERS, _HTTP),
        Target("stream", stream, _STREAMS, (*_SSE, *_JSON)),
        Target("engine", engine, _texts("tests/data/sglang", "tests/data/vllm"), (*_JSON, *_SSE)),
        Target("body", body, _BODIES, _JSON),
        Target("topology", topology, _texts("examples"), _JSON),
    )
}
