"""A prefill curve that errs by a known amount; compiled, as what it extends is."""

from __future__ import annotations

import math
from random import Random

from orchestrator.core.frozen import frozen
from orchestrator.core.prediction import Curve


@frozen(frozen=True, slots=True)
class WrongCurve(Curve):
    """A curve whose every prompt length is off by a factor of its own, the same each time."""

    sigma: float = 0.0
    seed: int = 0

    def seconds(self, tokens: int, cached: int = 0) -> float:
        """Seconds for `tokens`, wrongly."""
        right = Curve.seconds(self, tokens, cached)
        return right * math.exp(Random(self.seed * 1_000_003 + tokens).gauss(0.0, self.sigma))
