"""queue-depth: prefers endpoints with fewer requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from orchestrator.policy import Context, Endpoint, Field, Params, RequestView, share_of_least


class QueueDepthParams(Params):
    """What a request weighs."""

    scale_requests: float | None = Field(default=256, gt=0)
    """Requests above the least loaded candidate at which the score is 0; None: those of the most loaded one,
    which tells candidates apart by a request as sharply as by a hundred."""


class QueueDepth:
    """1 for the candidate with the fewest requests (reported, and since), falling with each one above it."""

    unit: ClassVar[str] = "share"
    measures_load: ClassVar[bool] = True

    def __init__(self, params: QueueDepthParams) -> None:
        self._scale = params.scale_requests

    def score(
        self, request: RequestView, candidates: Sequence[Endpoint], context: Context
    ) -> Sequence[float]:
        """One share per candidate."""
        requests = [e.requests for e in candidates]
        return share_of_least(requests, self._scale or max(1, max(requests) - min(requests)))
