"""How long answers turn out to be, per class: a fading distribution that also learns from those cut off."""

from __future__ import annotations

from math import ceil, log2

PER_DOUBLING = 8
"""Bins per doubling of the length: quantiles are right within 9 %."""

BINS = 18 * PER_DOUBLING + 1
"""Up to 262,144 tokens."""

FADE = 1.002
"""How much more each answer weighs than the one before: the last 500 or so count."""

PRIOR_TOKENS, PRIOR_WEIGHT = (64, 256, 1024), 2.0
"""Before any answer: these lengths, each seen so many times. Most chat answers lie between."""

FRESH = 16
"""Quantiles are counted anew after so many answers, or a twentieth of those seen if that is fewer."""


class Lengths:
    """The lengths of one class's answers.

    One that was cut off was at least so long: it counts by the product-limit estimate (Kaplan and Meier),
    without which the longest answers, those cut off most, would be missing.
    """

    __slots__ = ("_cut", "_ended", "_known", "_seen", "_stale", "_weight")

    def __init__(self) -> None:
        self._ended = [0.0] * BINS
        self._cut = [0.0] * BINS
        self._weight = 1.0
        self._seen = 0
        self._stale = 0
        self._known: dict[float, int] = {}
        for tokens in PRIOR_TOKENS:
            self._ended[_bin(tokens)] += PRIOR_WEIGHT

    def learn(self, tokens: int, complete: bool) -> None:
        """An answer had `tokens`; or it had so many when it was cut off."""
        (self._ended if complete else self._cut)[_bin(tokens)] += self._weight
        self._weight *= FADE
        self._seen += 1
        self._stale += 1
        if self._stale >= min(FRESH, max(1, self._seen // 20)):
            self._stale = 0
            self._known.clear()
        if self._weight > 1e6:
            for counts in (self._ended, self._cut):
                counts[:] = [count / self._weight for count in counts]
            self._weight = 1.0

    def quantile(self, quantile: float) -> int:
        """The length that `quantile` of the answers do not exceed; the longest seen if most were cut off."""
        known = self._known.get(quantile)
        if known is None:
            known = self._known[quantile] = self._count(quantile)
        return known

    def _count(self, quantile: float) -> int:
        left = sum(self._ended, 0.0) + sum(self._cut, 0.0)
        alive, last = 1.0, 0
        for index, (ended, cut) in enumerate(zip(self._ended, self._cut, strict=True)):
            if ended + cut <= 0.0:
                continue
            last = index
            alive *= 1.0 - ended / left
            if 1.0 - alive >= quantile - 1e-12:
                return _tokens(index)
            left -= ended + cut
            if left <= 1e-9 * self._weight:
                break
        return _tokens(last)


def _bin(tokens: int) -> int:
    return min(BINS - 1, ceil(PER_DOUBLING * log2(tokens) - 1e-9)) if tokens > 1 else 0


def _tokens(index: int) -> int:
    return int(2.0 ** (index / PER_DOUBLING) + 0.5)
