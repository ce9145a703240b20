"""transfer-cost: what the KV's way from prefill to decode costs beyond what prefill hides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from orchestrator.policy import Context, Endpoint, Exposed, Predictor, RequestView, Role


class TransferCost:
    """Predicted seconds from the end of prefill to the first token, by what each pair has shown.

    On the decode side from the prefill endpoint chosen; on the prefill side to the nearest decode endpoint
    that is ready. A unified endpoint passes nothing on, and shows its first step. Nothing where nothing
    predicts.
    """

    unit: ClassVar[str] = "seconds"

    def __init__(self) -> None:
        self._pairs: dict[tuple[str, str], Exposed] = {}
        self._version = -1

    def score(
        self, request: RequestView, candidates: Sequence[Endpoint], context: Context
    ) -> Sequence[float]:
        """One cost in seconds per candidate."""
        predictor = context.predictor
        if predictor is None:
            return [0.0] * len(candidates)
        if self._version != predictor.version:
            self._pairs, self._version = {}, predictor.version
        tokens = request.prompt_tokens
        if context.role is Role.DECODE and context.prefill is not None:
            one = context.prefill
            return [self._seconds(one, e, tokens, predictor) for e in candidates]
        if context.role is Role.PREFILL:
            others = context.snapshot.ready(request.model, Role.DECODE)
            return [
                min((self._seconds(e, other, tokens, predictor) for other in others), default=0.0)
                for e in candidates
            ]
        return [self._seconds(e, e, tokens, predictor) for e in candidates]

    def _seconds(self, prefill: Endpoint, decode: Endpoint, tokens: int, predictor: Predictor) -> float:
        """Asked of every pair on the prefill side: the predictor is asked once for each."""
        pair = (prefill.id, decode.id)
        exposed = self._pairs.get(pair)
        if exposed is None:
            exposed = self._pairs[pair] = predictor.exposed(prefill, decode)
        return exposed.seconds(tokens)
