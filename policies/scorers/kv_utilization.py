"""kv-utilization: prefers endpoints with more of their KV memory free."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from orchestrator.policy import Context, Endpoint, RequestView, Role, expected_kv_tokens


class KvUtilization:
    """The share of KV memory that would be left free with this request there, 0 if none.

    A share and no count, so that an endpoint with twice the memory gets twice the work. One that tells no
    capacity gets the mean of those that do.
    """

    unit: ClassVar[str] = "share"
    measures_load: ClassVar[bool] = True

    def score(
        self, request: RequestView, candidates: Sequence[Endpoint], context: Context
    ) -> Sequence[float]:
        """One share per candidate."""
        need = request.prompt_tokens if context.role is Role.PREFILL else expected_kv_tokens(request)
        shares = [self._free(need, e) for e in candidates]
        told = [s for s in shares if s is not None]
        mean = sum(told) / len(told) if told else 1.0
        return [mean if s is None else s for s in shares]

    def _free(self, need: int, endpoint: Endpoint) -> float | None:
        total = endpoint.kv_total_tokens()
        if not total:
            return None
        return max(0.0, 1.0 - (endpoint.kv_used_tokens() + need) / total)
