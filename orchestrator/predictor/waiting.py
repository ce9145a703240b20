"""How far off predictions are that were made before an endpoint was free: per model, since any may do."""

from __future__ import annotations

from orchestrator.predictor.books import Promises, Stage
from orchestrator.predictor.tail import Tail

QUEUE_SD = 0.5
"""Before any outcome: how far they are taken to be off. Others may come first, or ask for more."""

STEADY = 0.3
"""How much narrower, as a share, the residuals of a prediction are that is all waiting: a wait is a sum of
many requests' times, and what is too long in one is made up for by others."""

CREDIT = 1.15
"""As `tail.CREDIT`, but next to nothing: requests that wait miss together, when what they all wait for is
late, and a calm says nothing of the next streak."""


class Waiting:
    """The tail of the requests of one model that had to wait, and the books of all."""

    __slots__ = ("promises", "stage", "tail")

    def __init__(self) -> None:
        self.tail = Tail(None, QUEUE_SD, 0.0, CREDIT)
        self.promises = Promises()
        self.stage = Stage()

    def seconds(self, predicted_s: float, queued_s: float, quantile: float) -> float:
        """What to add to a prediction with so much waiting in it."""
        return self.tail.seconds(predicted_s, quantile, _scale(predicted_s, queued_s))

    def learn(self, off: float, predicted_s: float, queued_s: float) -> None:
        """Such a prediction was off by `off`, in logarithms."""
        self.tail.learn(off / _scale(predicted_s, queued_s), 0.0, 0.0)


def _scale(predicted_s: float, queued_s: float) -> float:
    return 1.0 - STEADY * min(1.0, queued_s / predicted_s) if predicted_s > 0.0 else 1.0
