"""Length-prefixed JSON messages over TCP: the private channel on which simulated engines pass KV."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, cast

import orjson

Message = dict[str, Any]

EVERYWHERE = ("0.0.0.0", "::")
"""What a listener may give as its address when it has no better one: then it is where one has met it."""

_MAX_FRAME_BYTES = 256 * 1024 * 1024


class FrameConnection(asyncio.Protocol):
    """One connection: `on_message(connection, message)` for each frame, `on_lost(connection)` at the end.

    Anything but frames of JSON objects closes it.
    """

    def __init__(
        self,
        on_message: Callable[[FrameConnection, Message], None],
        on_lost: Callable[[FrameConnection], None],
        on_made: Callable[[FrameConnection], None] | None = None,
    ) -> None:
        self._on_message = on_message
        self._on_lost = on_lost
        self._on_made = on_made
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._last_id = 0
        self._waiting: dict[int, asyncio.Future[Message]] = {}

    @property
    def alive(self) -> bool:
        """Whether the peer is still there."""
        return self._transport is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection stands."""
        self._transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._on_made is not None:
            self._on_made(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The peer is gone: whoever waits for it is told."""
        self._transport = None
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(ConnectionResetError("the peer has left"))
        self._on_lost(self)

    def data_received(self, data: bytes) -> None:
        """Cut the stream into messages."""
        buffer = self._buffer
        buffer += data
        while len(buffer) >= 4:
            length = int.from_bytes(buffer[:4], "big")
            if length > _MAX_FRAME_BYTES:
                self.close()
                return
            if len(buffer) < 4 + length:
                return
            body = bytes(buffer[4 : 4 + length])
            del buffer[: 4 + length]
            try:
                message = orjson.loads(body)
            except orjson.JSONDecodeError:
                message = None
            if not isinstance(message, dict):
                self.close()
                return
            self._deliver(message)

    def _deliver(self, message: Message) -> None:
        answer = message.get("re")
        future = self._waiting.pop(answer, None) if isinstance(answer, int) else None
        if future is None:
            self._on_message(self, message)
        elif not future.done():
            future.set_result(message)

    def send(self, message: Message) -> None:
        """Send a message; dropped when the peer is gone."""
        if self._transport is not None:
            body = orjson.dumps(message)
            self._transport.write(len(body).to_bytes(4, "big") + body)

    async def ask(self, message: Message, timeout_s: float | None = None) -> Message:
        """Send a message and wait for its answer. Raises ConnectionResetError, TimeoutError."""
        if self._transport is None:
            raise ConnectionResetError("the peer has left")
        self._last_id += 1
        number = self._last_id
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        self.send({**message, "id": number})
        try:
            return await asyncio.wait_for(future, timeout_s)
        finally:
            self._waiting.pop(number, None)

    def answer(self, question: Message, message: Message) -> None:
        """Send the answer to a message that came by `ask`."""
        self.send({**message, "re": question.get("id")})

    def close(self) -> None:
        """Cut the connection."""
        if self._transport is not None:
            self._transport.abort()


async def connect(
    host: str,
    port: int,
    on_message: Callable[[FrameConnection, Message], None],
    on_lost: Callable[[FrameConnection], None],
    timeout_s: float,
) -> FrameConnection:
    """A connection to a peer. Raises OSError, TimeoutError."""
    loop = asyncio.get_running_loop()
    _, protocol = await asyncio.wait_for(
        loop.create_connection(lambda: FrameConnection(on_message, on_lost), host.strip("[]"), port),
        timeout_s,
    )
    return protocol


async def listen(
    host: str,
    port: int,
    on_message: Callable[[FrameConnection, Message], None],
    on_lost: Callable[[FrameConnection], None],
) -> tuple[asyncio.AbstractServer, int]:
    """Wait for peers on `host`:`port` (0: any free one); the listener and its port. Raises OSError."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: FrameConnection(on_message, on_lost), host.strip("[]"), port)
    return server, int(server.sockets[0].getsockname()[1])
