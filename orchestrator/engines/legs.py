"""The plain data of a hand-off: what it starts from, its legs, and what follows from their answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from orchestrator.core.frozen import frozen
from orchestrator.core.types import Endpoint, LegKind, PathKind
from orchestrator.engines.calls import HttpCall
from orchestrator.engines.splice import JsonBody
from orchestrator.errors import RequestError


@frozen(frozen=True, slots=True)
class Leg:
    """One engine call of a request.

    `body` is written in pieces: the client's bytes are not copied. `relay`: its answer is the client's;
    the others are read for the hand-off. `engine_id` is the id the engine knows it by
    (`<request_id>-<p|d|e><attempt>[.item]`). `headers` lack Host, Content-Length and Authorization. `stream`:
    its answer should be server-sent events. `owed`: the relayed leg waits for this one, far too long if it is
    closed: given up while both run, it is read to its end. `release` makes the call to `endpoint` that frees
    what earlier legs hold for this one, if it is never sent.
    """

    kind: LegKind
    endpoint: str
    path: str
    body: tuple[bytes, ...]
    engine_id: str
    relay: bool
    stream: bool = False
    headers: tuple[tuple[str, str], ...] = ()
    owed: bool = False
    release: Callable[[], HttpCall] | None = None


@frozen(frozen=True, slots=True)
class HandoffDone:
    """No leg is left to start; what a finished non-relayed leg told (`cached_tokens`, ...) is in `notes`."""

    notes: Mapping[str, Any] = field(default_factory=dict)


@frozen(frozen=True, slots=True)
class HandoffFailed:
    """The request cannot go on; `error` is what the client is told if nothing was sent yet."""

    error: RequestError


HandoffStep = tuple[Leg, ...] | HandoffDone | HandoffFailed


@frozen(frozen=True, slots=True)
class HandoffRequest:
    """What a hand-off machine starts from.

    `room` is a random 63-bit number unique among the live requests of this router, the first of `items`
    consecutive ones when the engine expands a batch itself. `item` is set when the router split the
    request and this is one part. `headers` are the client's allow-listed ones to pass on.
    """

    request_id: str
    path: str
    kind: PathKind
    body: JsonBody
    stream: bool
    room: int
    decode: Endpoint
    prefill: Endpoint | None = None
    encode: Endpoint | None = None
    attempt: int = 0
    item: int | None = None
    headers: tuple[tuple[str, str], ...] = ()

    def engine_id(self, kind: LegKind) -> str:
        """The id an engine knows the leg of `kind` by; none begins like another, as SGLang aborts every
        request whose id *begins* with the one it is told."""
        suffix = "" if self.item is None else f".{self.item:04d}"
        return f"{self.request_id}-{kind[0]}{self.attempt}{suffix}"
