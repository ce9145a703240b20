"""The server and its exchange on real sockets: framings, refusals, deadlines, back-pressure, drains."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from orchestrator.wire.limits import TOLD
from orchestrator.wire.server import Exchange, Handler, Refusal, Server, WireLimits, serve

GUARD_S = 20.0
GET = b"GET / HTTP/1.1\r\nHost: x\r\n"
POST = b"POST / HTTP/1.1\r\nHost: x\r\n"


@asynccontextmanager
async def serving(handler: Handler, limits: WireLimits | None = None) -> AsyncIterator[Server]:
    server = await serve(handler, host="127.0.0.1", port=0, limits=limits)
    try:
        yield server
    finally:
        await server.drained(0.0)


async def connect(server: Server) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", server.port)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(GUARD_S):
        while not condition():  # noqa: ASYNC110  what is waited for tells nobody
            await asyncio.sleep(0.002)


async def talk(server: Server, *pieces: bytes) -> bytes:
    """Send the pieces and read until the server closes."""
    reader, writer = await connect(server)
    for piece in pieces:
        writer.write(piece)
        await asyncio.sleep(0)
    async with asyncio.timeout(GUARD_S):
        answer = await reader.read()
    writer.close()
    return answer


def echo(exchange: Exchange) -> None:
    exchange.respond(200, exchange.body)


def parts(exchange: Exchange) -> None:
    exchange.start(200, ((b"x-a", b"1"),))
    exchange.write(b"abc")
    exchange.write(b"")
    exchange.write(b"de")
    exchange.end()


def unchanged(exchange: Exchange) -> None:
    exchange.start(304)
    exchange.end()


def sized(exchange: Exchange) -> None:
    exchange.start(200, length=5)
    exchange.write(b"abc")
    exchange.write(b"de")
    exchange.end()


CLOSE = b"Connection: close\r\n"
ANSWERS: list[tuple[Handler, bytes, bytes]] = [
    (
        echo,
        POST + CLOSE + b"Content-Length: 2\r\n\r\nhi",
        b"connection: close\r\ncontent-length: 2\r\n\r\nhi",
    ),
    (echo, GET + CLOSE + b"\r\n", b"content-length: 0\r\n\r\n"),
    (
        parts,
        GET + CLOSE + b"\r\n",
        b"x-a: 1\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n",
    ),
    (sized, GET + CLOSE + b"\r\n", b"content-length: 5\r\n\r\nabcde"),
    (parts, b"GET / HTTP/1.0\r\n\r\n", b"connection: close\r\n\r\nabcde"),
    (parts, b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", b"connection: close\r\n\r\nabcde"),
    (echo, b"POST / HTTP/1.0\r\nContent-Length: 2\r\n\r\nhi", b"content-length: 2\r\n\r\nhi"),
    (sized, b"HEAD / HTTP/1.1\r\nHost: x\r\n" + CLOSE + b"\r\n", b"content-length: 5\r\n\r\n"),
    (parts, b"HEAD / HTTP/1.1\r\nHost: x\r\n" + CLOSE + b"\r\n", b"transfer-encoding: chunked\r\n\r\n"),
    (
        lambda e: e.respond(200, b"body"),
        b"HEAD / HTTP/1.1\r\nHost: x\r\n" + CLOSE + b"\r\n",
        b"content-length: 4\r\n\r\n",
    ),
    (lambda e: e.respond(204, b""), GET + CLOSE + b"\r\n", b"connection: close\r\n\r\n"),
    (unchanged, GET + CLOSE + b"\r\n", b"connection: close\r\n\r\n"),
]


@pytest.mark.parametrize(("handler", "request_", "expected"), ANSWERS)
async def test_framing_of_answers(handler: Handler, request_: bytes, expected: bytes) -> None:
    async with serving(handler) as server:
        answer = await talk(server, request_)
    head = answer[: answer.index(b"\r\n\r\n") + 4]
    assert head.startswith(b"HTTP/1.1 ")
    assert b"server: pdctl\r\n" in head
    assert answer.endswith(expected)


async def test_unknown_status_codes_have_a_status_line() -> None:
    async with serving(lambda e: e.respond(799, b"")) as server:
        assert (await talk(server, GET + CLOSE + b"\r\n")).startswith(b"HTTP/1.1 799 ")


async def test_keep_alive_serves_one_request_after_another() -> None:
    seen: list[str] = []

    def handler(exchange: Exchange) -> None:
        seen.append(f"{exchange.method} {exchange.path} {exchange.query.decode()} {exchange.peer}")
        exchange.respond(200, exchange.body)

    async with serving(handler) as server:
        reader, writer = await connect(server)
        for _ in range(3):
            writer.write(b"POST /a?b=c HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi")
            assert (await reader.readuntil(b"\r\n\r\nhi")).startswith(b"HTTP/1.1 200 OK\r\n")
        assert len(server.connections) == 1
        host, port = writer.get_extra_info("sockname")
        writer.close()
    assert seen == [f"POST /a b=c {host}:{port}"] * 3


async def test_1_0_keep_alive_is_told() -> None:
    async with serving(echo) as server:
        reader, writer = await connect(server)
        for _ in range(2):
            writer.write(b"POST / HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nhi")
            assert b"connection: keep-alive\r\n" in await reader.readuntil(b"\r\n\r\nhi")
        writer.close()


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        (b"/", "/", b""),
        (b"/a?b=c?d", "/a", b"b=c?d"),
        (b"http://x:1/a?b", "/a", b"b"),
        (b"http://x", "/", b""),
        (b"/a%20b", "/a%20b", b""),
    ],
)
async def test_targets(target: bytes, path: str, query: bytes) -> None:
    seen: list[tuple[str, bytes]] = []

    def handler(exchange: Exchange) -> None:
        seen.append((exchange.path, exchange.query))
        exchange.respond(200, b"")

    async with serving(handler) as server:
        await talk(server, b"GET %b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % target)
    assert seen == [(path, query)]


async def test_headers_by_name() -> None:
    async with serving(
        lambda e: e.respond(200, (e.header(b"x-a") or b"") + repr(e.header(b"x-b")).encode())
    ) as s:
        answer = await talk(s, GET + CLOSE + b"X-A: one\r\nX-A: two\r\n\r\n")
    assert answer.endswith(b"oneNone")


async def test_continue_is_sent_when_the_client_waits_for_it() -> None:
    async with serving(echo) as server:
        reader, writer = await connect(server)
        writer.write(POST + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"hi")
        assert (await reader.readuntil(b"hi")).startswith(b"HTTP/1.1 200 ")
        writer.close()


async def test_no_continue_for_a_body_that_is_there_or_refused() -> None:
    async with serving(echo, WireLimits(max_body_bytes=10)) as server:
        ask = POST + CLOSE + b"Expect: 100-continue\r\nContent-Length: "
        assert (await talk(server, ask + b"2\r\n\r\nhi")).startswith(b"HTTP/1.1 200 ")
        assert (await talk(server, ask + b"11\r\n\r\n")).startswith(b"HTTP/1.1 413 ")


REFUSALS = [
    (400, POST + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"),
    (413, POST + b"Content-Length: 1001\r\n\r\n"),
    (431, GET + b"X: " + b"a" * 5000),
    (501, b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n"),
    (505, b"GET / HTTP/2.0\r\nHost: x\r\n\r\n"),
]


@pytest.mark.parametrize(("status", "raw"), REFUSALS)
async def test_refusals_have_a_body_and_close(status: int, raw: bytes) -> None:
    def on_bad(code: int, message: str) -> Refusal:
        return Refusal(b"bad:%d:%b" % (code, message.encode()), ((b"x-why", b"bad"),))

    limits = WireLimits(max_body_bytes=1000, max_header_bytes=4096)
    server = await serve(echo, host="127.0.0.1", port=0, limits=limits, on_bad=on_bad)
    answer = await talk(server, raw)
    await server.drained(0.0)
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert b"connection: close\r\n" in answer
    assert b"\r\nx-why: bad\r\n" in answer
    assert b"bad:%d:" % status in answer


async def test_a_refusal_names_the_limit_and_survives_what_the_client_still_sends() -> None:
    async with serving(echo, WireLimits(max_body_bytes=1000)) as server:
        reader, writer = await connect(server)
        writer.write(POST + b"Content-Length: 4000000\r\n\r\n")
        for _ in range(40):
            writer.write(b"a" * 100_000)
        answer = await asyncio.wait_for(reader.read(), GUARD_S)
        writer.close()
    assert b"the limit of 1000 bytes" in answer


async def test_a_pipelined_request_is_refused_after_the_first_is_answered() -> None:
    waiting: list[Exchange] = []
    async with serving(waiting.append) as server:
        reader, writer = await connect(server)
        writer.write(GET + b"\r\n" + GET + b"\r\n")
        await until(lambda: waiting)
        waiting[0].respond(200, b"first")
        answer = await asyncio.wait_for(reader.read(), GUARD_S)
        writer.close()
    assert answer.count(b"HTTP/1.1 ") == 2
    assert answer.index(b"first") < answer.index(b"HTTP/1.1 400 ")
    assert len(waiting) == 1


async def test_a_request_sent_while_one_is_answered_is_refused_too() -> None:
    waiting: list[Exchange] = []
    async with serving(waiting.append) as server:
        reader, writer = await connect(server)
        writer.write(GET + b"\r\n")
        await until(lambda: waiting)
        writer.write(b"\r\n")
        await asyncio.sleep(0.02)
        waiting[0].start(200)
        writer.write(GET + b"\r\n")
        await asyncio.sleep(0.02)
        waiting[0].end()
        answer = await asyncio.wait_for(reader.read(), GUARD_S)
        writer.close()
    assert answer.endswith(b'"code":400}}')
    assert len(waiting) == 1


@pytest.mark.parametrize(
    ("raw", "part"), [(b"GET / HT", b"head"), (POST + b"Content-Length: 5\r\n\r\nab", b"body")]
)
async def test_slow_requests_are_timed_out(raw: bytes, part: bytes) -> None:
    async with serving(echo, WireLimits(header_timeout_s=0.05, body_timeout_s=0.05)) as server:
        answer = await talk(server, raw)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"request's " + part in answer


async def test_a_request_that_dribbles_is_timed_out_all_the_same() -> None:
    async with serving(echo, WireLimits(header_timeout_s=0.1)) as server:
        reader, writer = await connect(server)
        reading = asyncio.create_task(reader.read())
        async with asyncio.timeout(GUARD_S):
            writer.write(GET)
            while not reading.done():
                writer.write(b"X: 1\r\n")
                await asyncio.sleep(0.01)
        writer.close()
    assert reading.result().startswith(b"HTTP/1.1 408 ")


async def test_idle_connections_are_closed_without_a_word() -> None:
    async with serving(echo, WireLimits(header_timeout_s=0.05)) as server:
        reader, writer = await connect(server)
        assert await asyncio.wait_for(reader.read(), GUARD_S) == b""
        writer.close()
    async with serving(echo, WireLimits(idle_timeout_s=0.05)) as server:
        reader, writer = await connect(server)
        writer.write(GET + b"\r\n")
        assert (await asyncio.wait_for(reader.read(), GUARD_S)).endswith(b"content-length: 0\r\n\r\n")
        writer.close()


async def test_the_handler_is_told_that_the_client_left() -> None:
    waiting: list[Exchange] = []
    left: list[int] = []

    def handler(exchange: Exchange) -> None:
        waiting.append(exchange)
        exchange.on_close = lambda: left.append(1)

    async with serving(handler) as server:
        _, writer = await connect(server)
        writer.write(GET + b"\r\n")
        await until(lambda: waiting)
        writer.transport.abort()
        await until(lambda: left)
        exchange = waiting[0]
        assert exchange.closed
        exchange.start(200)
        exchange.write(b"nobody hears this")
        exchange.end()
        assert left == [1]
        assert not server.connections


async def test_no_word_of_a_client_that_leaves_after_its_answer() -> None:
    left: list[int] = []

    def handler(exchange: Exchange) -> None:
        exchange.on_close = lambda: left.append(1)
        exchange.respond(200, b"")

    async with serving(handler) as server:
        _, writer = await connect(server)
        writer.write(GET + b"\r\n")
        await asyncio.sleep(0.02)
        writer.transport.abort()
        await until(lambda: not server.connections)
    assert not left


async def test_abort_cuts_the_connection() -> None:
    def handler(exchange: Exchange) -> None:
        exchange.start(200)
        exchange.write(b"abc")
        exchange.abort()

    async with serving(handler) as server:
        reader, writer = await connect(server)
        writer.write(GET + b"\r\n")
        try:
            answer = await asyncio.wait_for(reader.read(), GUARD_S)
        except ConnectionError:
            answer = b""
        assert not answer.endswith(b"0\r\n\r\n")
        writer.close()
        await until(lambda: not server.connections)


async def test_an_answer_short_of_its_length_is_cut() -> None:
    def handler(exchange: Exchange) -> None:
        exchange.start(200, length=10)
        exchange.write(b"abc")
        exchange.end()

    async with serving(handler) as server:
        reader, writer = await connect(server)
        writer.write(GET + b"\r\n")
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await asyncio.wait_for(reader.readuntil(b"never there"), GUARD_S)
        writer.close()


async def test_misuse_is_an_error() -> None:
    errors: list[str] = []

    def misuse(*steps: Callable[[], None]) -> None:
        for step in steps:
            try:
                step()
            except RuntimeError as error:
                errors.append(str(error))

    def handler(exchange: Exchange) -> None:
        misuse(lambda: exchange.write(b"x"), exchange.end)
        exchange.start(200, length=1)
        misuse(lambda: exchange.start(200), lambda: exchange.respond(200, b""), lambda: exchange.write(b"xx"))
        exchange.abort()
        misuse(lambda: exchange.write(b"x"), exchange.end)

    async with serving(handler) as server:
        _, writer = await connect(server)
        writer.write(GET + b"\r\n")
        await until(lambda: len(errors) == 7)
        writer.close()


async def test_a_handler_that_raises_costs_one_request() -> None:
    def handler(exchange: Exchange) -> None:
        if exchange.path == "/late":
            exchange.start(200)
        raise ValueError("a bug")

    async with serving(handler) as server:
        reader, writer = await connect(server)
        for _ in range(2):
            writer.write(GET + b"\r\n")
            assert (await reader.readuntil(b"}}")).startswith(b"HTTP/1.1 500 ")
        writer.write(b"GET /late HTTP/1.1\r\nHost: x\r\n\r\n")
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await asyncio.wait_for(reader.readuntil(b"0\r\n\r\n"), GUARD_S)
        writer.close()


async def flood(exchange: Exchange, piece: bytes, total: list[int]) -> None:
    """Write as fast as the client lets us."""
    free = asyncio.Event()
    free.set()
    exchange.on_pause = free.clear
    exchange.on_resume = free.set
    exchange.start(200)
    while not exchange.closed and total[0] < 50_000_000:
        await free.wait()
        exchange.write(piece)
        total[0] += len(piece)
        await asyncio.sleep(0)


async def test_back_pressure_reaches_the_handler_and_lets_go() -> None:
    sent = [0]
    tasks: list[asyncio.Task[None]] = []
    seen: list[Exchange] = []

    def handler(exchange: Exchange) -> None:
        seen.append(exchange)
        tasks.append(asyncio.create_task(flood(exchange, b"a" * 65536, sent)))

    async with serving(handler) as server:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", server.port))
        reader, writer = await asyncio.open_connection(sock=sock, limit=65536)
        writer.write(GET + b"\r\n")
        await until(lambda: seen and seen[0].paused)
        before = sent[0]
        await asyncio.sleep(0.05)
        assert sent[0] == before < 20_000_000
        await reader.readexactly(20_000_000)
        await until(lambda: sent[0] > before)
        writer.transport.abort()
        await until(lambda: seen[0].closed)
        tasks[0].cancel()


async def test_a_client_that_never_reads_is_cut() -> None:
    left: list[int] = []

    def handler(exchange: Exchange) -> None:
        exchange.on_close = lambda: left.append(1)
        exchange.start(200)
        exchange.write(b"a" * 50_000_000)

    async with serving(handler, WireLimits(stall_timeout_s=0.05)) as server:
        _, writer = await connect(server)
        writer.write(GET + b"\r\n")
        await until(lambda: left)
        await until(lambda: not server.connections)
        writer.close()


async def test_a_slow_reader_gets_all_of_a_last_answer() -> None:
    async with serving(lambda e: e.respond(200, b"a" * 20_000_000)) as server:
        reader, writer = await connect(server)
        writer.write(GET + CLOSE + b"\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(0.05)
        body = await asyncio.wait_for(reader.read(), GUARD_S)
        writer.close()
    assert b"content-length: 20000000" in head
    assert len(body) == 20_000_000


async def test_drain_lets_what_runs_end_and_closes_the_rest() -> None:
    waiting: list[Exchange] = []
    server = await serve(waiting.append, host="127.0.0.1", port=0)
    idle_reader, idle_writer = await connect(server)
    reader, writer = await connect(server)
    writer.write(GET + b"\r\n")
    await until(lambda: waiting)
    draining = asyncio.create_task(server.drained(GUARD_S))
    assert await asyncio.wait_for(idle_reader.read(), GUARD_S) == b""
    await asyncio.sleep(0.02)
    assert not draining.done()
    waiting[0].respond(200, b"last")
    assert await draining is True
    assert (await asyncio.wait_for(reader.read(), GUARD_S)).endswith(b"last")
    with pytest.raises(OSError):
        await connect(server)
    for one in (writer, idle_writer):
        one.close()


async def test_drain_answers_a_client_that_has_just_connected() -> None:
    """To be closed without a word would be a failed request to it; later ones find nobody listening."""
    server = await serve(lambda e: e.respond(200, b"still"), host="127.0.0.1", port=0)
    reader, writer = await connect(server)
    await until(lambda: server.connections)
    draining = asyncio.create_task(server.drained(GUARD_S))
    await until(lambda: server.closing)
    writer.write(GET + b"\r\n")
    answer = await asyncio.wait_for(reader.read(), GUARD_S)
    assert answer.endswith(b"still")
    assert b"connection: close" in answer
    assert await draining is True
    writer.close()


async def test_drain_cuts_what_is_late() -> None:
    waiting: list[Exchange] = []
    server = await serve(waiting.append, host="127.0.0.1", port=0)
    _, writer = await connect(server)
    writer.write(GET + b"\r\n")
    await until(lambda: waiting)
    assert await server.drained(0.01) is False
    assert waiting[0].closed
    writer.close()


async def test_serves_a_unix_socket(tmp_path: Path) -> None:
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(str(tmp_path / "s"))
    seen: list[str] = []

    def handler(exchange: Exchange) -> None:
        seen.append(exchange.peer)
        exchange.respond(200, b"here")

    server = await serve(handler, sock=sock)
    reader, writer = await asyncio.open_unix_connection(str(tmp_path / "s"))
    writer.write(GET + CLOSE + b"\r\n")
    assert (await asyncio.wait_for(reader.read(), GUARD_S)).endswith(b"here")
    writer.close()
    await server.drained(0.0)
    assert seen == ["unix"]
    assert server.port == 0


async def test_serves_a_bound_tcp_socket() -> None:
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    server = await serve(echo, sock=sock)
    assert server.port == sock.getsockname()[1]
    assert (await talk(server, GET + CLOSE + b"\r\n")).startswith(b"HTTP/1.1 200 ")
    await server.drained(0.0)


async def test_many_connections_at_once() -> None:
    async def one(server: Server, number: int) -> bytes:
        body = b"%d" % number
        head = POST + CLOSE + b"Content-Length: %d\r\n\r\n" % len(body)
        return (await talk(server, head, body)).partition(b"\r\n\r\n")[2]

    async with serving(echo) as server:
        work: list[Awaitable[bytes]] = [one(server, number) for number in range(100)]
        assert await asyncio.gather(*work) == [b"%d" % number for number in range(100)]
        await until(lambda: not server.connections)


async def test_connections_beyond_the_most_are_told_so_and_those_from_before_are_served() -> None:
    async with serving(echo, WireLimits(max_connections=1)) as server:
        reader, writer = await connect(server)
        await until(lambda: server.connections)
        told = await talk(server, GET + b"\r\n")
        assert told.startswith(b"HTTP/1.1 503 ")
        assert b"too many connections" in told
        writer.write(GET + b"\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
        writer.close()
        await until(lambda: not server.connections)
        assert (await talk(server, GET + CLOSE + b"\r\n")).startswith(b"HTTP/1.1 200 ")


async def test_far_too_many_connections_are_cut_without_a_word() -> None:
    async with serving(echo, WireLimits(max_connections=1)) as server:
        open_ = [await connect(server) for _ in range(TOLD + 20)]
        await until(lambda: len(server.connections) <= TOLD + 1)
        assert len(server.connections) > 1
        for _, writer in open_:
            writer.transport.abort()
