"""Which outcomes of an endpoint to learn from: all, until there are more than tell anything new."""

from __future__ import annotations

MOST_PER_S = 50.0
"""Outcomes of one endpoint learned from in a second. Its windows hold a few hundred: more than so many only
cost CPU, and just when there is none to spare."""

WINDOW_S = 0.5
"""The rate is counted over so long, or a little longer."""

FIRST = 300
"""Outcomes of an endpoint's life that are all learned from: what is new to it is told by the first."""

GOLDEN = 0.6180339887498949
"""Fractional part of the golden ratio, whose multiples are spread evenly over the unit interval, and so are
every second, every third of them: no rhythm in the traffic leaves the same kind of request out each time."""


class Pace:
    """Which of one endpoint's outcomes to learn from: an even share of them, whatever kinds they are of."""

    __slots__ = ("_count", "_phase", "_share", "_since_s", "_total")

    def __init__(self) -> None:
        self._share = 1.0
        self._phase = 0.0
        self._count = self._total = 0
        self._since_s = 0.0

    def takes(self, now_s: float) -> bool:
        """Whether to learn from the outcome that has come now."""
        self._count += 1
        passed_s = now_s - self._since_s
        if passed_s >= WINDOW_S:
            self._share = min(1.0, MOST_PER_S * passed_s / self._count)
            self._count, self._since_s = 0, now_s
        if self._total < FIRST:
            self._total += 1
            return True
        if self._share >= 1.0:
            return True
        phase = self._phase + GOLDEN
        self._phase = phase = phase if phase < 1.0 else phase - 1.0
        return phase < self._share
