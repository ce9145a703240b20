"""Gap promises at their quantile: how long a step may be in the median, so that the tail keeps them."""

from __future__ import annotations

from orchestrator.core.prediction import Predictor
from orchestrator.core.slo import Gap

MOST = 1.5
"""A tail is taken to be at most so many times the median. That of an endpoint that has shown little is wider:
to go by it would give that endpoint one request at a time, and it would show no more."""


class Gaps:
    """What the predictor says of the tails of gaps, kept until `forget`."""

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor
        self._known: dict[tuple[str, Gap], float] = {}

    def median_s(self, endpoint_id: str, gap: Gap) -> float:
        """The longest median step at an endpoint with which `gap` is kept by as many as were promised it."""
        known = self._known.get((endpoint_id, gap))
        if known is None:
            bound_s, quantile = gap
            # What tails add grows with the median.
            tail_s = bound_s + self._predictor.itl_tail_s(endpoint_id, bound_s, quantile)
            known = self._known[endpoint_id, gap] = bound_s * max(1.0 / MOST, min(1.0, bound_s / tail_s))
        return known

    def forget(self) -> None:
        """The predictor may have learned."""
        self._known.clear()
