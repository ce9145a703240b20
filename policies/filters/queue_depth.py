"""queue-depth-limit: keeps endpoints with few enough requests."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.policy import Context, Endpoint, Field, Params, RequestView


class QueueDepthLimitParams(Params):
    """How many are too many."""

    max: int = Field(default=64, ge=1)
    """Requests at one endpoint, running or waiting, whoever sent them."""

    max_waiting: int | None = Field(default=None, ge=1)
    """Requests that may wait in the engine's own queue; None: any number up to `max`."""


class QueueDepthLimit:
    """Keeps endpoints with fewer than `max` requests, of which fewer than `max_waiting` wait.

    Both are what the endpoint last reported plus what the router gave and saw end since, so that a burst
    between two reports counts in full. Requests given since a report are taken to wait.
    """

    def __init__(self, params: QueueDepthLimitParams) -> None:
        self._params = params

    def filter(
        self, request: RequestView, candidates: Sequence[Endpoint], context: Context
    ) -> Sequence[Endpoint]:
        """The candidates under both limits."""
        return [e for e in candidates if self._fits(e)]

    def _fits(self, endpoint: Endpoint) -> bool:
        if endpoint.requests >= self._params.max:
            return False
        if self._params.max_waiting is None or endpoint.load is None:
            return True
        since = endpoint.inflight.requests - endpoint.inflight_at_load.requests
        return endpoint.load.waiting + since < self._params.max_waiting
