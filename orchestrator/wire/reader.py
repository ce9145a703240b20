"""Reads one HTTP/1.1 request at a time from a byte stream, strictly: what it cannot take it refuses."""

from __future__ import annotations

import httptools

from orchestrator.wire.heads import Heads, whole

FRAMING = frozenset((b"content-length", b"transfer-encoding"))
"""Headers that say where a body ends, and mean nothing once it is there."""


class Refused(Exception):
    """The request cannot be taken: the HTTP status and message it is refused with."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class RequestHead:
    """A request's head. Many requests may share one, so that all but `memo` stays as it is.

    `path` and `query` are parts of `target`. `headers` have lower-case names, in the order they came, and
    are without those of the framing; `first` is the first value of each. `memo` is the handler's: what it
    worked out of this head for the next request that has it.
    """

    __slots__ = ("first", "headers", "http10", "keep_alive", "memo", "method", "path", "query", "target")

    def __init__(
        self,
        method: str,
        target: bytes,
        headers: tuple[tuple[bytes, bytes], ...],
        http10: bool,
        keep_alive: bool,
    ) -> None:
        self.method = method
        self.target = target
        origin = target
        if not target.startswith(b"/") and b"://" in target:
            _, slash, rest = target.partition(b"://")[2].partition(b"/")
            origin = slash + rest if slash else b"/"
        path, _, self.query = origin.partition(b"?")
        self.path = path.decode("latin-1")
        self.headers = headers
        self.first = dict(reversed(headers))
        self.http10 = http10
        self.keep_alive = keep_alive
        self.memo: object = None


class RequestReader:
    """The request being read; llhttp alone decides where it ends, so nothing can disagree with it.

    `in_head` and `in_body` say how far it is, `complete` that it is whole, with its `head`; `extra` that
    bytes of a second request came with it. `headers` have lower-case names. `wants_continue`: the client
    waits for 100 Continue before it sends the body. A request whose head is among `heads`, which readers may
    share, and which came in one piece, is taken without the parser.
    """

    __slots__ = (
        "_body", "_heads", "_max_body", "_max_head", "_parser", "_reframed", "_refusal", "_seen", "_tail",
        "body_bytes", "complete", "extra", "head", "headers", "in_body", "in_head", "method", "target",
        "wants_continue",
    )  # fmt: skip

    def __init__(
        self, *, max_head_bytes: int, max_body_bytes: int, heads: Heads[RequestHead] | None = None
    ) -> None:
        self._max_head = max_head_bytes
        self._max_body = max_body_bytes
        self._heads: Heads[RequestHead] = Heads() if heads is None else heads
        self._reframed = True
        self.head: RequestHead | None = None
        self.complete = self.in_body = False
        self.clear()

    def clear(self) -> None:
        """Get ready for the next request of the connection."""
        if self.complete and not self.in_body:
            # It was taken without the parser, which saw nothing of it.
            self.complete = self.extra = False
            self.head = None
            return
        if self._reframed:
            self._parser = httptools.HttpRequestParser(self)
            self._reframed = False
        self._seen = 0
        self._tail = b""
        self._body: bytes | bytearray = b""
        self._refusal: Refused | None = None
        self.body_bytes = 0
        self.in_head = self.in_body = self.complete = self.extra = False
        self.wants_continue = False
        self.head = None
        self.method = "GET"
        self.target = b""
        self.headers: list[tuple[bytes, bytes]] = []

    def take_body(self) -> bytes:
        """The whole body, which the reader then forgets."""
        body, self._body = self._body, b""
        return body if isinstance(body, bytes) else bytes(body)

    def feed(self, data: bytes) -> None:
        """Read on. Raises Refused; the connection must then be closed."""
        if self.in_body:
            self._parse(data)
        elif self.in_head:
            self._bound_head(data)
            self._parse(data)
        else:
            self._begin(data)

    def _begin(self, data: bytes) -> None:
        """The first bytes of a request, and most often all of them."""
        found = whole(data)
        if found is not None:
            key, start = found
            head = self._heads.get(key)
            if head is not None and start <= self._max_head and len(data) - start <= self._max_body:
                self.head, self.method, self.complete = head, head.method, True
                self._body = data[start:]
                return
        data = data.lstrip(b"\r\n")
        if not data:
            return
        self.in_head = True
        self._bound_head(data)
        self._parse(data)
        if found is not None and self._plain and self.body_bytes == len(data) - start:
            assert self.head is not None
            self._heads.keep(key, self.head)

    @property
    def _plain(self) -> bool:
        """The parser has taken the request whole, and did nothing out of the ordinary for it."""
        return self.complete and not (self.extra or self._reframed or self.wants_continue)

    def _bound_head(self, data: bytes) -> None:
        room = self._max_head - self._seen
        if len(data) > room:
            end = (self._tail + data).find(b"\r\n\r\n")
            if end < 0 or end + 4 - len(self._tail) > room:
                self._parse(data[:room])
                raise Refused(431, f"the request's head is over the limit of {self._max_head} bytes")
        self._seen += len(data)
        self._tail = (self._tail + data[-3:])[-3:]

    def _parse(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # It may stand in a second request, which is not looked at.
            if not self._reframed and not self.extra:
                self._ignore_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            if self._refusal is not None:
                raise self._refusal from None
            if not self.complete:
                status = 505 if "HTTP version" in str(error) else 400
                raise Refused(status, f"not a valid HTTP/1.1 request: {error}") from None
            self.extra = True

    def _ignore_upgrade(self, rest: bytes) -> None:
        """Go on in HTTP/1.1, as RFC 9110 7.8 allows: Java's own client offers h2c with its first request.

        llhttp ends the message at an upgrade, so a second parser is given the body's framing once more.
        """
        offered = b",".join(value for name, value in self.headers if name == b"upgrade").lower()
        if self.method == "CONNECT" or offered != b"h2c":
            raise Refused(501, "CONNECT and protocol upgrades are not served here")
        framing = b"".join(
            b"%b: %b\r\n" % header
            for header in self.headers
            if header[0] in (b"content-length", b"transfer-encoding")
        )
        if not framing:
            self.extra = bool(rest.strip(b"\r\n"))
            return
        self.complete = False
        self._reframed = True
        self._parser = httptools.HttpRequestParser(_BodyOnly(self))
        self._parse(b"POST / HTTP/1.1\r\n%b\r\n%b" % (framing, rest))

    # -- what the parser calls

    def on_message_begin(self) -> None:
        """A message starts; after a complete one it is a second, pipelined request."""
        if self.complete:
            self.extra = True

    def on_url(self, url: bytes) -> None:
        """A piece of the request target."""
        if not self.complete:
            self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header; trailers, which come after the head, carry nothing for us."""
        if not self.in_body:
            self.headers.append((name.lower(), value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        """The head is whole: refuse it or go on with the body."""
        if self.complete:
            return
        self.in_head, self.in_body = False, True
        parser = self._parser
        self.method = parser.get_method().decode("ascii")
        version = parser.get_http_version()
        self._refusal = self._check(version)
        if self._refusal is not None:
            raise self._refusal
        headers = tuple([header for header in self.headers if header[0] not in FRAMING])
        keep_alive = parser.should_keep_alive()
        self.head = RequestHead(self.method, self.target, headers, version == "1.0", keep_alive)

    def _check(self, version: str) -> Refused | None:
        if version not in ("1.1", "1.0"):
            return Refused(505, "only HTTP/1.1 and HTTP/1.0 are served here")
        http10 = version == "1.0"
        hosts = length = 0
        for name, value in self.headers:
            if name == b"host":
                hosts += 1
            elif name == b"content-length":
                length = int(value)
            elif name == b"transfer-encoding" and (value.lower() != b"chunked" or http10):
                return Refused(501, "of the transfer codings only `chunked`, alone, is served here")
            elif name == b"expect" and value.lower() == b"100-continue":
                self.wants_continue = not http10
        if hosts > 1 or (hosts == 0 and not http10):
            return Refused(400, "a request must carry exactly one Host header")
        return self._too_large() if length > self._max_body else None

    def _too_large(self) -> Refused:
        return Refused(413, f"the request's body is over the limit of {self._max_body} bytes")

    def on_body(self, data: bytes) -> None:
        """A piece of the body; several are gathered in one buffer, so that tiny ones cost no more."""
        if self.complete:
            return
        self.body_bytes += len(data)
        if self.body_bytes > self._max_body:
            self._refusal = self._too_large()
            raise self._refusal
        if not self._body:
            self._body = data
            return
        if isinstance(self._body, bytes):
            self._body = bytearray(self._body)
        self._body += data

    def on_message_complete(self) -> None:
        """The request is whole."""
        self.complete = True


class _BodyOnly:
    """Passes on what concerns the body when the head was read before."""

    __slots__ = ("on_body", "on_message_begin", "on_message_complete")

    def __init__(self, reader: RequestReader) -> None:
        self.on_message_begin = reader.on_message_begin
        self.on_body = reader.on_body
        self.on_message_complete = reader.on_message_complete
