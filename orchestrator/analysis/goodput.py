"""Goodput: the highest rate at which a share of the offered requests is still served well."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

Attains = Callable[[float, float], bool]
"""Whether a rate keeps a share."""

TOLERANCE = 0.015
"""How closely rates are told apart: the noise of one trace's end effects is of this size."""


@dataclass(slots=True)
class Curve:
    """What is known of attainment by rate, to answer later questions without a run."""

    kept: dict[float, float] = field(default_factory=dict)
    below: dict[float, float] = field(default_factory=dict)

    def attained(self, rate: float, share: float) -> None:
        """At `rate`, exactly `share` was kept."""
        self.kept[rate] = share

    def missed(self, rate: float, share: float) -> None:
        """At `rate`, less than `share` was kept."""
        self.below[rate] = min(share, self.below.get(rate, 1.1))

    def answer(self, rate: float, share: float) -> bool | None:
        """Whether `rate` keeps `share`; None if that is not known."""
        if rate in self.kept:
            return self.kept[rate] >= share
        return False if self.below.get(rate, 1.1) <= share else None


def highest(
    attains: Attains, share: float, start: float, *, tolerance: float = TOLERANCE, steps: int = 40
) -> float:
    """The highest rate that keeps `share`, by bisection from `start`; attainment is taken to fall with rate.

    0 if not even a thousandth of `start` does.
    """
    low, high = 0.0, 0.0
    rate = start
    for _ in range(steps):
        if attains(rate, share):
            low, rate = rate, rate * 1.5
        else:
            high, rate = rate, rate / 1.5
        if low and high:
            break
        if rate < start / 1000:
            return 0.0
    while high > low * (1 + tolerance):
        middle = (low * high) ** 0.5
        if attains(middle, share):
            low = middle
        else:
            high = middle
    return low
