"""kv-capacity: keeps endpoints whose KV memory still holds the request."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.policy import (
    EXPECTED_OUTPUT_TOKENS,
    Context,
    Endpoint,
    Field,
    Params,
    RequestView,
    Role,
    expected_kv_tokens,
)


class KvCapacityParams(Params):
    """What counts as room."""

    output_tokens: int = Field(default=EXPECTED_OUTPUT_TOKENS, ge=0)
    """Output expected of a request whose own limit is higher, for each of its `n` answers."""

    overcommit: float = Field(default=1.0, gt=0)
    """Projected KV may come to this many times the endpoint's capacity; above 1 the engine queues."""


class KvCapacity:
    """Keeps endpoints where the KV in use, in flight and of this request stays within capacity.

    A prefill endpoint must hold the prompt, the others the expected output as well. One that tells no
    capacity is kept; so is an empty one, for a request larger than it can only be the engine's to refuse.
    """

    def __init__(self, params: KvCapacityParams) -> None:
        self._params = params

    def filter(
        self, request: RequestView, candidates: Sequence[Endpoint], context: Context
    ) -> Sequence[Endpoint]:
        """The candidates with room."""
        output_tokens = 0 if context.role is Role.PREFILL else self._params.output_tokens
        need = expected_kv_tokens(request, output_tokens)
        if need == 0:
            return candidates
        times = self._params.overcommit
        return [
            e
            for e in candidates
            if e.kv_total_tokens is None
            or e.kv_used_tokens == 0
            or e.kv_used_tokens + need <= e.kv_total_tokens * times
        ]
