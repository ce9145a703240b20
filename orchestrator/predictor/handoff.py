"""From the end of prefill to the first token: per pair of pools, and how each pair of endpoints differs."""

from __future__ import annotations

from orchestrator.core.prediction import Exposed
from orchestrator.core.types import Endpoint
from orchestrator.predictor import prior
from orchestrator.predictor.fit import Fit

PAIR_SD = 0.15
"""How far a pair of endpoints is from its pools' hand-off (logarithms): a longer way through the network."""

MOVED = 0.02
"""A hand-off that has moved by so much is told anew; it is a small part of most requests' time."""

NOISE_SD = 0.25
"""Before any was seen: connection set-up and the step it joins vary more than computing does."""

ALONE = Exposed(0.0)
"""Nothing is handed off; what comes after computing is in the prefill's own fixed part."""


class PoolPair:
    """The hand-off between two pools: fixed, and per token up to a cap."""

    __slots__ = ("cap", "fit")

    def __init__(self, prefill: Endpoint, decode: Endpoint) -> None:
        belief, self.cap = prior.exposed(prefill, decode)
        self.fit = Fit(belief.coefs, belief.speed_sd, belief.shape_sds, NOISE_SD)


class Pair:
    """The hand-off between two endpoints: their pools', times a factor of their own."""

    __slots__ = ("_told", "exposed", "fit", "pools")

    def __init__(self, pools: PoolPair) -> None:
        self.pools = pools
        self.fit = Fit((1.0,), 0.0, (PAIR_SD,), NOISE_SD)
        self.exposed = self._now()
        self._told = self.exposed

    def terms(self, tokens: int) -> tuple[float, float]:
        """The fixed and the growing part of handing off `tokens`, in seconds."""
        cap, factor = self.pools.cap, self.fit.coefs[0]
        fixed, token = self.pools.fit.coefs
        return factor * fixed, factor * token * (tokens if cap is None or tokens < cap else cap)

    def learn(
        self, terms: tuple[float, float], whole_s: float, off: float, trust: float, other: float
    ) -> tuple[float, float]:
        """Learn from a time predicted as `whole_s`, of which `terms` are ours, `off` by that in logarithms.

        `other` is the variance of the rest of it. Gives the variance of ours, before and for the next.
        """
        shares = (terms[0] / whole_s, terms[1] / whole_s)
        part = (shares[0] + shares[1],)
        own = self.fit.variance(part)
        pools, next_pools = self.pools.fit.learn(shares, off, trust, other + own)
        _, next_own = self.fit.learn(part, off, trust, other + pools)
        return own + pools, next_own + next_pools

    def moved(self, tokens: int) -> bool:
        """Whether a hand-off of `tokens` is predicted otherwise than last told; tells it anew if so."""
        told_s = self.exposed.seconds(tokens)
        if abs(sum(self.terms(tokens), 0.0) - told_s) <= MOVED * told_s:
            return False
        self.exposed = self._now()
        return True

    def _now(self) -> Exposed:
        fixed, token = self.pools.fit.coefs
        factor = self.fit.coefs[0]
        return Exposed(factor * fixed, factor * token, self.pools.cap)
