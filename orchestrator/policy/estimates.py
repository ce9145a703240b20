"""What a policy may estimate of a request on an endpoint: stages by the predictor, memory by its load."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from orchestrator.core.contracts import Context
from orchestrator.core.frozen import frozen
from orchestrator.core.inflight import EXPECTED_OUTPUT_TOKENS, expected_kv_tokens
from orchestrator.core.prediction import Predictor
from orchestrator.core.prefixcheck import cached_tokens as saved_tokens
from orchestrator.core.types import Endpoint, RequestView, Role

QUANTILE = 0.99
"""The tail that a request without a class is judged by."""


@frozen(frozen=True, slots=True)
class FirstToken:
    """Median seconds to a request's first token: until the endpoint is free, of prefill, from there on,
    and of encoding its media.

    `prefill` is the id of the endpoint that computes the prompt.
    """

    prefill: str
    wait_s: float
    prefill_s: float
    handoff_s: float
    encode_s: float = 0.0

    @property
    def total_s(self) -> float:
        """All of it."""
        return self.wait_s + self.encode_s + self.prefill_s + self.handoff_s


def cached_tokens(request: RequestView, endpoint: Endpoint, context: Context) -> int:
    """Prompt tokens that need no computing on `endpoint`, by what it is believed to hold."""
    if not request.block_hashes:
        return 0
    blocks = context.prefix.cached_blocks(endpoint.id, request.block_hashes)
    return saved_tokens(request, blocks, context.block_tokens, endpoint.block_size)


def first_tokens(
    request: RequestView, candidates: Sequence[Endpoint], context: Context, predictor: Predictor
) -> list[FirstToken]:
    """For each candidate, the stages to the first token if it is chosen.

    Where decode is being decided, the prompt is computed by `context.prefill`. Where prefill is, the
    hand-off is taken to be to the first decode endpoint that is ready: which one it will be is open.
    """
    # A filter and a scorer of one decision ask for the same.
    by = context.prefill and context.prefill.id
    known = context.shared.setdefault(("first_tokens", context.role, by), {})
    left = [e for e in candidates if e.id not in known]
    tokens = request.prompt_tokens
    encode_s = predictor.encode_s(request.model, request.media) if request.media else 0.0
    if context.role is Role.DECODE and context.prefill is not None:
        if left:
            at = context.prefill
            wait_s, prefill_s = context.wait_s(at.id), _prefill_s(request, at, context, predictor)
            for e in left:
                handoff_s = predictor.exposed(at, e).seconds(tokens)
                known[e.id] = FirstToken(at.id, wait_s, prefill_s, handoff_s, encode_s)
    elif left:
        decode = _any_decode(request, context) if context.role is Role.PREFILL else None
        for e in left:
            prefill_s = _prefill_s(request, e, context, predictor)
            handoff_s = predictor.exposed(e, decode or e).seconds(tokens)
            known[e.id] = FirstToken(e.id, context.wait_s(e.id), prefill_s, handoff_s, encode_s)
    return [known[e.id] for e in candidates]


def step_s(request: RequestView, endpoint: Endpoint, predictor: Predictor) -> float:
    """The median decode step of `endpoint` once the request has joined its batch."""
    tokens = endpoint.kv_used_tokens + request.prompt_tokens
    return predictor.step(endpoint).seconds(endpoint.requests + request.n, tokens)


def output_tokens(request: RequestView, context: Context, quantile: float = 0.5) -> int:
    """Tokens each answer is expected to have: of its class, where that is learned, within its own limit."""
    if context.predictor is None:
        return min(request.max_tokens, EXPECTED_OUTPUT_TOKENS)
    return context.predictor.output_tokens(request.slo_class, request.max_tokens, quantile)


def kv_tokens(request: RequestView, context: Context) -> int:
    """KV slots that the request will take at the role being decided: the prompt, and where it is decoded
    the output that is expected."""
    expected = 0 if context.role is Role.PREFILL else output_tokens(request, context)
    return expected_kv_tokens(request, expected)


def projected_kv_tokens(endpoint: Endpoint) -> int:
    """KV slots that what `endpoint` was given will take there.

    What it last reported, with what came and went since; and what it could not report, because its KV was
    still to be transferred then: a decode endpoint that is told of a request only when its prompt is
    computed reports fewer requests than it was given, and so many of the promised tokens are to come.
    """
    used, load, seen = endpoint.kv_used_tokens, endpoint.load, endpoint.inflight_at_load
    if load is None or load.kv_used_tokens is None or not seen.requests:
        return used
    unseen = seen.requests - load.running - load.waiting
    if unseen <= 0:
        return used
    coming = seen.kv_tokens * unseen // seen.requests
    given, since = endpoint.inflight.kv_tokens, endpoint.inflight.kv_tokens - seen.kv_tokens
    return max(given, load.kv_used_tokens + coming + since)


def left_s(context: Context) -> float:
    """Seconds until the first token is due; inf: never."""
    by_s = context.first_token_by_s
    return inf if by_s == inf else by_s - context.now_s


def quantile_of(context: Context) -> float:
    """The share of its class's requests that the promise is for."""
    return QUANTILE if context.slo is None else context.slo.quantile


def _prefill_s(request: RequestView, endpoint: Endpoint, context: Context, predictor: Predictor) -> float:
    tokens = request.prompt_tokens
    return predictor.prefill(endpoint).seconds(tokens, cached_tokens(request, endpoint, context))


def _any_decode(request: RequestView, context: Context) -> Endpoint | None:
    endpoints = context.snapshot.endpoints
    model = request.model
    return next((e for e in endpoints if e.role is Role.DECODE and e.ready and e.model == model), None)
