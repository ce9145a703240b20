"""session-affinity: keeps the requests of one session on one endpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from orchestrator.policy import Context, Endpoint, Field, Params, RequestView, hashed, preferred


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
        if not session:
            return [0.0] * len(candidates)
        return preferred(hashed(session), candidates)
