"""session-affinity: keeps the requests of one session on one endpoint."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import ClassVar

from orchestrator.policy import Context, Endpoint, Field, Params, RequestView

_MASK = (1 << 64) - 1


class SessionAffinityParams(Params):
    """Where the session is named."""

    header: str = Field(default="x-session-id", min_length=1)
    """Request header whose value names the session; without it a request has no preference."""


class SessionAffinity:
    """1 for the session's first choice of endpoint, 1/2 for its second, 1/4 for its third, and so on.

    Rendezvous hashing over all the candidates: every router orders them alike without talking to others,
    and an endpoint that leaves or joins moves only the sessions that are its own. Like prefix-affinity it
    needs a scorer that measures load beside it, for sessions are not of one size.
    """

    unit: ClassVar[str] = "share"
    needs_load: ClassVar[bool] = True

    def __init__(self, params: SessionAffinityParams) -> None:
        self._header = params.header.lower()
        self.headers = (self._header,)

    def score(
        self, request: RequestView, candidates: Sequence[Endpoint], context: Context
    ) -> Sequence[float]:
        """One share per candidate."""
        session = request.headers.get(self._header)
        shares = [0.0] * len(candidates)
        if not session:
            return shares
        key = _hash(session)
        drawn = [_mixed(key ^ _endpoint_hash(e.id)) for e in candidates]
        order = sorted(range(len(candidates)), key=drawn.__getitem__, reverse=True)
        for rank, i in enumerate(order):
            shares[i] = 0.5**rank
        return shares


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


@lru_cache(maxsize=4096)
def _endpoint_hash(endpoint_id: str) -> int:
    return _hash(endpoint_id)


def _mixed(value: int) -> int:
    """A 64-bit mixing function (the finalizer of MurmurHash3): close inputs, unrelated outputs."""
    value = ((value ^ (value >> 33)) * 0xFF51AFD7ED558CCD) & _MASK
    value = ((value ^ (value >> 33)) * 0xC4CEB9FE1A85EC53) & _MASK
    return value ^ (value >> 33)
