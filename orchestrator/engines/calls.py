"""A call that an adapter has somebody make; interpreted, for it is part of plans, which pydantic reads."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HttpCall:
    """A small HTTP request that the router or the supervisor performs for an adapter.

    `path` is relative to the instance's URL; `port` replaces its port when the call goes elsewhere on
    the same host (SGLang's bootstrap server). Keys are added by whoever performs it.
    """

    method: str
    path: str
    body: bytes = b""
    port: int | None = None
    timeout_s: float = 5.0
    headers: tuple[tuple[str, str], ...] = ()
