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

    tail: float = Field(default=1.25, ge=1)
    """The tail of a gap as a multiple of its predicted median."""


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
        own_s = inf if context.slo is None else context.slo.step_s
        kept = []
        for endpoint in candidates:
            bound_s = min(own_s, context.step_limit_s(endpoint.id))
            if endpoint.requests and bound_s < inf:
                gap_s = self._tail * _gap_s(request, endpoint, context, predictor)
                if gap_s > bound_s:
                    continue
            kept.append(endpoint)
        if not kept and context.slo is not None and context.slo.unattainable is not Unattainable.REJECT:
            return candidates
        return kept


def _gap_s(request: RequestView, endpoint: Endpoint, context: Context, predictor: Predictor) -> float:
    """The longest step that the request brings: with a chunk of its prompt, if that is computed there too."""
    gap_s = step_s(request, endpoint, predictor)
    if context.role is Role.DECODE and context.prefill is not None:
        return gap_s
    new = request.prompt_tokens - cached_tokens(request, endpoint, context)
    chunk = endpoint.facts.get("chunk_tokens")
    piece = min(new, chunk) if isinstance(chunk, int) else new
    return gap_s + predictor.prefill(endpoint).seconds(piece)
