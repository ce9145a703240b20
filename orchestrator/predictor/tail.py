"""How far above its prediction a time may turn out: conformal quantiles of residuals, kept honest online."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from math import exp, inf, log, nan, sqrt
from statistics import NormalDist

JITTER_S = 0.002
"""Added to what is predicted and to what came before their ratio is taken: times of a few milliseconds vary
by as much for reasons that have nothing to do with the work (a network round trip, an event loop's turn)."""

OWN, SHARED = 300, 1000
"""Residuals kept per endpoint, and per pool."""

ENOUGH_OWN, ENOUGH_SHARED = 200, 100
"""From so many on an endpoint's own residuals tell the quantile; before, its pool's; at first, the prior."""

PRIOR_WIDTH = 1.25
"""The prior's quantiles are the normal distribution's, wider by this: no engine's times are as regular."""

STEP = 0.5
"""A miss halves the share of misses that is aimed at; hits give it back. This is adaptive conformal inference
(Gibbs and Candes, 2021) with this step, in units of that share: over a long run the coverage comes out right
whatever the residuals do."""

DEBT, CREDIT = 20.0, 2.0
"""How far that share may go, in the same units. Below zero nothing seen yet is far enough: misses in a streak
are made up for by later hits."""

LIFT_SD = 1.3
"""After a miss the tail covers as much again and so many standard deviations, until a hit denies it: the
first outcome after a shift is missed, the next ones are not."""

LIFTED_FROM = 0.9
"""Quantiles below are not lifted: they are missed every few outcomes without anything having happened."""

COUNTED = (0.5, 0.9, 0.99)
"""Quantiles whose coverage is always counted; others are corrected from when they are first asked for."""

MOST_ASKED = 12
"""Quantiles corrected at most; a class's targets, not a stream of made-up ones."""

_NORMAL = NormalDist()


def score(actual_s: float, predicted_s: float) -> float:
    """The residual of one prediction: how far off in logarithms, small times damped; nan if it was none."""
    if not (actual_s < inf and predicted_s < inf):
        return nan
    return log((max(actual_s, 0.0) + JITTER_S) / (max(predicted_s, 0.0) + JITTER_S))


class Window:
    """The newest `size` figures, in order of size."""

    __slots__ = ("_age", "_size", "ordered")

    def __init__(self, size: int) -> None:
        self._age: deque[float] = deque()
        self._size = size
        self.ordered: list[float] = []

    def __len__(self) -> int:
        """How many there are."""
        return len(self.ordered)

    def add(self, value: float) -> None:
        """Put one in, the oldest out."""
        if len(self._age) == self._size:
            del self.ordered[bisect_left(self.ordered, self._age.popleft())]
        self._age.append(value)
        insort(self.ordered, value)

    def upper(self, miss: float) -> float:
        """What the next figure exceeds with probability `miss` (split conformal: the rank is of n + 1).

        Beyond the greatest by as much as the greatest is from the 9th decile, where so rare a miss is asked
        for that so few figures cannot tell.
        """
        ordered = self.ordered
        n = len(ordered)
        rank = (1.0 - miss) * (n + 1) - 1.0
        if rank >= n - 1:
            last = ordered[-1]
            return last + (last - ordered[int(0.9 * (n - 1))]) * min(1.0, rank - (n - 1))
        if rank <= 0.0:
            return ordered[0]
        low = int(rank)
        part = rank - low
        return ordered[low] * (1.0 - part) + ordered[low + 1] * part


class Tail:
    """The residuals of one endpoint's predictions and their quantiles.

    Residuals are divided by the standard deviation expected at the time, so that those of a cold start or
    just after a shift, when the model is unsure of itself, can stand beside the others, and those of one
    endpoint beside those of its pool (`shared`). `spread_sd` and `unsure` are what to expect at first: how
    far outcomes lie around a sure prediction, and the variance of the prediction itself. `lifts`: a miss
    lifts the tail until the next hit.
    """

    __slots__ = (
        "_asked", "_cache", "_credit", "_lift", "_lifts", "_own", "_shared", "_spread", "_unsure", "_usual",
        "seen", "within",
    )  # fmt: skip

    def __init__(
        self,
        shared: Window | None,
        spread_sd: float,
        unsure: float,
        credit: float = CREDIT,
        *,
        lifts: bool = True,
    ) -> None:
        self.seen = 0
        self._lifts = lifts
        self._credit = credit
        self._shared = shared
        self._own = Window(OWN if shared is not None else SHARED)
        self._spread = spread_sd * spread_sd  # variance of outcomes around a sure prediction
        self._unsure = unsure  # variance of the next prediction itself
        self._usual = unsure  # of the last few, whose requests were not all alike
        self._lift = 0.0
        self.within = dict.fromkeys(COUNTED, 0)
        """How many outcomes were below each of these quantiles, as it was when they came."""
        self._asked = {quantile: 1.0 - quantile for quantile in COUNTED}  # share of misses to aim at
        self._cache: dict[float, float] = {}

    @property
    def spread_sd(self) -> float:
        """What outcomes vary by around a sure prediction."""
        return sqrt(self._spread)

    @property
    def sd(self) -> float:
        """What the next score is expected to vary by."""
        return sqrt(self._spread + self._unsure)

    def factor(self, quantile: float) -> float:
        """What a prediction, jitter included, is multiplied by for `quantile` of the outcomes to be below."""
        known = self._cache.get(quantile)
        if known is None:
            within = min(max(quantile, 0.001), 0.9999)
            above = self._upper(within) * self.sd + self._lifted(within)
            known = self._cache[quantile] = exp(min(_MOST, above))
        return known

    def seconds(self, predicted_s: float, quantile: float, scale: float = 1.0) -> float:
        """What to add to `predicted_s`; never so little that a time would be negative.

        `scale` is how wide the residuals of such a prediction are; those learned were divided by it.
        """
        factor = self.factor(quantile) if scale == 1.0 else self.factor(quantile) ** scale
        return max(-predicted_s, (predicted_s + JITTER_S) * (factor - 1.0))

    def learn(self, value: float, unsure: float, next_unsure: float) -> None:
        """Take a score, of a prediction whose own variance was `unsure`; of the next it is `next_unsure`."""
        sd = sqrt(self._spread + unsure)
        z = value / sd
        base = self._upper(0.99) * sd
        for quantile, miss in self._asked.items():
            aim = 1.0 - quantile
            missed = value > self._upper(quantile) * sd + self._lifted(quantile)
            if not missed and quantile in self.within:
                self.within[quantile] += 1
            miss += STEP * aim * (aim - missed)
            self._asked[quantile] = min(max(miss, -DEBT * aim), self._credit * aim)
        if value > base + self._lift:
            self._lift = min(value - base, 2.0 * max(base, sd)) + LIFT_SD * sd
        else:
            self._lift = 0.5 * self._lift if self._lift > _FAINT * sd else 0.0
        self._own.add(z)
        if self._shared is not None:
            self._shared.add(z)
        self.seen += 1
        weight = max(1.0 / (self.seen + 10.0), 0.02)
        self._spread += weight * (min(value * value, 9.0 * sd * sd) - unsure - self._spread)
        self._spread = max(self._spread, _LEAST)
        self._usual += _RECENT * (unsure - self._usual)
        self._unsure = max(next_unsure, self._usual)
        self._cache.clear()

    def _upper(self, quantile: float) -> float:
        miss = self._asked.get(quantile)
        if miss is None:
            miss = 1.0 - quantile
            if len(self._asked) < MOST_ASKED:
                self._asked[quantile] = miss
        own, shared = self._own, self._shared
        if len(own) >= ENOUGH_OWN or (shared is None and len(own) >= ENOUGH_SHARED):
            return own.upper(miss)
        if shared is not None and len(shared) >= ENOUGH_SHARED:
            return shared.upper(miss)
        return PRIOR_WIDTH * _NORMAL.inv_cdf(quantile)

    def _lifted(self, quantile: float) -> float:
        return self._lift if self._lifts and quantile >= LIFTED_FROM else 0.0


_LEAST = 0.01 * 0.01
_MOST = 6.0
_RECENT = 0.3
_FAINT = 0.25
