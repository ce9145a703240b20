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
        used = [
            (e.kv_used_tokens + need) / e.kv_total_tokens if e.kv_total_tokens else None for e in candidates
        ]
        told = [1.0 - u if u < 1.0 else 0.0 for u in used if u is not None]
        if len(told) == len(used):
            return told
        mean = sum(told) / len(told) if told else 1.0
        return [mean if u is None else 1.0 - u if u < 1.0 else 0.0 for u in used]
