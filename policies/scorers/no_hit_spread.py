"""no-hit-spread: spreads requests that no cache has anything of, so that new prefixes land evenly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from orchestrator.policy import Context, Endpoint, RequestView, preferred


class NoHitSpread:
    """1 for the first choice of a prompt that no candidate holds anything of, 1/2 for the second, and so on.

    By rendezvous hashing of its first block, weighted by KV memory, so that each cache is given new
    prefixes in proportion to its size. All routers agree on the place, and one that was restarted and knows
    nothing sends a prefix where its KV really is. It says nothing once somebody holds the prefix.
    """

    unit: ClassVar[str] = "share"
    needs_load: ClassVar[bool] = True

    def score(
        self, request: RequestView, candidates: Sequence[Endpoint], context: Context
    ) -> Sequence[float]:
        """One share per candidate."""
        hashes = request.block_hashes
        if not hashes:
            return [0.0] * len(candidates)
        first = hashes[:1]
        cached_blocks = context.prefix.cached_blocks
        if any(cached_blocks(e.id, first) for e in candidates):
            return [0.0] * len(candidates)
        sizes = [e.kv_total_tokens for e in candidates]
        told = [size for size in sizes if size]
        usual = sum(told) / len(told) if told else 1.0
        return preferred(hashes[0], candidates, [float(size or usual) for size in sizes])
