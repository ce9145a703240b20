"""One small question to an engine and its whole answer: for probes, discovery, load reads and flushes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from orchestrator.core.address import join_host_port, split_http_url
from orchestrator.core.frozen import frozen
from orchestrator.engines.base import HttpCall
from orchestrator.wire.client import Dropped, Pool, Progress, WireError, request_head

MAX_ANSWER_BYTES = 8 * 1024 * 1024
"""A metrics page of a large engine is below 1 MB; an answer that never ends must not fill the memory."""

IDLE_S = 2.0
"""How long a connection is kept between two questions; below every engine's own keep-alive time-out."""


class TooLong(Exception):
    """The answer is over MAX_ANSWER_BYTES."""


@frozen(frozen=True, slots=True)
class Reply:
    """A whole answer."""

    status: int
    body: bytes


class _Whole:
    """Collects one answer into a future."""

    def __init__(self, reply: asyncio.Future[Reply]) -> None:
        self._reply = reply
        self._status = 0
        self._parts: list[bytes] = []
        self._size = 0

    def on_head(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        self._status = status

    def on_body(self, data: bytes) -> None:
        self._parts.append(data)
        self._size += len(data)
        if self._size > MAX_ANSWER_BYTES and not self._reply.done():
            self._reply.set_exception(TooLong(f"the answer is over {MAX_ANSWER_BYTES} bytes"))

    def on_end(self) -> None:
        if not self._reply.done():
            self._reply.set_result(Reply(self._status, b"".join(self._parts)))

    def on_failure(self, error: Exception) -> None:
        if not self._reply.done():
            self._reply.set_exception(error)


async def ask(pool: Pool, url: str, call: HttpCall, key: str | None) -> Reply:
    """Perform `call` on the engine at `url` with its `key`, within the call's time-out.

    Asked again once when a kept connection turns out to be closed. Raises TimeoutError, WireError
    (with a refused connection in its chain of causes), or TooLong.
    """
    host, port = split_http_url(url)
    if call.port is not None:
        port = call.port
    headers = list(call.headers)
    if key:
        headers.append(("authorization", f"Bearer {key}"))
    if call.body:
        headers.append(("content-type", "application/json"))
    head = request_head(call.method, call.path, join_host_port(host, port), headers, len(call.body))
    async with asyncio.timeout(call.timeout_s):
        try:
            return await _once(pool, host, port, head, call.body)
        except Dropped as error:
            if error.progress is Progress.HEAD_SEEN:
                raise
            return await _once(pool, host, port, head, call.body)


async def _once(pool: Pool, host: str, port: int, head: bytes, body: bytes) -> Reply:
    connection = await pool.acquire(host, port, IDLE_S)
    reply: asyncio.Future[Reply] = pool.loop.create_future()
    connection.send(head, (body,) if body else (), _Whole(reply))
    try:
        return await reply
    except WireError:
        raise
    except BaseException:
        # Cancelled, late or too long: what still comes belongs to nobody.
        connection.abort()
        raise


def refused(error: BaseException) -> bool:
    """Whether a connection was refused, however deep a library has wrapped it: nobody listens there."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, ConnectionRefusedError):
            return True
        if isinstance(seen, BaseExceptionGroup):
            return any(refused(e) for e in seen.exceptions)
        seen = seen.__cause__ or seen.__context__
    return False
