"""kv-capacity: keeps endpoints whose KV memory still holds the request."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.policy import (
    Context,
    Endpoint,
    Field,
    Params,
    RequestView,
    Role,
    expected_kv_tokens,
    kv_tokens,
    projected_kv_tokens,
)


class KvCapacityParams(Params):
    """What counts as room."""

    output_tokens: int | None = Field(default=None, ge=0)
    """Output expected of each of a request's `n` answers, within its own limit; None: what requests of its
    class have produced (512 where nothing predicts)."""

    overcommit: float = Field(default=1.0, gt=0)
    """Projected KV may come to this many times the endpoint's capacity; above 1 the engine queues."""


class KvCapacity:
    """Keeps endpoints where the KV in use, promised, in transfer and of this request stays within capacity.

    A prefill endpoint must hold the prompt, the others the expected output as well. One that tells no
    capacity is kept; so is an empty one, for a request larger than it can only be the engine's to refuse.
    """

    def __init__(self, params: KvCapacityParams) -> None:
        self._params = params

    def filter(
        self, request: RequestView, candidates: Sequence[Endpoint], context: Context
    ) -> Sequence[Endpoint]:
        """The candidates with room."""
        given = self._params.output_tokens
        if given is None or context.role is Role.PREFILL:
            need = kv_tokens(request, context)
        else:
            need = expected_kv_tokens(request, given)
        if need == 0:
            return candidates
        times = self._params.overcommit
        return [
            e
            for e in candidates
            if e.kv_total_tokens is None
            or e.kv_used_tokens == 0
            or projected_kv_tokens(e) + need <= e.kv_total_tokens * times
        ]
