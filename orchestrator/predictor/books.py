"""What was predicted against what came, per endpoint and stage: the predictor's own account of itself."""

from __future__ import annotations

from math import exp

from orchestrator.core.prediction import Coverage, StageAccuracy
from orchestrator.predictor.tail import Tail

_WEIGHT = 0.02  # of the newest outcome in the recent figures: the last 50 or so count
_STEP = 1.03  # of the running median, up or down


class Stage:
    """One stage's predictions against its times."""

    __slots__ = ("actual_s", "bias", "error", "outcomes", "predicted_s")

    def __init__(self) -> None:
        self.outcomes = 0
        self.predicted_s = self.actual_s = 0.0
        self.bias = 0.0  # mean log(actual / predicted)
        self.error = 0.1

    def add(self, predicted_s: float, actual_s: float, off: float) -> None:
        """Count one outcome, `off` by that in logarithms."""
        self.outcomes += 1
        self.predicted_s += predicted_s
        self.actual_s += actual_s
        self.bias += max(_WEIGHT, 1.0 / self.outcomes) * (off - self.bias)
        self.error *= _STEP if abs(off) > self.error else 1.0 / _STEP

    def report(self, name: str) -> StageAccuracy:
        """As plain figures."""
        return StageAccuracy(
            name, self.outcomes, self.predicted_s, self.actual_s, exp(self.bias), exp(self.error) - 1.0
        )


class Promises:
    """Predictions at the quantile that their requests' class asks for, and how many held."""

    __slots__ = ("given", "kept")

    def __init__(self) -> None:
        self.given = self.kept = 0

    def count(self, kept: bool) -> None:
        """One more has come to its end."""
        self.given += 1
        self.kept += kept


def coverage(horizon: str, tail: Tail, promises: Promises) -> Coverage:
    """As plain figures."""
    return Coverage(horizon, tail.seen, dict(tail.within), promises.given, promises.kept)
