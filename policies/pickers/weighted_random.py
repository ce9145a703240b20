"""weighted-random: draws a candidate, the better the likelier."""

from __future__ import annotations

import math
from collections.abc import Sequence

from orchestrator.policy import Context, Field, Params, RequestView, Scored


class WeightedRandomParams(Params):
    """How much likelier."""

    temperature: float = Field(default=0.2, gt=0)
    """Difference in total that makes a candidate e times as likely as another. Near 0: as max-score."""


class WeightedRandom:
    """Draws with probability proportional to exp(total / temperature).

    For several routers over the same endpoints, none of which sees what the others have just sent: they
    spread where max-score would have them all choose alike.
    """

    def __init__(self, params: WeightedRandomParams) -> None:
        self._temperature = params.temperature

    def pick(self, request: RequestView, scored: Sequence[Scored], context: Context) -> Scored:
        """One of `scored`."""
        best = max(s.total for s in scored)
        odds = [math.exp((s.total - best) / self._temperature) for s in scored]
        return context.rng.choices(scored, odds)[0]
