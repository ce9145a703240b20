"""A forwarding proxy in front of one engine that keeps every request as it arrived, byte for byte."""

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
            for source, sink, reader in ((client, engine, _Reader(self.requests)), (engine, client, None)):
                threading.Thread(target=_pump, args=(source, sink, reader), daemon=True).start()


class _Reader:
    """Takes the requests out of one connection's bytes; all of them have a content length, or no body."""

    def __init__(self, into: list[Recorded]) -> None:
        self._into = into
        self._held = b""

    def feed(self, data: bytes) -> None:
        self._held += data
        while b"\r\n\r\n" in self._held:
            head, _, rest = self._held.partition(b"\r\n\r\n")
            first, *lines = head.decode("latin-1").split("\r\n")
            headers = {
                name.lower(): value.strip() for name, _, value in (one.partition(":") for one in lines)
            }
            size = int(headers.get("content-length", "0"))
            if len(rest) < size:
                return
            method, path, _ = first.split(" ")
            self._into.append(Recorded(method, path, headers, rest[:size]))
            self._held = rest[size:]


def _pump(source: socket.socket, sink: socket.socket, reader: _Reader | None) -> None:
    try:
        while data := source.recv(65536):
            if reader is not None:
                reader.feed(data)
            sink.sendall(data)
    except OSError:
        pass  # either side has cut the connection, which the other one now sees
    _cut(source)
    _cut(sink)


def _cut(one: socket.socket) -> None:
    with suppress(OSError):  # it was cut already
        one.shutdown(socket.SHUT_RDWR)
    one.close()
