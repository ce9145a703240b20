"""predicted-itl: keeps endpoints where no gap between tokens would become longer than promised."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import ClassVar

from orchestrator.policy import (
    Context,
    Endpoint,
    Field,
    Params,
    Predictor,
    RequestView,
    Role,
    Unattainable,
    cached_tokens,
    step_s,
)


class PredictedItlParams(Params):
    """How sure it must be."""

    tail: float | None = Field(default=None, ge=1)
    """The tail of a gap as a multiple of its predicted median; none: as learned, at the class's quantile."""


MOST_TAIL = 1.5
"""A learned tail counts as at most so many times the median: of an endpoint that has shown little it is
several times that, and nobody would be sent there to show more."""

USUAL_QUANTILE = 0.99
"""Where the request itself has no promise of its gaps, and others there have."""


class PredictedItl:
    """Keeps endpoints whose decode step, with the request in the batch, keeps every promise of a gap.

    The request's own promise and the strictest of those that decode there already. Where prompts are computed
    beside decoding, the gap holds a chunk of the request's prompt too. An endpoint with nobody on it is
    kept: it is as fast there as it can be. A class that is not to be refused keeps all where none would do.
    """

    reason: ClassVar[str] = "slo-unreachable"

    def __init__(self, params: PredictedItlParams) -> None:
        self._tail = params.tail

    def filter(
        self, request: RequestView, candidates: Sequence[Endpoint], context: Context
    ) -> Sequence[Endpoint]:
        """The candidates that are fast enough."""
        predictor = context.predictor
        if predictor is None or context.role is Role.PREFILL:
            return candidates
        own_s, quantile = (inf, 0.0) if context.slo is None else context.slo.gap
        quantile = USUAL_QUANTILE if own_s == inf else quantile
        kept = []
        for endpoint in candidates:
            bound_s = min(own_s, context.step_limit_s(endpoint.id))
            if endpoint.requests and bound_s < inf:
                gap_s = _gap_s(request, endpoint, context, predictor)
                if self._tail_of(endpoint, gap_s, quantile, predictor) * gap_s > bound_s:
                    continue
            kept.append(endpoint)
        if not kept and context.slo is not None and context.slo.unattainable is not Unattainable.REJECT:
            return candidates
        return kept

    def _tail_of(self, endpoint: Endpoint, gap_s: float, quantile: float, predictor: Predictor) -> float:
        """By what a gap's median is multiplied for its tail."""
        if self._tail is not None or gap_s <= 0.0:
            return self._tail or 1.0
        return min(MOST_TAIL, 1.0 + predictor.itl_tail_s(endpoint.id, gap_s, quantile) / gap_s)


def _gap_s(request: RequestView, endpoint: Endpoint, context: Context, predictor: Predictor) -> float:
    """The longest step that the request brings: with a chunk of its prompt, if that is computed there too."""
    gap_s = step_s(request, endpoint, predictor)
    if context.role is Role.DECODE and context.prefill is not None:
        return gap_s
    new = request.prompt_tokens - cached_tokens(request, endpoint, context)
    chunk = endpoint.facts.get("chunk_tokens")
    piece = min(new, chunk) if isinstance(chunk, int) else new
    return gap_s + predictor.prefill(endpoint).seconds(piece)
