"""predicted-latency: prefers the endpoint where the request, and those behind it, lose the least time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from orchestrator.policy import (
    Context,
    Endpoint,
    Field,
    Params,
    Predictor,
    RequestView,
    Role,
    first_tokens,
    output_tokens,
    step_s,
)


class PredictedLatencyParams(Params):
    """What others' time is worth."""

    others: float = Field(default=1.0, ge=0)
    """Seconds that one of work costs those who wait for the endpoint; the request itself always pays one."""


class PredictedLatency:
    """Predicted seconds: of waiting, of prefill once for the request and `others` times for those behind it,
    and to the first token. On a decode endpoint: of the hand-off, and of decoding its answer there with what
    that slows the others down.

    Affinity and load in one price: a cached token saves exactly the prefill that it need not cost. Nothing
    where nothing predicts.
    """

    unit: ClassVar[str] = "seconds"
    measures_load: ClassVar[bool] = True

    def __init__(self, params: PredictedLatencyParams) -> None:
        self._others = params.others

    def score(
        self, request: RequestView, candidates: Sequence[Endpoint], context: Context
    ) -> Sequence[float]:
        """One cost in seconds per candidate."""
        predictor = context.predictor
        if predictor is None:
            return [0.0] * len(candidates)
        firsts = first_tokens(request, candidates, context, predictor)
        if context.role is Role.DECODE and context.prefill is not None:
            decodes = self._decodes(request, candidates, context, predictor)
            return [first.handoff_s + d for first, d in zip(firsts, decodes, strict=True)]
        twice = 1.0 + self._others
        return [f.wait_s + twice * f.prefill_s + f.handoff_s for f in firsts]

    def _decodes(
        self, request: RequestView, candidates: Sequence[Endpoint], context: Context, predictor: Predictor
    ) -> list[float]:
        tokens = output_tokens(request, context)
        costs = []
        for endpoint in candidates:
            after_s = step_s(request, endpoint, predictor)
            before_s = predictor.step(endpoint).seconds(endpoint.requests, endpoint.kv_used_tokens)
            slower_s = self._others * endpoint.requests * (after_s - before_s)
            costs.append(tokens * (after_s + slower_s))
        return costs
