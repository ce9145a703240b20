"""What the router says in its own words: error bodies, error events, and the headers around an answer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from math import ceil
from typing import TYPE_CHECKING

import orjson

from orchestrator.errors import RequestError, Unauthorized, WrongMethod
from orchestrator.wire.limits import Refusal

if TYPE_CHECKING:
    from orchestrator.router.record import Record
    from orchestrator.wire.exchange import Exchange

Headers = tuple[tuple[bytes, bytes], ...]

REQUEST_ID = b"x-pdctl-request-id"
CLIENT_ID = b"x-request-id"
MAX_CLIENT_ID = 256
"""Bytes of a client's id that are echoed and logged."""

JSON: Headers = ((b"content-type", b"application/json"),)

JSON_LINE = b"content-type: application/json\r\n"

HEADS = 256
"""Answer heads whose rendering is kept; those of one engine differ by the second of their Date."""

NOT_PASSED = frozenset(
    (
        b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection",
        b"te", b"trailer", b"transfer-encoding", b"upgrade",
        b"content-length", b"server", b"date", CLIENT_ID, REQUEST_ID,
    )
)  # fmt: skip
"""Headers of an engine's answer that stay behind: those of the hop (RFC 9110 7.6.1), those that the router
sets itself, and the engine's idea of a request id."""

WIRE_REASONS = {
    400: "bad-request",
    408: "slow-request",
    413: "too-large",
    431: "headers-too-large",
    500: "internal",
    501: "not-implemented",
    503: "too-many-connections",
    505: "http-version",
}


def body(message: str, kind: str, reason: str, param: str | None = None) -> bytes:
    """An error in the OpenAI shape; `code` is the reason slug."""
    return orjson.dumps({"error": {"message": message, "type": kind, "param": param, "code": reason}})


def wire_error(status: int, message: str) -> Refusal:
    """A refusal below HTTP semantics, for `wire.server.serve`."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    reason = wire_reason(status)
    return Refusal(body(message, kind, reason), (*JSON, (b"x-pdctl-reason", reason.encode())))


def wire_reason(status: int) -> str:
    """The slug of a refusal below HTTP semantics."""
    return WIRE_REASONS.get(status, "bad-request")


def error_body(error: RequestError) -> bytes:
    """The error as a response body."""
    return body(error.message, error.error_type, error.reason, error.param)


def error_event(error: RequestError) -> bytes:
    """The error as a server-sent event, for when the status line is long gone."""
    return b"data: %b\n\n" % error_body(error)


def error_headers(error: RequestError) -> Headers:
    """Content type, reason, what would be allowed or is asked for, when to come back (whole seconds, up)."""
    headers = (*JSON, (b"x-pdctl-reason", error.reason.encode()))
    if isinstance(error, WrongMethod):
        headers = (*headers, (b"allow", error.allow.encode()))
    if isinstance(error, Unauthorized):
        headers = (*headers, (b"www-authenticate", b"Bearer"))
    if error.retry_after_s is None:
        return headers
    return (*headers, (b"retry-after", b"%d" % max(1, ceil(error.retry_after_s))))


def client_id(exchange: Exchange) -> bytes | None:
    """The client's own id for its request, or the beginning of one that is too long to be kept and logged."""
    given = exchange.header(CLIENT_ID)
    return None if given is None else given[:MAX_CLIENT_ID]


def identity(request_id: str, client_id: bytes | None) -> bytes:
    """The header lines that name the request on every answer: ours, and the client's own echoed."""
    if client_id is None:
        return b"%b: %b\r\n" % (REQUEST_ID, request_id.encode())
    return b"%b: %b\r\n%b: %b\r\n" % (REQUEST_ID, request_id.encode(), CLIENT_ID, client_id)


def named(record: Record) -> bytes:
    """The header lines of an answer: its identity, and what was decided where it is to tell of that."""
    told = identity(record.id, record.client_id)
    return told + lines(explained(record)) if record.explains else told


def explained(record: Record) -> Iterator[tuple[bytes, bytes]]:
    """What was decided, as headers: names of endpoints in the order the request meets them, and seconds."""
    decision = record.assign or record.reject
    predicted = None if decision is None else decision.predicted
    if record.view is not None and record.view.slo_class is not None:
        yield b"x-pdctl-class", record.view.slo_class.encode()
    if record.route is not None:
        route = record.route
        ends = (route.encode, route.prefill, route.decode)
        yield b"x-pdctl-route", ">".join(end for end in ends if end is not None).encode()
    if "queue" in record.stages:
        yield b"x-pdctl-queue-s", b"%.6f" % record.stages["queue"]
    if predicted is not None:
        yield b"x-pdctl-predicted-ttft-s", b"%.6f" % predicted.ttft_s
        if predicted.due_s is not None:
            yield b"x-pdctl-due-s", b"%.6f" % predicted.due_s


def lines(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Headers as they stand in a head."""
    return b"".join([b"%b: %b\r\n" % header for header in headers])


@lru_cache(HEADS)
def passed(headers: Headers) -> bytes:
    """The header lines of an engine's answer that go on to the client."""
    return lines(header for header in headers if header[0] not in NOT_PASSED)
