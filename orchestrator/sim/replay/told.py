"""A predictor that believes what it was told and learns nothing, and one that errs by a known amount."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.core.inflight import EXPECTED_OUTPUT_TOKENS
from orchestrator.core.prediction import Curve, Decoded, Exposed, Predictor, Served, Step
from orchestrator.core.types import Endpoint, Snapshot
from orchestrator.sim.replay.wrongcurve import WrongCurve


class Told:
    """The launch profile's figures as they are: exact for simulated engines that are as fast as they say.

    With it a replay shows what a policy is worth when predictions are not what limits it. An endpoint
    without `facts["prior"]` costs nothing.
    """

    def __init__(self) -> None:
        self.version = 0
        self._curves: dict[str, Curve] = {}
        self._reference: dict[str, Curve] = {}

    def prefill(self, endpoint: Endpoint) -> Curve:
        """As the profile has it."""
        curve = self._curves.get(endpoint.id)
        if curve is None:
            curve = self._curves[endpoint.id] = Curve(**_part(endpoint, "prefill", {"token_s": 0.0}))
        return curve

    def exposed(self, prefill: Endpoint, decode: Endpoint) -> Exposed:
        """As the prefill side's profile has it; alone, only the first step, which prefill includes."""
        if prefill is decode:
            return Exposed(0.0)
        return Exposed(**_part(prefill, "exposed", {"fixed_s": 0.0}))

    def encode_s(self, model: str, media: int) -> float:
        """Nothing: no trace has media."""
        return 0.0

    def step(self, endpoint: Endpoint) -> Step:
        """As the profile has it."""
        return Step(**_part(endpoint, "step", {"base_s": 0.0}))

    def tail_s(self, prefill: str, predicted_s: float, quantile: float, *, queued_s: float = 0.0) -> float:
        """Nothing: what it says is so."""
        return 0.0

    def itl_tail_s(self, endpoint: str, predicted_s: float, quantile: float) -> float:
        """Nothing: the median is all there is."""
        return 0.0

    def output_tokens(self, slo_class: str | None, limit: int, quantile: float = 0.5) -> int:
        """The same for all: lengths are not known in advance."""
        return min(limit, EXPECTED_OUTPUT_TOKENS)

    def reference_s(self, model: str, tokens: int) -> float:
        """By the first endpoint of the model that was observed."""
        curve = self._reference.get(model)
        return 0.0 if curve is None else curve.seconds(tokens)

    def served(self, what: Served, now_s: float) -> None:
        """Nothing is learned."""

    def decoded(self, what: Decoded, now_s: float) -> None:
        """Nothing is learned."""

    def observe(self, snapshot: Snapshot, now_s: float) -> None:
        """Note the profile of each model."""
        for endpoint in snapshot.endpoints:
            if endpoint.model not in self._reference and "prior" in endpoint.facts:
                self._reference[endpoint.model] = self.prefill(endpoint)


def _part(endpoint: Endpoint, name: str, absent: Mapping[str, Any]) -> Mapping[str, Any]:
    prior = endpoint.facts.get("prior") or {}
    return dict(prior.get(name) or absent)


class Erring(Told):
    """Another predictor, with the prefill work of each request multiplied by a log-normal factor.

    A prompt's length stands for the request: the same prompt is wrong by the same factor wherever and
    whenever it is asked about. Promises are made with the right figures.
    """

    def __init__(self, inner: Predictor, sigma: float, seed: int = 0) -> None:
        super().__init__()
        self._inner = inner
        self._sigma = sigma
        self._seed = seed
        self.exposed = inner.exposed  # type: ignore[method-assign]
        self.step = inner.step  # type: ignore[method-assign]
        self.tail_s = inner.tail_s  # type: ignore[method-assign]
        self.output_tokens = inner.output_tokens  # type: ignore[method-assign]
        self.reference_s = inner.reference_s  # type: ignore[method-assign]

    def prefill(self, endpoint: Endpoint) -> Curve:
        """Wrong by a factor that depends on the prompt's length."""
        c = self._inner.prefill(endpoint)
        return WrongCurve(c.token_s, c.token2_s, c.fixed_s, c.floor_s, self._sigma, self._seed)

    def served(self, what: Served, now_s: float) -> None:
        """The other learns."""
        self._inner.served(what, now_s)
        self.version = self._inner.version

    def decoded(self, what: Decoded, now_s: float) -> None:
        """The other learns."""
        self._inner.decoded(what, now_s)
        self.version = self._inner.version

    def observe(self, snapshot: Snapshot, now_s: float) -> None:
        """The other observes."""
        self._inner.observe(snapshot, now_s)
        self.version = self._inner.version
