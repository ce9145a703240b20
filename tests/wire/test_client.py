"""The pool and its connection against a raw scripted peer: framings, reuse, failures, back-pressure."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.wire.client import (
    BadAnswer,
    ConnectError,
    Connection,
    Dropped,
    Pool,
    Progress,
    WireError,
    request_head,
)

GUARD_S = 20.0
OK = b"HTTP/1.1 200 OK\r\n"

Peer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Heard:
    """A sink that keeps what it hears, and in which order."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.body = b""
        self.error: Exception | None = None
        self.over = asyncio.Event()
        self.then: Callable[[str], None] = lambda call: None

    def on_head(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        self.status, self.headers = status, list(headers)
        self._heard("head")

    def on_body(self, data: bytes) -> None:
        assert data
        self.body += data
        self._heard("body")

    def on_end(self) -> None:
        self._heard("end")
        self.over.set()

    def on_failure(self, error: Exception) -> None:
        assert isinstance(error, WireError)
        self.error = error
        self._heard("failure")
        self.over.set()

    def _heard(self, call: str) -> None:
        assert not self.over.is_set(), f"{call} after the end"
        if not (call == "body" and self.calls and self.calls[-1] == "body"):
            self.calls.append(call)
        self.then(call)


class Ground:
    """A pool and a raw peer that it connects to."""

    def __init__(self, pool: Pool, port: int) -> None:
        self.pool = pool
        self.port = port

    async def call(
        self, body: bytes = b"", *, idle_s: float = 5.0, heard: Heard | None = None
    ) -> tuple[Heard, Connection]:
        """Send one request and wait for the end of its answer."""
        heard = heard or Heard()
        connection = await self.pool.acquire("127.0.0.1", self.port, idle_s)
        connection.send(request_head("POST", "/", "x", (("a", "b"),), len(body)), (body,), heard)
        async with asyncio.timeout(GUARD_S):
            await heard.over.wait()
        return heard, connection


@asynccontextmanager
async def ground(peer: Peer, **options: float) -> AsyncIterator[Ground]:
    """See Ground; `peer` has each connection."""
    tasks: set[asyncio.Task[None]] = set()

    async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await peer(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            tasks.discard(task)

    server = await asyncio.start_server(run, "127.0.0.1", 0)
    pool = Pool(**options)  # type: ignore[arg-type]
    try:
        yield Ground(pool, server.sockets[0].getsockname()[1])
    finally:
        pool.close()
        server.close()
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def request(reader: asyncio.StreamReader) -> bytes:
    """Read one request."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
    return head + await reader.readexactly(length)


def always(*pieces: bytes, close: bool = False) -> Peer:
    """Answer every request of a connection with the pieces."""

    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await request(reader)
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
            if close:
                return

    return peer


CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n"
ANSWERS = {
    "length": (OK + b"Content-Length: 5\r\n\r\nhello", b"hello", True),
    "chunked": (CHUNKED, b"hello", True),
    "trailer": (CHUNKED[:-2] + b"X: 1\r\n\r\n", b"hello", True),
    "empty": (OK + b"Content-Length: 0\r\n\r\n", b"", True),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", b"", True),
    "interim": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: x\r\n\r\n" + CHUNKED,
        b"hello",
        True,
    ),
    "error": (b"HTTP/1.1 500 Oops\r\nContent-Length: 5\r\n\r\nhello", b"hello", True),
    "asked to close": (OK + b"Connection: close\r\nContent-Length: 5\r\n\r\nhello", b"hello", False),
    "1.0": (b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello", b"hello", False),
}


@pytest.mark.parametrize("name", ANSWERS)
async def test_framing_of_answers(name: str) -> None:
    raw, body, kept = ANSWERS[name]
    async with ground(always(raw, close=not kept)) as one:
        heard, _ = await one.call(b"ask")
        assert heard.calls == (["head", "body", "end"] if body else ["head", "end"])
        assert heard.body == body
        assert heard.status == int(raw.rpartition(b"HTTP/1.")[2][2:5])
        assert all(header == header.lower() for header, _ in heard.headers)
        assert (one.pool.stats.idle == 1) is kept


async def test_an_answer_that_ends_with_the_connection() -> None:
    async with ground(always(OK + b"\r\nhel", b"lo", close=True)) as one:
        heard, _ = await one.call()
        assert heard.calls == ["head", "body", "end"]
        assert heard.body == b"hello"
        assert one.pool.stats.open == 0


@given(
    name=st.sampled_from(sorted(ANSWERS)), cuts=st.lists(st.integers(min_value=0, max_value=300), max_size=12)
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_split_of_an_answer_is_heard_the_same(name: str, cuts: list[int]) -> None:
    raw, body, _ = ANSWERS[name]
    places = sorted({0, len(raw), *(cut % (len(raw) + 1) for cut in cuts)})

    async def run() -> Heard:
        async with ground(always(*(raw[a:b] for a, b in pairwise(places)), close=True)) as one:
            return (await one.call())[0]

    heard = asyncio.run(run())
    assert heard.calls == (["head", "body", "end"] if body else ["head", "end"])
    assert heard.body == body


async def test_the_request_as_it_is_sent() -> None:
    got: list[bytes] = []

    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.append(await request(reader))
        writer.write(OK + b"Content-Length: 0\r\n\r\n")

    async with ground(peer) as one:
        heard = Heard()
        connection = await one.pool.acquire("127.0.0.1", one.port, 5.0)
        head = request_head("POST", "/v1/x", "h:1", (("x-a", "é"),), 6)
        connection.send(head, (b"one", b"", b"two"), heard)
        await asyncio.wait_for(heard.over.wait(), GUARD_S)
    assert got == [b"POST /v1/x HTTP/1.1\r\nhost: h:1\r\nx-a: \xe9\r\ncontent-length: 6\r\n\r\nonetwo"]


async def test_the_last_used_connection_is_reused_first() -> None:
    async with ground(always(CHUNKED)) as one:
        first = await one.pool.acquire("127.0.0.1", one.port, 5.0)
        second = await one.pool.acquire("127.0.0.1", one.port, 5.0)
        assert not first.reused
        for connection in (first, second):
            heard = Heard()
            connection.send(request_head("POST", "/", "x", (), 0), (), heard)
            await asyncio.wait_for(heard.over.wait(), GUARD_S)
        assert one.pool.stats.idle == 2
        assert one.pool.take("127.0.0.1", one.port) is second
        assert second.reused
        second.unused()
        assert one.pool.take("127.0.0.1", one.port) is second
        assert one.pool.take("127.0.0.1", one.port) is first
        assert one.pool.take("127.0.0.1", one.port) is None
        assert one.pool.stats.made == 2


async def test_idle_connections_expire() -> None:
    async with ground(always(CHUNKED)) as one:
        await one.call(idle_s=0.01)
        await asyncio.sleep(0.03)
        assert one.pool.take("127.0.0.1", one.port) is None
        assert one.pool.stats.idle == 0
        await one.call(idle_s=0.01)
        async with asyncio.timeout(GUARD_S):
            while one.pool.stats.open:  # noqa: ASYNC110  the sweep tells nobody
                await asyncio.sleep(0.02)
        assert one.pool.stats.idle == 0


async def test_a_connection_closed_by_its_idle_peer_is_not_reused() -> None:
    async with ground(always(CHUNKED, close=True)) as one:
        for _ in range(3):
            heard, _ = await one.call()
            assert heard.calls[-1] == "end"
            await asyncio.sleep(0.02)
        assert one.pool.stats.reused == 0


async def test_idle_connections_to_a_peer_that_cut_a_call_are_not_reused() -> None:
    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not (await request(reader)).endswith(b"die"):
            writer.write(CHUNKED)
        writer.close()

    async with ground(peer) as one:
        first = await one.pool.acquire("127.0.0.1", one.port, 5.0)
        await one.call()
        first.unused()
        assert one.pool.stats.idle == 2
        heard = Heard()
        heard.then = lambda call: taken.append(one.pool.take("127.0.0.1", one.port))
        taken: list[Connection | None] = []
        await one.call(b"die", heard=heard)
        assert heard.calls == ["failure"]
        assert taken == [None]
        assert one.pool.stats.idle == 0


async def test_what_an_idle_connection_says_closes_it() -> None:
    async with ground(always(CHUNKED, b"HTTP/1.1 200 OK\r\n")) as one:
        await one.call()
        await asyncio.sleep(0.02)
        assert one.pool.take("127.0.0.1", one.port) is None


async def test_a_second_answer_with_the_first_is_not_believed() -> None:
    async with ground(always(CHUNKED + CHUNKED)) as one:
        heard, _ = await one.call()
        assert heard.calls == ["head", "body", "end"]
        assert heard.body == b"hello"
        assert one.pool.stats.idle == 0


async def test_at_most_so_many_idle_connections_are_kept() -> None:
    async with ground(always(CHUNKED), max_idle=2) as one:
        connections = [await one.pool.acquire("127.0.0.1", one.port, 5.0) for _ in range(4)]
        for connection in connections:
            connection.unused()
        assert one.pool.stats.idle == 2


async def test_refused_connects_say_so() -> None:
    pool = Pool(connect_timeout_s=GUARD_S)
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
        with pytest.raises(ConnectError, match=f"127.0.0.1:{port}: .*refused|Connect call failed") as caught:
            await pool.acquire("127.0.0.1", port, 5.0)
    assert caught.value.progress is Progress.NOTHING_SENT
    assert caught.value.reason == "connect-failed"
    assert isinstance(caught.value.__cause__, ConnectionRefusedError)
    assert pool.stats.failed == 1
    pool.close()


async def test_slow_connects_time_out() -> None:
    # A full accept queue: the kernel drops further SYNs, as a host that is gone would.
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen(0)
        port = sock.getsockname()[1]
        pool = Pool(connect_timeout_s=0.05)
        connects = [pool.acquire("127.0.0.1", port, 5.0) for _ in range(8)]
        results = await asyncio.gather(*connects, return_exceptions=True)
        failed = [str(result) for result in results if isinstance(result, ConnectError)]
        assert failed
        assert all("within 0.05 s" in text for text in failed)
        pool.close()


@pytest.mark.parametrize("host", ["::1", "[::1]"])
async def test_ipv6_literals(host: str) -> None:
    if not socket.has_ipv6:
        return

    async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await always(CHUNKED, close=True)(reader, writer)
        writer.close()

    server = await asyncio.start_server(run, "::1", 0)
    one = Ground(Pool(), server.sockets[0].getsockname()[1])
    heard = Heard()
    connection = await one.pool.acquire(host, one.port, 5.0)
    connection.send(request_head("GET", "/", "x", (), 0), (), heard)
    await asyncio.wait_for(heard.over.wait(), GUARD_S)
    assert heard.body == b"hello"
    one.pool.close()
    server.close()


@pytest.mark.parametrize(
    ("raw", "calls", "progress"),
    [
        (b"", ["failure"], Progress.WRITTEN),
        (b"HTTP/1.1 200 OK\r\nConte", ["failure"], Progress.WRITTEN),
        (OK + b"Content-Length: 5\r\n\r\n", ["head", "failure"], Progress.HEAD_SEEN),
        (OK + b"Content-Length: 5\r\n\r\nhel", ["head", "body", "failure"], Progress.HEAD_SEEN),
        (CHUNKED[:-5], ["head", "body", "failure"], Progress.HEAD_SEEN),
    ],
)
async def test_dropped_connections_say_how_far_it_came(
    raw: bytes, calls: list[str], progress: Progress
) -> None:
    async with ground(always(raw, close=True)) as one:
        heard, _ = await one.call(b"ask")
        assert heard.calls == calls
        assert isinstance(heard.error, Dropped)
        assert heard.error.progress is progress
        assert one.pool.stats.open == 0


async def test_a_closed_connection_fails_before_anything_is_sent() -> None:
    async with ground(always(CHUNKED)) as one:
        connection = await one.pool.acquire("127.0.0.1", one.port, 5.0)
        connection.close()
        heard = Heard()
        connection.send(b"x", (), heard)
        assert not heard.calls, "told from within the call"
        await asyncio.wait_for(heard.over.wait(), GUARD_S)
        assert isinstance(heard.error, Dropped)
        assert heard.error.progress is Progress.NOTHING_SENT


@pytest.mark.parametrize(
    "raw",
    [
        b"220 smtp ready\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n",
        CHUNKED[: CHUNKED.index(b"2\r\nlo")] + b"zz\r\n",
        b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/1.1 050 Early\r\n\r\n" + OK + b"Content-Length: 0\r\n\r\n",
        b"HTTP/1.1 103 Early\r\nContent-Length: 5\r\n\r\nhello" + OK + b"Content-Length: 0\r\n\r\n",
        OK + b"X: " + b"a" * 300_000,
    ],
)
async def test_what_is_not_http_is_a_bad_answer(raw: bytes) -> None:
    async with ground(always(raw)) as one:
        heard, _ = await one.call()
        assert isinstance(heard.error, BadAnswer)
        async with asyncio.timeout(GUARD_S):
            while one.pool.stats.open:  # noqa: ASYNC110  as above
                await asyncio.sleep(0.002)


async def test_a_peer_that_speaks_first_is_no_http_server() -> None:
    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH\r\n")
        await reader.read()

    async with ground(peer) as one:
        connection = await one.pool.acquire("127.0.0.1", one.port, 5.0)
        await asyncio.sleep(0.05)
        heard = Heard()
        connection.send(request_head("POST", "/", "x", (), 0), (), heard)
        await asyncio.wait_for(heard.over.wait(), GUARD_S)
        assert isinstance(heard.error, BadAnswer)
        assert heard.error.progress is Progress.NOTHING_SENT


async def test_an_early_answer_ends_the_call_and_the_connection() -> None:
    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
        await writer.drain()
        await asyncio.get_running_loop().create_future()

    async with ground(peer) as one:
        heard, _ = await one.call(b"a" * 30_000_000)
        assert heard.status == 413
        assert heard.calls == ["head", "body", "end"]
        assert one.pool.stats.idle == 0


async def test_abort_closes_at_once_and_nothing_more_is_heard() -> None:
    left = asyncio.Event()

    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(OK + b"Content-Length: 50\r\n\r\nhel")
        await writer.drain()
        try:
            await reader.read()
        finally:
            left.set()

    async with ground(peer) as one:
        heard = Heard()
        connection = await one.pool.acquire("127.0.0.1", one.port, 5.0)
        heard.then = lambda call: connection.abort() if call == "head" else None
        connection.send(request_head("POST", "/", "x", (), 0), (), heard)
        await asyncio.wait_for(left.wait(), GUARD_S)
        assert heard.calls == ["head"]
        assert one.pool.stats.open == 0


async def test_pause_stops_the_peer_and_resume_lets_go() -> None:
    sent = 0

    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await request(reader)
        writer.write(OK + b"Content-Length: 30000000\r\n\r\n")
        for _ in range(300):
            writer.write(b"a" * 100_000)
            await writer.drain()
            sent += 1
        await reader.read()

    async with ground(peer) as one:
        heard = Heard()
        connection = await one.pool.acquire("127.0.0.1", one.port, 5.0)
        heard.then = lambda call: connection.pause() if call == "head" else None
        connection.send(request_head("POST", "/", "x", (), 0), (), heard)
        before = -1
        async with asyncio.timeout(GUARD_S):
            while sent != before or not sent:
                before = sent
                await asyncio.sleep(0.05)
        assert sent < 300
        connection.pause()
        connection.resume()
        connection.resume()
        await asyncio.wait_for(heard.over.wait(), GUARD_S)
        assert len(heard.body) == 30_000_000
        assert one.pool.stats.idle == 1


async def test_a_connection_paused_at_its_end_can_be_used_again() -> None:
    async with ground(always(CHUNKED)) as one:
        heard = Heard()
        connection = await one.pool.acquire("127.0.0.1", one.port, 5.0)
        heard.then = lambda call: connection.pause()
        connection.send(request_head("POST", "/", "x", (), 0), (), heard)
        async with asyncio.timeout(GUARD_S):
            while not heard.over.is_set():
                connection.resume()
                await asyncio.sleep(0.002)
        heard, again = await one.call()
        assert again is connection
        assert heard.body == b"hello"


async def test_a_call_from_the_end_of_another_may_use_its_connection() -> None:
    async with ground(always(CHUNKED)) as one:
        taken: list[Connection | None] = []
        heard = Heard()
        heard.then = lambda call: (
            taken.append(one.pool.take("127.0.0.1", one.port)) if call == "end" else None
        )
        _, connection = await one.call(heard=heard)
        assert taken == [connection]


async def test_closing_the_pool_fails_what_runs() -> None:
    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        await reader.read()

    async with ground(peer) as one:
        heard = Heard()
        connection = await one.pool.acquire("127.0.0.1", one.port, 5.0)
        connection.send(request_head("POST", "/", "x", (), 0), (), heard)
        await asyncio.sleep(0.02)
        one.pool.close()
        await asyncio.wait_for(heard.over.wait(), GUARD_S)
        assert isinstance(heard.error, Dropped)
        with pytest.raises(ConnectError, match="closed"):
            await one.pool.acquire("127.0.0.1", one.port, 5.0)


async def test_cancelled_connects_leave_nothing_open() -> None:
    async with ground(always(CHUNKED)) as one:
        for turns in range(8):
            task = asyncio.create_task(one.pool.acquire("127.0.0.1", one.port, 5.0))
            for _ in range(turns):
                await asyncio.sleep(0)
            if task.cancel():
                with pytest.raises(asyncio.CancelledError):
                    await task
            else:
                task.result().close()
        async with asyncio.timeout(GUARD_S):
            while one.pool.stats.open:  # noqa: ASYNC110  as above
                await asyncio.sleep(0.002)


async def test_answers_under_a_head_that_was_read_before() -> None:
    """The parser sees the first of them only; lengths may differ, and nothing else."""
    bodies = iter((b"hello", b"hi", b"", b"hel", b"a" * 70_000))
    heads = iter((b"Content-Length: %d", *[b"content-length: %d"] * 2, b"X: 1\r\nContent-Length: %d", None))

    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await request(reader)
            body, head = next(bodies), next(heads) or b"Content-Length: %d"
            writer.write(OK + head % len(body) + b"\r\n\r\n" + body)

    async with ground(peer) as one:
        heard = [(await one.call())[0] for _ in range(5)]
        assert [h.body for h in heard] == [b"hello", b"hi", b"", b"hel", b"a" * 70_000]
        assert [h.calls for h in heard][2] == ["head", "end"]
        assert [h.headers for h in heard] == [[], [], [], [(b"x", b"1")], []]
        assert one.pool.stats.made == 1
        assert len(one.pool.heads) == 3


async def test_a_kept_head_that_asks_to_close_does_so_again() -> None:
    raw = OK + b"Connection: close\r\nContent-Length: 2\r\n\r\nhi"
    async with ground(always(raw)) as one:
        for _ in range(3):
            heard, _ = await one.call()
            assert heard.body == b"hi"
        assert one.pool.stats.made == 3


async def test_a_sink_that_aborts_at_a_kept_head_hears_no_more() -> None:
    async with ground(always(OK + b"Content-Length: 2\r\n\r\nhi")) as one:
        await one.call()
        heard = Heard()
        connection = await one.pool.acquire("127.0.0.1", one.port, 5.0)
        heard.then = lambda call: connection.abort()
        connection.send(request_head("POST", "/", "x", (), 0), (), heard)
        async with asyncio.timeout(GUARD_S):
            while one.pool.stats.open:  # noqa: ASYNC110  as above
                await asyncio.sleep(0.002)
        assert heard.calls == ["head"]
        assert one.pool.stats.idle == 0
