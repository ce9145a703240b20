"""token-load: prefers endpoints with less work in tokens, which requests of unequal size hide."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from orchestrator.policy import Context, Endpoint, Field, Params, RequestView, Role, share_of_least


class TokenLoadParams(Params):
    """What a token weighs."""

    scale_tokens: float = Field(default=65_536, gt=0)
    """Tokens above the least loaded candidate at which the score is 0."""

    foreign_tokens: int = Field(default=1024, ge=0)
    """Prompt tokens taken for each waiting request that the router did not send: engines report a count."""


class TokenLoad:
    """1 for the candidate with the least token work, falling with each token above it.

    Work is prompt tokens still to be computed (those cached do not count) where prompts are computed, and
    KV tokens in use on a decode endpoint, whose every step reads them all.
    """

    unit: ClassVar[str] = "share"
    measures_load: ClassVar[bool] = True

    def __init__(self, params: TokenLoadParams) -> None:
        self._params = params

    def score(
        self, request: RequestView, candidates: Sequence[Endpoint], context: Context
    ) -> Sequence[float]:
        """One share per candidate."""
        if context.role is Role.DECODE:
            work = [e.kv_used_tokens for e in candidates]
        else:
            each = self._params.foreign_tokens
            work = [
                e.inflight.prefill_tokens
                + (each * _foreign_waiting(e, e.load.waiting) if e.load is not None and e.load.waiting else 0)
                for e in candidates
            ]
        return share_of_least(work, self._params.scale_tokens)


def _foreign_waiting(endpoint: Endpoint, waiting: int) -> int:
    """Of the requests that are `waiting` in the engine's own queue, those that the router did not send."""
    return min(endpoint.requests - endpoint.inflight.requests, waiting)
