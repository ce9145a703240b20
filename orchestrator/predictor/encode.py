"""The encode stage: how long a request's images take before its prompt is computed, wherever that is done."""

from __future__ import annotations

from math import log

from orchestrator.predictor.books import Stage
from orchestrator.predictor.tail import Window

EACH_S = 0.07
"""Before any was seen: an image of 1024 x 1024 pixels through the vision tower of a large model."""

KEPT = 100
"""So many requests' times are kept."""

LEAST_S = 0.001


class Encoding:
    """Seconds for each medium of a request, as the median of the newest: encoders take one after the other.

    What is learned from is the time to the first token less all other stages, so that one request tells
    little: the others' errors are in it. Media of all sizes count alike: a body does not tell their size.
    """

    __slots__ = ("_each", "stage")

    def __init__(self) -> None:
        self._each = Window(KEPT)
        self._each.add(EACH_S)
        self.stage = Stage()
        """Predicted against actual."""

    def seconds(self, media: int) -> float:
        """Seconds for so many."""
        ordered = self._each.ordered
        return media * ordered[len(ordered) // 2]

    def learn(self, media: int, took_s: float) -> None:
        """They took so long together; less than nothing, where the other stages were overestimated."""
        took_s = max(took_s, LEAST_S)
        predicted_s = self.seconds(media)
        self.stage.add(predicted_s, took_s, log(took_s / predicted_s))
        self._each.add(took_s / media)
