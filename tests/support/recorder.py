"""A forwarding proxy in front of one engine that keeps every request as it arrived, byte for byte.

It can also answer in the engine's place, in ways that no engine should.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

import orjson


@dataclass(frozen=True, slots=True)
class Recorded:
    """One request. Header names are lower-case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, read."""
        return orjson.loads(self.body)


class Recorder:
    """Listens on a port of its own and forwards each connection to `port`; a context manager."""

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self.requests: list[Recorded] = []
        self.instead: dict[str, bytes] = {}
        """By path: bytes sent in place of the engine's answer, after which the connection is closed."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._sockets: list[socket.socket] = [self._listener]

    def calls(self, path: str) -> list[Recorded]:
        """The requests for `path`, in the order in which they were complete."""
        return [one for one in self.requests if one.path == path]

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._sockets:
            _cut(one)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed: the test is over
            try:
                engine = socket.create_connection(self._target)
            except OSError:
                _cut(client)
                continue
            self._sockets += (client, engine)
            for pump in (self._requests, _answers):
                threading.Thread(target=pump, args=(client, engine), daemon=True).start()

    def _requests(self, client: socket.socket, engine: socket.socket) -> None:
        held = b""
        with suppress(OSError):  # either side has cut the connection, which the other one sees by ours
            while data := client.recv(65536):
                held += data
                while (size := _whole(held)) is not None:
                    raw, held = held[:size], held[size:]
                    request = _read(raw)
                    self.requests.append(request)
                    if request.path in self.instead:
                        client.sendall(self.instead[request.path])
                        _cut(client)
                        break
                    engine.sendall(raw)
        _cut(client)
        _cut(engine)


def _answers(client: socket.socket, engine: socket.socket) -> None:
    with suppress(OSError):
        while data := engine.recv(65536):
            client.sendall(data)
    _cut(client)
    _cut(engine)


def _whole(held: bytes) -> int | None:
    """The length of the first request in the bytes; None while it is not all there."""
    head, found, rest = held.partition(b"\r\n\r\n")
    if not found:
        return None
    size = int(_headers(head).get("content-length", "0"))
    return len(head) + 4 + size if len(rest) >= size else None


def _read(raw: bytes) -> Recorded:
    head, _, body = raw.partition(b"\r\n\r\n")
    method, path, _ = head.decode("latin-1").split("\r\n")[0].split(" ")
    return Recorded(method, path, _headers(head), body)


def _headers(head: bytes) -> dict[str, str]:
    lines = (line.partition(":") for line in head.decode("latin-1").split("\r\n")[1:])
    return {name.lower(): value.strip() for name, _, value in lines}


def _cut(one: socket.socket) -> None:
    with suppress(OSError):  # it was cut already
        one.shutdown(socket.SHUT_RDWR)
    one.close()
