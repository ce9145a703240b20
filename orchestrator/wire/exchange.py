"""One request a client made and the answer it is being given: what a wire handler works with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Protocol

from orchestrator.wire.reader import RequestHead

Headers = Sequence[tuple[bytes, bytes]]

SERVER = b"pdctl"

_BODILESS = frozenset((204, 304))


def _reason(status: int) -> bytes:
    try:
        return HTTPStatus(status).phrase.encode("ascii")
    except ValueError:
        return b"Status"


def _status_line(status: int) -> bytes:
    return b"HTTP/1.1 %d %b\r\nserver: %b\r\n" % (status, _reason(status), SERVER)


_STATUS_LINES = {status.value: _status_line(status.value) for status in HTTPStatus}


def status_line(status: int) -> bytes:
    """The status line and the Server header, each with its line end."""
    return _STATUS_LINES.get(status) or _status_line(status)


class Peer(Protocol):
    """The connection as its exchange sees it."""

    def send(self, data: bytes) -> None:
        """Queue bytes for the client."""
        ...

    def finished(self, keep: bool) -> None:
        """The answer is complete; `keep`: the framing allows another request on this connection."""
        ...

    def cut(self) -> None:
        """Close at once, whatever is queued."""
        ...


class Exchange:
    """One whole request and its answer.

    `headers` have lower-case names in the order they came, without those of the framing. `path` is the
    target without its query. The answer is either one `respond`, or `start`, any number of `write`, and
    `end`. Once the client is gone (`closed`) everything sent is dropped. `on_close` fires at most once, when
    the client leaves before the answer ended; `on_pause` and `on_resume` when it reads too slowly and when
    it has caught up.
    """

    __slots__ = (
        "_bare", "_chunked", "_keep", "_left", "_peer", "body", "closed", "ended", "head", "on_close",
        "on_pause", "on_resume", "paused", "peer", "started",
    )  # fmt: skip

    def __init__(self, peer: Peer, head: RequestHead, body: bytes, address: str, keep_alive: bool) -> None:
        self._peer = peer
        self.head = head
        self.body = body
        self.peer = address
        self._keep = keep_alive
        self._bare = head.method == "HEAD"
        self._chunked = False
        self._left: int | None = None
        self.started = False
        self.ended = False
        self.closed = False
        self.paused = False
        self.on_close: Callable[[], object] | None = None
        self.on_pause: Callable[[], None] | None = None
        self.on_resume: Callable[[], None] | None = None

    @property
    def method(self) -> str:
        """The method, as it came."""
        return self.head.method

    @property
    def target(self) -> bytes:
        """The request target, as it came."""
        return self.head.target

    @property
    def path(self) -> str:
        """The target's path."""
        return self.head.path

    @property
    def query(self) -> bytes:
        """What follows the target's question mark."""
        return self.head.query

    @property
    def headers(self) -> tuple[tuple[bytes, bytes], ...]:
        """See above."""
        return self.head.headers

    def header(self, name: bytes) -> bytes | None:
        """The first value of the header called `name` (lower-case), or None."""
        return self.head.first.get(name)

    def respond(self, status: int, body: bytes, headers: Headers = (), lines: bytes = b"") -> None:
        """Give the whole answer; `lines` are more headers, as they stand in a head.

        Raises RuntimeError when one was already begun.
        """
        if self.started:
            raise RuntimeError("the answer was already begun")
        self.started = self.ended = True
        if self.closed:
            return
        head = self._head(status, headers, lines)
        if status in _BODILESS:
            self._peer.send(head + b"\r\n")
        else:
            sent = b"" if self._bare else body
            self._peer.send(b"%bcontent-length: %d\r\n\r\n%b" % (head, len(body), sent))
        self._peer.finished(self._keep)

    def start(
        self, status: int, headers: Headers = (), length: int | None = None, lines: bytes = b""
    ) -> None:
        """Begin the answer; `length` None: its end is marked by chunked coding (HTTP/1.0: by closing).

        `lines` are more headers, as they stand in a head. Raises RuntimeError when one was already begun.
        """
        if self.started:
            raise RuntimeError("the answer was already begun")
        self.started = True
        if length is None and self.head.http10:
            self._keep = False
        if status in _BODILESS:
            self._bare, length = True, None
        if self.closed:
            return
        head = self._head(status, headers, lines)
        if length is not None:
            self._left = length
            head += b"content-length: %d\r\n" % length
        elif status not in _BODILESS and not self.head.http10:
            self._chunked = True
            head += b"transfer-encoding: chunked\r\n"
        self._peer.send(head + b"\r\n")

    def write(self, data: bytes) -> None:
        """Send a piece of the body. Raises RuntimeError outside start..end or past the stated length."""
        if self.ended or not self.started:
            raise RuntimeError("write outside of an answer")
        if self.closed or self._bare or not data:
            return
        if self._chunked:
            self._peer.send(b"%x\r\n%b\r\n" % (len(data), data))
            return
        if self._left is not None:
            self._left -= len(data)
            if self._left < 0:
                raise RuntimeError("more body than the stated length")
        self._peer.send(data)

    def end(self) -> None:
        """Finish the answer; one that is shorter than its stated length is cut, never made to look whole."""
        if self.ended or not self.started:
            raise RuntimeError("end outside of an answer")
        self.ended = True
        if self.closed:
            return
        if self._left and not self._bare:
            self._peer.cut()
            return
        if self._chunked and not self._bare:
            self._peer.send(b"0\r\n\r\n")
        self._peer.finished(self._keep)

    def abort(self) -> None:
        """Cut the connection: the only way to tell a client of a broken body that cannot carry an error."""
        self.started = self.ended = True
        if not self.closed:
            self._peer.cut()

    def _head(self, status: int, headers: Headers, lines: bytes) -> bytes:
        """Status line and headers, but for those of the framing."""
        head = (_STATUS_LINES.get(status) or _status_line(status)) + lines
        for header in headers:
            head += b"%b: %b\r\n" % header
        if not self._keep:
            head += b"connection: close\r\n"
        elif self.head.http10:
            head += b"connection: keep-alive\r\n"
        return head
