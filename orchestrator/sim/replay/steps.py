"""What many decode steps in a row take, and the gaps between tokens they make, without looking at each."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from random import Random

BIN = 0.01
"""Width of a histogram bin: one per cent of the value."""

_SCALE = 1.0 / math.log1p(BIN)


class Noise:
    """Factors on the durations of steps, with sums that give any run of steps at once.

    Log-normal with median 1; `sigma` 0 makes all of them exactly 1. A run of k steps from factor `at` on, the
    i-th of which (from 0) would take `a + c*i` seconds, takes `a*S + c*R` where S and R are the sums over
    its factors f and over f*i. A table is shared by all engines of a run, each of which starts elsewhere.
    """

    __slots__ = ("factors", "ramps", "sigma", "size", "sums")

    def __init__(self, sigma: float = 0.0, rng: Random | None = None, size: int = 1 << 14) -> None:
        self.sigma = sigma
        self.size = size
        if sigma and rng is not None:
            self.factors = [math.exp(rng.gauss(0.0, sigma)) for _ in range(size)]
        else:
            self.factors = [1.0] * size
        self.sums, self.ramps = [0.0], [0.0]
        total = ramp = 0.0
        for i, factor in enumerate(self.factors):
            total += factor
            ramp += factor * i
            self.sums.append(total)
            self.ramps.append(ramp)

    def lasts_s(self, at: int, steps: int, first_s: float, grows_s: float) -> float:
        """Seconds of `steps` steps that would take `first_s`, `first_s + grows_s`, ... without noise."""
        total = self.sums[at + steps] - self.sums[at]
        ramp = self.ramps[at + steps] - self.ramps[at] - at * total
        return first_s * total + grows_s * ramp

    def within(self, at: int, low: int, high: int, first_s: float, grows_s: float, limit_s: float) -> int:
        """The most steps, of `low` to `high`, that are over within `limit_s`."""
        while low < high:
            middle = (low + high + 1) // 2
            if self.lasts_s(at, middle, first_s, grows_s) <= limit_s:
                low = middle
            else:
                high = middle - 1
        return low


class Histogram:
    """Weighted durations in bins one per cent wide; quantiles are right within that."""

    __slots__ = ("bins",)

    def __init__(self, bins: Mapping[int, int] | None = None) -> None:
        self.bins: dict[int, int] = dict(bins or {})

    def add(self, seconds: float, weight: int = 1) -> None:
        """Count `seconds` so many times; anything below a nanosecond is one."""
        place = int(math.log(seconds if seconds > 1e-9 else 1e-9) * _SCALE + 1e4)
        self.bins[place] = self.bins.get(place, 0) + weight

    def add_ramp(self, first_s: float, last_s: float, steps: int, weight: int) -> None:
        """Count `steps` durations that go evenly from `first_s` to `last_s`, each `weight` times."""
        if steps == 1 or last_s - first_s < BIN * first_s:
            self.add((first_s + last_s) / 2, steps * weight)
            return
        pieces = min(steps, int((last_s - first_s) / (BIN * first_s)) + 1)
        for i in range(pieces):
            here = steps * (i + 1) // pieces - steps * i // pieces
            self.add(first_s + (last_s - first_s) * (i + 0.5) / pieces, here * weight)

    def merge(self, others: Iterable[Histogram]) -> Histogram:
        """This one and others together, as a new one."""
        total = Histogram(self.bins)
        for other in others:
            for place, weight in other.bins.items():
                total.bins[place] = total.bins.get(place, 0) + weight
        return total

    @property
    def count(self) -> int:
        """Durations counted."""
        return sum(self.bins.values())

    def quantile(self, share: float) -> float | None:
        """The duration that `share` of all are not above (the middle of its bin); None: nothing counted."""
        target = share * self.count
        seen = 0
        for place, weight in sorted(self.bins.items()):
            seen += weight
            if seen >= target:
                return math.exp((place + 0.5 - 1e4) / _SCALE)
        return None


class Worst:
    """The largest of the gaps since some step, for any number of readers: O(log n) a question.

    Only what no later gap exceeds is kept, so that the values fall.
    """

    __slots__ = ("_steps", "_values")

    def __init__(self) -> None:
        self._steps: list[int] = []
        self._values: list[float] = []

    def add(self, step: int, seconds: float) -> None:
        """A gap that ended with step number `step`; never a lower number than before."""
        values = self._values
        while values and values[-1] <= seconds:
            values.pop()
            self._steps.pop()
        values.append(seconds)
        self._steps.append(step)

    def since(self, step: int) -> float:
        """The largest gap that ended with step `step` or later; 0 if there was none."""
        at = bisect_left(self._steps, step)
        return self._values[at] if at < len(self._values) else 0.0
