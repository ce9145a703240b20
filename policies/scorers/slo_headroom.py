"""slo-headroom: prefers endpoints by how much of the request's promise they are predicted to leave."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import ClassVar, Literal

from orchestrator.policy import (
    Context,
    Endpoint,
    Params,
    Predictor,
    RequestView,
    Role,
    first_tokens,
    quantile_of,
    share_of_least,
    step_s,
)


class SloHeadroomParams(Params):
    """Which headroom is best."""

    prefer: Literal["best-fit", "spread"] = "spread"
    """`spread`: the most, so that all stay equally far from their limits. `best-fit`: the least that is
    enough, so that the rest stays whole for a request that needs it."""


class SloHeadroom:
    """By the share of the promise that would be left, in the tail of the prediction: of the time to first
    token where prompts are computed, of the gap between tokens on a decode endpoint.

    Whoever keeps the promise scores 1/2 to 1, whoever would break it less, the least broken the most. A
    request that is promised nothing prefers the shortest prediction; nothing is preferred where nothing
    predicts.
    """

    unit: ClassVar[str] = "share"
    measures_load: ClassVar[bool] = True

    def __init__(self, params: SloHeadroomParams) -> None:
        self._best_fit = params.prefer == "best-fit"

    def score(
        self, request: RequestView, candidates: Sequence[Endpoint], context: Context
    ) -> Sequence[float]:
        """One share per candidate."""
        predictor = context.predictor
        if predictor is None:
            return [0.0] * len(candidates)
        if context.role is Role.DECODE and context.prefill is not None:
            bound_s = inf if context.slo is None else context.slo.step_s
            takes = [step_s(request, e, predictor) for e in candidates]
            left_s = bound_s
        else:
            takes = _tails(request, candidates, context, predictor)
            bound_s = context.first_token_by_s - request.arrived_s
            left_s = context.first_token_by_s - context.now_s
        if bound_s == inf or bound_s <= 0.0:
            return share_of_least(takes, max(takes) or 1.0)
        return [self._share((left_s - t) / bound_s) for t in takes]

    def _share(self, headroom: float) -> float:
        """`headroom` is the part of the promise that is left: at most 1, negative where it is broken."""
        if headroom < 0.0:
            return 0.5 / (1.0 - headroom)
        if headroom > 1.0:
            headroom = 1.0
        return 1.0 - headroom / 2 if self._best_fit else 0.5 + headroom / 2


def _tails(
    request: RequestView, candidates: Sequence[Endpoint], context: Context, predictor: Predictor
) -> list[float]:
    quantile = quantile_of(context)
    return [
        first.total_s + predictor.tail_s(first.prefill, first.total_s, quantile, queued_s=first.wait_s)
        for first in first_tokens(request, candidates, context, predictor)
    ]
