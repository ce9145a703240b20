"""Predicting a request's stages: the contract of a predictor, and the data it gives and learns from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from orchestrator.core.frozen import frozen
from orchestrator.core.types import Endpoint, Prediction, Snapshot


@frozen(frozen=True, slots=True)
class Curve:
    """Seconds of computing a prompt of n tokens of which the first h are cached.

    `max(floor_s, fixed_s + token_s*(n-h) + token2_s*(n*n-h*h))`: attention makes the cost of a token grow
    with its position, hence the second term.
    """

    token_s: float
    token2_s: float = 0.0
    fixed_s: float = 0.0
    floor_s: float = 0.0

    def seconds(self, tokens: int, cached: int = 0) -> float:
        """Seconds for `tokens`, the first `cached` of which need no computing."""
        new = tokens - cached
        lasts = self.fixed_s + new * (self.token_s + self.token2_s * (tokens + cached))
        return lasts if lasts > self.floor_s else self.floor_s


@frozen(frozen=True, slots=True)
class Exposed:
    """Seconds from the end of prefill to the client's first token: `fixed_s + token_s * min(n, cap_tokens)`.

    Transfers that overlap with prefill expose their last chunk only: `cap_tokens` is its size (None: no cap).
    """

    fixed_s: float
    token_s: float = 0.0
    cap_tokens: int | None = None

    def seconds(self, tokens: int) -> float:
        """Seconds for the KV of a prompt of `tokens`."""
        cap = self.cap_tokens
        return self.fixed_s + self.token_s * (tokens if cap is None or tokens < cap else cap)


@frozen(frozen=True, slots=True)
class Step:
    """Seconds of one decode step: `base_s + request_s * batch + token_s * KV tokens of the batch`."""

    base_s: float
    request_s: float = 0.0
    token_s: float = 0.0

    def seconds(self, batch: int, tokens: int) -> float:
        """Seconds for a batch of so many sequences holding so many KV tokens together."""
        return self.base_s + self.request_s * batch + self.token_s * tokens


@frozen(frozen=True, slots=True)
class Served:
    """What became of one attempt up to its first token; a predictor learns from it.

    `prefill` is where the prompt was computed, `decode` where it was decoded (the same for one alone).
    `prefill_s` is from dispatch to the end of computing, None where only the end of the transfer is told;
    `first_token_s` from dispatch to the first token. `wait_s` was predicted to pass at the engine before it
    began (zero for one sent to an idle endpoint), `cached_tokens` is what the engine reported, else what was
    believed. `admitted` and `dispatched` are the predictions made at those moments.
    """

    request_id: str
    slo_class: str | None
    prefill: str
    decode: str
    prompt_tokens: int
    cached_tokens: int
    first_token_s: float
    prefill_s: float | None = None
    wait_s: float = 0.0
    waited_s: float = 0.0
    alone: bool = True
    """No other prompt was computed at `prefill` meanwhile: its times are its own."""
    admitted: Prediction | None = None
    dispatched: Prediction | None = None
    media: int = 0
    """Images and the like that were encoded first."""


@frozen(frozen=True, slots=True)
class Decoded:
    """How one request's decoding went: `tokens` after the first in `seconds`, in a mean batch and context."""

    slo_class: str | None
    endpoint: str
    tokens: int
    seconds: float
    batch: float
    context_tokens: float
    complete: bool
    """It ended by itself: its length is one of the class's lengths. One that was cut off tells a bound."""


@frozen(frozen=True, slots=True)
class StageAccuracy:
    """One stage's predictions against what came: sums over all outcomes, and the recent figures.

    `bias` is the geometric mean of actual / predicted (1: none), `error` the median of how far one is off the
    other, as a share.
    """

    stage: str
    outcomes: int
    predicted_s: float
    actual_s: float
    bias: float
    error: float


@frozen(frozen=True, slots=True)
class Coverage:
    """How many first tokens came within the quantiles of their predictions, made at `horizon`.

    `within` counts by quantile, as it stood when the outcome came. `given` predictions were made at the
    quantile that the request's class asks for, `kept` of them held.
    """

    horizon: str
    outcomes: int
    within: Mapping[float, int]
    given: int = 0
    kept: int = 0


@frozen(frozen=True, slots=True)
class Accuracy:
    """A predictor's own account of one endpoint; of a model (`endpoint` None), before one was chosen."""

    model: str
    endpoint: str | None = None
    stages: tuple[StageAccuracy, ...] = ()
    coverage: tuple[Coverage, ...] = ()


class Predictor(Protocol):
    """Predicts stage times per instance, and learns from what happened; no I/O, no clock.

    Everything is in seconds. The prior of an endpoint is in `Endpoint.facts["prior"]` where its launch
    profile has one. `version` grows whenever any of the curves may have changed: readers keep them until
    then. State of an endpoint whose incarnation changed starts anew from what its pool has learned.
    """

    version: int

    def prefill(self, endpoint: Endpoint) -> Curve:
        """The median time of computing a prompt there, alone."""
        ...

    def encode_s(self, model: str, media: int) -> float:
        """The median time until so many images and the like are encoded, before prefill; 0 for none.

        By encoders of the model's, or where the prompt is computed.
        """
        ...

    def exposed(self, prefill: Endpoint, decode: Endpoint) -> Exposed:
        """The median from the end of prefill to the first token; `prefill is decode` for one alone."""
        ...

    def step(self, endpoint: Endpoint) -> Step:
        """The median decode step there."""
        ...

    def tail_s(self, prefill: str, predicted_s: float, quantile: float, *, queued_s: float = 0.0) -> float:
        """What to add to a median prediction of `predicted_s` so that `quantile` of the requests make it.

        `queued_s` of it is predicted waiting: a prediction made at admission, whose tail is learned apart.
        """
        ...

    def itl_tail_s(self, endpoint: str, predicted_s: float, quantile: float) -> float:
        """What to add to a median step of `predicted_s` so that `quantile` of the mean gaps are below."""
        ...

    def output_tokens(self, slo_class: str | None, limit: int, quantile: float = 0.5) -> int:
        """Tokens that a request of the class produces, at `quantile` of its lengths; never above `limit`."""
        ...

    def reference_s(self, model: str, tokens: int) -> float:
        """A cold prefill of `tokens` by the cost model promises are made with.

        The launch profile's, so that a promise does not loosen when engines become slow; the fastest
        endpoint's learned curve where no profile of the model has one.
        """
        ...

    def served(self, what: Served, now_s: float) -> None:
        """Learn from a first token."""
        ...

    def decoded(self, what: Decoded, now_s: float) -> None:
        """Learn from a finished answer."""
        ...

    def observe(self, snapshot: Snapshot, now_s: float) -> None:
        """Take the endpoints as they are: joins, restarts, and what `Load.counters` tell."""
        ...
