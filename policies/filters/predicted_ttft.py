"""predicted-ttft: keeps endpoints where the request's first token is predicted to come in time."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import ClassVar

from orchestrator.policy import (
    Context,
    Endpoint,
    Field,
    Params,
    RequestView,
    Unattainable,
    first_tokens,
    left_s,
    quantile_of,
)


class PredictedTtftParams(Params):
    """How sure it must be."""

    quantile: float | None = Field(default=None, ge=0.5, lt=1)
    """The quantile of its prediction that must be in time; None: the one its class promises."""


class PredictedTtft:
    """Keeps endpoints where the tail of the predicted time to first token meets the request's deadline.

    Where it leaves none the request is refused now, and not after it has waited in vain: with it an immediate
    profile rejects early. A class that is not to be refused keeps them all then. A request that is promised
    nothing, or that nothing predicts, may go anywhere.
    """

    reason: ClassVar[str] = "slo-unreachable"

    def __init__(self, params: PredictedTtftParams) -> None:
        self._quantile = params.quantile

    def filter(
        self, request: RequestView, candidates: Sequence[Endpoint], context: Context
    ) -> Sequence[Endpoint]:
        """The candidates in time."""
        predictor, left = context.predictor, left_s(context)
        if predictor is None or left == inf:
            return candidates
        quantile = self._quantile or quantile_of(context)
        kept = []
        for endpoint, first in zip(
            candidates, first_tokens(request, candidates, context, predictor), strict=True
        ):
            takes_s = first.total_s
            if takes_s + predictor.tail_s(first.prefill, takes_s, quantile, queued_s=first.wait_s) <= left:
                kept.append(endpoint)
        if not kept and context.slo is not None and context.slo.unattainable is not Unattainable.REJECT:
            return candidates
        return kept
