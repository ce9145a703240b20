"""The request reader: what it takes, what it refuses, and that no split of the bytes changes either."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.wire.heads import Heads
from orchestrator.wire.reader import Refused, RequestHead, RequestReader

GET = b"GET /a?b=c HTTP/1.1\r\nHost: x\r\n"
POST = b"POST /a HTTP/1.1\r\nHost: x\r\n"


@dataclass(frozen=True)
class Result:
    """What became of some bytes."""

    refused: int | None = None
    complete: bool = False
    extra: bool = False
    method: str = ""
    target: bytes = b""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    body: bytes = b""
    keep_alive: bool = False


def read(*pieces: bytes, head: int = 400, body: int = 100, heads: Heads[RequestHead] | None = None) -> Result:
    """Feed the pieces to a new reader until one is refused or the request is whole."""
    reader = RequestReader(max_head_bytes=head, max_body_bytes=body, heads=heads)
    try:
        for piece in pieces:
            if reader.complete:
                # The server does not read on; it remembers what else came.
                reader.extra = reader.extra or bool(piece.strip(b"\r\n"))
                continue
            reader.feed(piece)
    except Refused as refused:
        return Result(refused=refused.status)
    if not reader.complete:
        return Result()
    assert reader.head is not None
    return Result(
        complete=True,
        extra=reader.extra,
        method=reader.head.method,
        target=reader.head.target,
        headers=reader.head.headers,
        body=reader.take_body(),
        keep_alive=reader.head.keep_alive,
    )


WHOLE = {
    "get": GET + b"Accept: */*\r\n\r\n",
    "leading line ends": b"\r\n\r\n" + GET + b"\r\n",
    "length": POST + b"Content-Length: 5\r\n\r\nhello",
    "empty body": POST + b"Content-Length: 0\r\n\r\n",
    "chunked": POST + b"Transfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\n\r\n",
    "chunked with a trailer": POST + b"Transfer-Encoding: Chunked\r\n\r\n5\r\nhello\r\n0\r\nX-T: 1\r\n\r\n",
    "1.0": b"POST / HTTP/1.0\r\nContent-Length: 5\r\n\r\nhello",
    "close": GET + b"Connection: close\r\n\r\n",
    "h2c offered, no body": GET + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\r\n",
    "h2c offered, length": POST + b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 5\r\n\r\nhello",
    "h2c offered, chunked": POST
    + b"Connection: Upgrade\r\nUpgrade: h2c\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "pipelined": POST + b"Content-Length: 5\r\n\r\nhello" + GET + b"\r\n",
    "pipelined after chunked": POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n",
    "garbage after a body": POST + b"Content-Length: 5\r\n\r\nhello\x00\x01",
    "stray line end after a body": POST + b"Content-Length: 5\r\n\r\nhello\r\n",
    "absolute target": b"GET http://x/a HTTP/1.1\r\nHost: x\r\n\r\n",
    "head of just the limit": GET + b"X: " + b"a" * (400 - len(GET) - 7) + b"\r\n\r\n",
}
REFUSED = {
    "both framings": (400, POST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    "both framings the other way": (400, POST + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n"),
    "two lengths": (400, POST + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd"),
    "length of two": (400, POST + b"Content-Length: 3, 4\r\n\r\nabcd"),
    "signed length": (400, POST + b"Content-Length: +3\r\n\r\nabc"),
    "huge length": (400, POST + b"Content-Length: 99999999999999999999\r\n\r\n"),
    "gzip coding": (501, POST + b"Transfer-Encoding: gzip\r\n\r\n"),
    "gzip, chunked": (501, POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
    "chunked twice": (400, POST + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n"),
    "chunked in 1.0": (501, b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    "folded header": (400, GET + b"X: a\r\n b\r\n\r\n"),
    "space before the colon": (400, GET + b"X : a\r\n\r\n"),
    "bad header name": (400, GET + b"X(1): a\r\n\r\n"),
    "no header name": (400, GET + b": a\r\n\r\n"),
    "NUL in a value": (400, GET + b"X: a\x00\r\n\r\n"),
    "bare CR in a value": (400, GET + b"X: a\rY: b\r\n\r\n"),
    "bare LF": (400, b"GET / HTTP/1.1\nHost: x\n\n"),
    "no host": (400, b"GET / HTTP/1.1\r\n\r\n"),
    "two hosts": (400, GET + b"Host: y\r\n\r\n"),
    "HTTP/2 preface": (400, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "HTTP/2.0": (505, b"GET / HTTP/2.0\r\nHost: x\r\n\r\n"),
    "HTTP/1.2": (505, b"GET / HTTP/1.2\r\nHost: x\r\n\r\n"),
    "HTTP/0.9": (505, b"GET /\r\n\r\n"),
    "TLS": (400, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
    "unknown method": (400, b"BREW / HTTP/1.1\r\nHost: x\r\n\r\n"),
    "CONNECT": (501, b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n"),
    "websocket": (501, GET + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"),
    "head over the limit": (431, GET + b"X: " + b"a" * 400 + b"\r\n\r\n"),
    "one byte over": (431, GET + b"X: " + b"a" * (400 - len(GET) - 6) + b"\r\n\r\n"),
    "endless target": (431, b"GET /" + b"a" * 1000),
    "length over the limit": (413, POST + b"Content-Length: 101\r\n\r\n"),
    "chunks over the limit": (413, POST + b"Transfer-Encoding: chunked\r\n\r\n65\r\n" + b"a" * 101 + b"\r\n"),
    "bad chunk size": (400, POST + b"Transfer-Encoding: chunked\r\n\r\n0x3\r\nabc\r\n0\r\n\r\n"),
    "chunk without its end": (400, POST + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n"),
}


@pytest.mark.parametrize("name", WHOLE)
def test_takes(name: str) -> None:
    result = read(WHOLE[name])
    assert result.complete
    assert result.refused is None
    assert result.extra == name.startswith(("pipelined", "garbage"))
    assert result.body in (b"", b"hello")
    assert all(header == header.lower() for header, _ in result.headers)


@pytest.mark.parametrize("name", REFUSED)
def test_refuses(name: str) -> None:
    status, raw = REFUSED[name]
    assert read(raw).refused == status


def split(raw: bytes, cuts: list[int]) -> list[bytes]:
    """The bytes cut at the given places."""
    places = sorted({0, len(raw), *(cut % (len(raw) + 1) for cut in cuts)})
    return [raw[a:b] for a, b in pairwise(places)]


CUTS = st.lists(st.integers(min_value=0, max_value=2000), max_size=30)
ALL = [*WHOLE.values(), *(raw for _, raw in REFUSED.values())]


@given(raw=st.sampled_from(ALL), cuts=CUTS)
def test_any_split_reads_the_same(raw: bytes, cuts: list[int]) -> None:
    assert read(*split(raw, cuts)) == read(raw)


@pytest.mark.parametrize("raw", ALL)
def test_byte_by_byte_reads_the_same(raw: bytes) -> None:
    assert read(*(raw[i : i + 1] for i in range(len(raw)))) == read(raw)


SIZES = [b"5", b"7", b"05", b"0", b"", b"+5", b"5 ", b"5, 5", b"0x5", b"9" * 30]
LENGTHS = [b"Content-Length: ", b"content-length: ", b"X-Content-Length: ", b"CONTENT-LENGTH: "]


@st.composite
def framed(draw: st.DrawFn) -> bytes:
    """A request whose lengths, one or several under whatever name, may be wrong."""
    lines = draw(
        st.lists(st.tuples(st.sampled_from(LENGTHS), st.sampled_from(SIZES)), min_size=1, max_size=3)
    )
    head = POST + b"".join(name + size + b"\r\n" for name, size in lines)
    return head + b"\r\n" + draw(st.sampled_from((b"", b"hello", b"hello!!", b"hello" + GET + b"\r\n")))


@given(raws=st.lists(st.one_of(framed(), st.sampled_from(ALL)), min_size=2, max_size=8))
def test_kept_heads_change_nothing(raws: list[bytes]) -> None:
    heads: Heads[RequestHead] = Heads()
    for raw in (*raws, *raws):
        assert read(raw, heads=heads) == read(raw)


def test_a_head_is_parsed_once() -> None:
    heads: Heads[RequestHead] = Heads()
    reader = RequestReader(max_head_bytes=400, max_body_bytes=100, heads=heads)
    seen = []
    for size in (5, 7, 100):
        reader.feed(POST + b"Content-Length: %d\r\n\r\n" % size + b"a" * size)
        seen.append(reader.head)
        assert reader.complete
        assert reader.take_body() == b"a" * size
        reader.clear()
    assert seen[0] is seen[1] is seen[2]
    with pytest.raises(Refused):
        reader.feed(POST + b"Content-Length: 101\r\n\r\n" + b"a" * 101)


@given(raw=st.binary(max_size=200), cuts=CUTS)
def test_no_bytes_break_it(raw: bytes, cuts: list[int]) -> None:
    assert read(*split(raw, cuts)) == read(raw)


def test_what_is_read() -> None:
    result = read(POST + b"X-A:  one \t\r\nContent-Length: 5\r\n\r\nhello")
    assert result.method == "POST"
    assert result.target == b"/a"
    assert result.headers == ((b"host", b"x"), (b"x-a", b"one"))
    assert result.keep_alive


def test_trailers_are_no_headers() -> None:
    names = [name for name, _ in read(WHOLE["chunked with a trailer"]).headers]
    assert names == [b"host"]


def test_the_next_request_of_a_connection() -> None:
    reader = RequestReader(max_head_bytes=400, max_body_bytes=100)
    for name in ("length", "h2c offered, length", "chunked", "get", "h2c offered, no body", "empty body"):
        reader.feed(WHOLE[name])
        assert reader.complete, name
        assert not reader.extra, name
        assert reader.take_body() == read(WHOLE[name]).body
        reader.clear()
        assert not reader.complete


def test_many_tiny_chunks_are_kept_in_one_buffer() -> None:
    body = b"".join(b"1\r\n%c\r\n" % (65 + i % 26) for i in range(100))
    result = read(POST + b"Transfer-Encoding: chunked\r\n\r\n" + body + b"0\r\n\r\n")
    assert result.body == bytes(65 + i % 26 for i in range(100))


def test_waits_for_continue_only_in_1_1() -> None:
    for version, wants in ((b"1.1", True), (b"1.0", False)):
        reader = RequestReader(max_head_bytes=400, max_body_bytes=100)
        reader.feed(
            b"POST / HTTP/%b\r\nHost: x\r\nExpect: 100-Continue\r\nContent-Length: 1\r\n\r\n" % version
        )
        assert reader.wants_continue is wants
