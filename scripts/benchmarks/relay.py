"""A raw relay on the event loop that pdctl uses: bytes from one connection to another and back, nothing read.

python -m benchmarks.relay PORT ENGINE_PORT
"""

from __future__ import annotations

import asyncio
import sys
from typing import cast

import uvloop


class Side(asyncio.Protocol):
    """One end; what it receives goes to the other one, and is kept until there is one."""

    def __init__(self, target: int | None) -> None:
        self.transport: asyncio.WriteTransport | None = None
        self.other: Side | None = None
        self._target = target
        self._kept: list[bytes] = []
        self._dialling: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client's end opens one to the engine."""
        self.transport = cast(asyncio.WriteTransport, transport)  # uvloop's are of no class of asyncio's
        if self._target is not None:
            self._dialling = asyncio.get_running_loop().create_task(self._dial(self._target))

    async def _dial(self, port: int) -> None:
        _, other = await asyncio.get_running_loop().create_connection(lambda: Side(None), "127.0.0.1", port)
        other.other, self.other = self, other
        for data in self._kept:
            self.data_received(data)

    def data_received(self, data: bytes) -> None:
        """Pass it on."""
        if self.other is None or self.other.transport is None:
            self._kept.append(data)
        else:
            self.other.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """The other end goes too."""
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()


async def serve(port: int, target: int) -> None:
    """Until cancelled."""
    server = await asyncio.get_running_loop().create_server(lambda: Side(target), "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), int(sys.argv[2])))
