"""A cost of several terms, learned online: a Kalman filter over the logarithms of its coefficients."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, sqrt
from operator import mul

CLIP = 2.5
"""A residual counts for at most so many standard deviations (Huber): one wild outcome moves little."""

FARTHEST = 7.0
"""How far a coefficient may move from its prior, in logarithms (a factor of 1,100)."""

SPEED_WALK = 0.005
"""Standard deviation of what an engine's speed changes by from one outcome to the next."""

SHAPE_WALK = 0.003
"""The same of each single coefficient; not beyond its prior uncertainty."""

SHIFT_SD = 0.2
"""The uncertainty a detected shift gives the speed: enough that the next outcomes decide it."""

SLACK, ALARM = 0.75, 4.0
"""Two-sided CUSUM over standardised residuals: about one false alarm in 2,000 outcomes (Siegmund), while a
shift of 2.6 standard deviations, 1.3x under a noise of 10 %, is seen after two or three."""

LEAST_NOISE = 0.02 * 0.02
"""The least variance an outcome is taken to have."""


class Fit:
    """`sum of coefs[j] * x[j]`, every coefficient positive by construction.

    What is estimated are the coefficients' logarithms, from residuals `log(actual / predicted)`: errors count
    relatively, so that 0.1 s and 10 s matter alike, and what is predicted is the median. The derivative of a
    log-prediction by a log-coefficient is the share of that term in the sum, so everything is of order one.
    `speed_sd` is the prior uncertainty of a factor common to all coefficients, `shape_sds` that of each
    alone: the first few outcomes set the speed, later ones the shape. No uncertainty grows beyond its prior,
    which is the regularisation: what no outcome tells stays where it was. `kin` says how much of the common
    factor each coefficient has (1: all), the rest being its own: what it tells of the others, and they of it.
    `seen` counts the outcomes fully trusted, `noise` is the variance of such a one around its prediction.
    """

    __slots__ = (
        "_cov",
        "_down",
        "_noises",
        "_origin",
        "_shape",
        "_shared",
        "_speed",
        "_up",
        "coefs",
        "noise",
        "seen",
    )

    def __init__(
        self,
        coefs: Sequence[float],
        speed_sd: float,
        shape_sds: Sequence[float],
        noise_sd: float = 0.15,
        kin: Sequence[float] | None = None,
    ) -> None:
        kin = kin or (1.0,) * len(coefs)
        self.coefs = list(coefs)
        self.seen = 0
        self.noise = noise_sd * noise_sd
        self._noises = 10.0  # outcomes that the prior noise counts for
        self._origin = list(coefs)
        self._speed = speed_sd * speed_sd
        self._shape = [sd * sd for sd in shape_sds]
        self._shared = [
            [1.0 if i == j else one * other for j, other in enumerate(kin)] for i, one in enumerate(kin)
        ]
        self._cov = [
            [self._speed * part + (self._shape[i] if i == j else 0.0) for j, part in enumerate(row)]
            for i, row in enumerate(self._shared)
        ]
        self._up = self._down = 0.0

    def variance(self, shares: Sequence[float]) -> float:
        """Of the log-prediction whose terms have these shares of the whole."""
        total: float = sum(map(mul, shares, [sum(map(mul, row, shares)) for row in self._cov]))
        return total

    def learn(
        self, shares: Sequence[float], residual: float, trust: float = 1.0, other: float = 0.0
    ) -> tuple[float, float]:
        """Move towards an outcome; the variance of such a prediction before, and of the next one.

        `shares` are the terms as shares of all that was predicted: they may sum to less than one, if others'
        terms are in it, whose variance `other` is. `trust` below one widens the outcome's noise, above
        one narrows it.
        """
        cov = self._cov
        lean: list[float] = [sum(map(mul, row, shares)) for row in cov]
        prior: float = sum(map(mul, shares, lean))
        total = prior + other + self.noise / trust
        sd = sqrt(total)
        z = residual / sd
        pulled = CLIP if z > CLIP else -CLIP if z < -CLIP else z
        gain = pulled / sd
        coefs, origin = self.coefs, self._origin
        for j, amount in enumerate(lean):
            value = coefs[j] * exp(amount * gain)
            least, most = origin[j] * _LEAST, origin[j] * _MOST
            coefs[j] = least if value < least else most if value > most else value
        part = min(trust, 1.0)
        walk = SPEED_WALK * SPEED_WALK * part if prior < self._speed else 0.0
        alone = SHAPE_WALK * SHAPE_WALK * part
        for i, amount in enumerate(lean):
            less = amount / total
            row = cov[i] = [c - less * b + walk for c, b in zip(cov[i], lean, strict=True)]
            if row[i] < self._speed + self._shape[i]:
                row[i] += alone
        after = prior * (1.0 - prior / total) + walk + self._watch(pulled, part)
        if trust == 1.0:
            self.seen += 1
            self._noises = min(self._noises + 1.0, 60.0)
            self.noise += (pulled * pulled * total - prior - other - self.noise) / self._noises
            if self.noise < LEAST_NOISE:
                self.noise = LEAST_NOISE
        return prior, after

    def _watch(self, z: float, trust: float) -> float:
        """Notice a shift by several residuals on one side, and let the speed follow it; what that added."""
        self._up = max(0.0, self._up + trust * (z - SLACK))
        self._down = max(0.0, self._down - trust * (z + SLACK))
        if self._up < ALARM and self._down < ALARM:
            return 0.0
        self._up = self._down = 0.0
        extra = SHIFT_SD * SHIFT_SD
        for row, shared in zip(self._cov, self._shared, strict=True):
            row[:] = [c + extra * part for c, part in zip(row, shared, strict=True)]
        return extra


_LEAST, _MOST = exp(-FARTHEST), exp(FARTHEST)
