"""What the endpoints of a pool share: where a new one starts, and what residuals look like."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import exp, log
from statistics import fmean, pstdev

from orchestrator.core.types import Endpoint
from orchestrator.predictor import prior
from orchestrator.predictor.fit import Fit
from orchestrator.predictor.instance import Instance
from orchestrator.predictor.prior import Belief
from orchestrator.predictor.tail import SHARED, Window

FEW = 3
"""Outcomes after which an endpoint's coefficients say something of its pool's."""

SAME = 0.1
"""The least uncertainty of a new endpoint's speed, and of its curve's shape, once its pool's are known."""

SPREAD_SD = 0.2
"""Before any outcome: how far first tokens are taken to vary around a sure prediction (logarithms)."""

REMEMBERED = 16
"""Endpoints that have gone, or started anew, whose coefficients are kept."""


class Pool:
    """One pool: who is in it, who was, and the residuals of all."""

    __slots__ = ("gone", "members", "residuals")

    def __init__(self) -> None:
        self.members: dict[str, Instance] = {}
        self.gone: dict[str, Instance] = {}
        self.residuals = Window(SHARED)

    def join(self, endpoint: Endpoint) -> Instance:
        """A new life of `endpoint`, which starts from what the pool has learned, else from its prior."""
        known = [m for m in (*self.members.values(), *self.gone.values()) if m.prefill.seen >= FEW]
        prefill = _shared(prior.prefill(endpoint), [m.prefill for m in known], _size)
        stepped = [
            m.step_fit for m in (*self.members.values(), *self.gone.values()) if m.step_fit.seen >= FEW
        ]
        step = _shared(prior.step(endpoint), stepped, lambda coefs: coefs[0])
        spread_sd = fmean(m.tail.spread_sd for m in known) if known else SPREAD_SD
        instance = Instance(endpoint, prefill, step, self.residuals, spread_sd)
        self.members[endpoint.id] = instance
        return instance

    def leave(self, endpoint_id: str) -> None:
        """Forget an endpoint, but for what it says of the pool."""
        instance = self.members.pop(endpoint_id, None)
        if instance is not None:
            self.gone.pop(endpoint_id, None)
            self.gone[endpoint_id] = instance
            if len(self.gone) > REMEMBERED:
                del self.gone[next(iter(self.gone))]


def _size(coefs: Iterable[float]) -> float:
    """A prompt of 2,000 tokens: what the speeds of two curves are compared by."""
    fixed, token, token2, floor = coefs
    return max(floor, fixed + 2000.0 * token + 4e6 * token2)


def _shared(belief: Belief, fits: list[Fit], size: Callable[[list[float]], float]) -> Belief:
    """The geometric mean of what others have learned, weighted by their outcomes."""
    if not fits:
        return belief
    weights = [float(min(fit.seen, 50)) for fit in fits]
    coefs = tuple(exp(fmean([log(fit.coefs[j]) for fit in fits], weights)) for j in range(len(belief.coefs)))
    spread = pstdev([log(size(fit.coefs)) for fit in fits]) if len(fits) > 1 else belief.speed_sd / 2
    learned = 1.0 / (1.0 + sum(weights, 0.0) / 50.0) ** 0.5
    shapes = tuple(max(SAME, sd * learned) for sd in belief.shape_sds)
    return Belief(coefs, max(SAME, spread), shapes)
