"""prefix-or-balance: follows the longest cached prefix while the load is balanced, else the load alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from orchestrator.policy import Context, Endpoint, Field, Params, RequestView, share_of_least


class PrefixOrBalanceParams(Params):
    """The thresholds."""

    cache_threshold: float = Field(default=0.3, ge=0, le=1)
    """Share of the prompt that the best match must have cached to be followed."""

    balance_requests: int = Field(default=64, ge=0)
    """The load is out of balance when the most loaded has more requests than this above the least loaded,"""

    balance_ratio: float = Field(default=1.5, ge=1)
    """and more than this many times as many."""


class PrefixOrBalance:
    """Three rules, the first that applies: out of balance, the fewest requests; a match that is long enough,
    the longest one; else the fewest requests.

    The rule of tree-based cache-aware routers. Its thresholds are switches, where `prefix-affinity` beside
    load scorers trades one against the other; that compares better, and this is for comparison.
    """

    unit: ClassVar[str] = "share"
    measures_load: ClassVar[bool] = True

    def __init__(self, params: PrefixOrBalanceParams) -> None:
        self._params = params

    def score(
        self, request: RequestView, candidates: Sequence[Endpoint], context: Context
    ) -> Sequence[float]:
        """One share per candidate."""
        requests = [e.requests for e in candidates]
        least, most = min(requests), max(requests)
        by_load = share_of_least(requests, most - least + 1)
        hashes = request.block_hashes
        apart = most - least > self._params.balance_requests and most > least * self._params.balance_ratio
        if apart or not hashes:
            return by_load
        cached = [context.prefix.cached_blocks(e.id, hashes) for e in candidates]
        # Blocks are whole: the rest of the prompt, and its size itself, are estimates.
        whole = max(len(hashes), request.prompt_tokens // context.block_tokens)
        best = max(cached)
        if best == 0 or best < whole * self._params.cache_threshold:
            return by_load
        # The load decides among equals only: a block weighs more than all of it.
        return [(c + share) / (best + 1) for c, share in zip(cached, by_load, strict=True)]
