"""Small HTTP requests that simulated engines make of each other."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from orchestrator.wire.client import Pool, request_head


class _Whole:
    """Collects one answer into a future of (status, body)."""

    def __init__(self) -> None:
        self.future: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
        self._status = 0
        self._parts: list[bytes] = []

    def on_head(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        self._status = status

    def on_body(self, data: bytes) -> None:
        self._parts.append(data)

    def on_end(self) -> None:
        if not self.future.done():
            self.future.set_result((self._status, b"".join(self._parts)))

    def on_failure(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


async def get(pool: Pool, host: str, port: int, path: str, timeout_s: float) -> tuple[int, bytes]:
    """GET a small answer: (status, body). Raises WireError, TimeoutError."""
    return await _ask(pool, host, port, "GET", path, b"", timeout_s)


async def post(
    pool: Pool, host: str, port: int, path: str, body: bytes, timeout_s: float
) -> tuple[int, bytes]:
    """POST JSON and read a small answer: (status, body). Raises WireError, TimeoutError."""
    return await _ask(pool, host, port, "POST", path, body, timeout_s)


async def _ask(
    pool: Pool, host: str, port: int, method: str, path: str, body: bytes, timeout_s: float
) -> tuple[int, bytes]:
    async with asyncio.timeout(timeout_s):
        connection = await pool.acquire(host, port, 1.0)
        sink = _Whole()
        headers = (("content-type", "application/json"),) if body else ()
        head = request_head(method, path, f"{host}:{port}", headers, len(body))
        connection.send(head, (body,) if body else (), sink)
        return await sink.future
