"""What a client's connection may cost, and how what goes beyond is refused."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Any, NamedTuple

from orchestrator.core.frozen import frozen
from orchestrator.wire.exchange import Headers

WRITE_HIGH_WATER = 256 * 1024
"""Bytes queued for one client before it counts as slow."""

LINGER_S = 2.0
"""How long a connection is read and ignored after its last answer, so that closing does not reset it away."""

RETIRED_IDLE_S = 2.0
"""How long a connection may lie idle once its server has retired: a client that has just sent its next
request on it is still answered."""

FRESH_S = 0.5
"""How long a closing server waits for the first request of a connection that has asked nothing yet: its
client has just connected, and takes a closed connection for a failed request."""

TOLD = 32
"""Connections above the most there may be that are told so before they are closed; those beyond are cut."""

BACKLOG = 2048
"""Connections that the kernel holds until they are accepted."""

_JSON = ((b"content-type", b"application/json"),)


class Refusal(NamedTuple):
    """What a request that is refused at the protocol level is answered with."""

    body: bytes
    headers: Headers = _JSON


OnBad = Callable[[int, str], Refusal]
"""Makes a refusal from its status and message."""


@frozen(frozen=True, slots=True)
class WireLimits:
    """What one connection may cost.

    `header_timeout_s` and `body_timeout_s` bound the arrival of a request's whole head and body (408),
    `idle_timeout_s` the pause between requests, and `stall_timeout_s` how long a client may leave what
    was sent to it unread before it is cut. Of more than `max_connections` at once the new ones are refused
    (503) unread; None: there is no bound.
    """

    max_body_bytes: int = 64 * 1024 * 1024
    max_header_bytes: int = 64 * 1024
    header_timeout_s: float = 30.0
    body_timeout_s: float = 120.0
    idle_timeout_s: float = 120.0
    stall_timeout_s: float = 120.0
    max_connections: int | None = None


def plain_refusal(status: int, message: str) -> Refusal:
    """The default: `{"error": {"message", "code"}}`; `message` is our own plain text."""
    text = message.replace("\\", "\\\\").replace('"', '\\"')
    return Refusal(f'{{"error":{{"message":"{text}","code":{status}}}}}'.encode())


def over(tls: ssl.SSLContext | None, limits: WireLimits) -> dict[str, Any]:
    """How a listener is told to secure its connections by `tls`.

    A handshake may take as long as a request's head, and a last answer be left unread for as long as any.
    """
    if tls is None:
        return {}
    handshake_s, shutdown_s = limits.header_timeout_s, limits.stall_timeout_s
    return {"ssl": tls, "ssl_handshake_timeout": handshake_s, "ssl_shutdown_timeout": shutdown_s}
