"""Rounds in turn, and what is told of their figures: median, least and most."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of some figures, the least and the most of them."""

    low: float
    median: float
    high: float
    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Raises ValueError without any figure."""
        ordered = sorted(values)
        if not ordered:
            raise ValueError("no figures")
        return cls(ordered[0], statistics.median(ordered), ordered[-1], tuple(ordered))

    def text(self) -> str:
        """`12.3 (11.9-14.0)`: the median, and the least and most."""
        return f"{digits(self.median)} ({digits(self.low)}-{digits(self.high)})"


def digits(value: float) -> str:
    """A figure with three digits that count, thousands apart."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"


def in_turn(contenders: Sequence[T], rounds: int) -> Iterator[tuple[int, T]]:
    """Each round has every contender once, each time from another one on.

    What the machine does meanwhile meets all of them, and nobody always follows the same neighbour.
    """
    for number in range(rounds):
        shift = number % len(contenders) if contenders else 0
        for contender in (*contenders[shift:], *contenders[:shift]):
            yield number, contender


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """Ours over theirs, round by round: drift of the machine between rounds cancels."""
    return Spread.of(a / b for a, b in zip(ours, theirs, strict=True))


def crossing(curve: Iterable[tuple[float, float]], share: float) -> float | None:
    """The rate up to which attainment stays at `share`, from measured points (rate, attainment), on straight
    lines between them. None: it is below at the first point already. The last rate, if it never falls below.
    """
    points = sorted(curve)
    last: tuple[float, float] | None = None
    for rate, kept in points:
        if kept < share:
            if last is None:
                return None
            return last[0] + (rate - last[0]) * (last[1] - share) / (last[1] - kept)
        last = (rate, kept)
    return last[0] if last else None


def best(values: Iterable[T], key: Callable[[T], float], count: int) -> list[T]:
    """The `count` with the most of `key`, best first; the earlier of equals."""
    return sorted(values, key=key, reverse=True)[:count]
