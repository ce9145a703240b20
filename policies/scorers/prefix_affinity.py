"""prefix-affinity: prefers endpoints that have the prompt's beginning in their cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from orchestrator.policy import Context, Endpoint, Field, Params, RequestView


class PrefixAffinityParams(Params):
    """What a cached token weighs."""

    full_tokens: int = Field(default=16_384, ge=0)
    """Prompt length from which a fully cached prompt scores 1. A shorter one scores its cached tokens over
    this, since little is saved by caching little; 0: any prompt scores its cached share."""


class PrefixAffinity:
    """The share of the prompt that the endpoint is believed to have cached.

    Never a ranking on its own: it needs a scorer that measures load beside it, or the endpoint that saw
    a popular prefix first would get all who share it. It knows what was sent to where prompts are
    computed, so it says nothing of decode endpoints.
    """

    unit: ClassVar[str] = "share"
    needs_load: ClassVar[bool] = True

    def __init__(self, params: PrefixAffinityParams) -> None:
        self._full = params.full_tokens

    def score(
        self, request: RequestView, candidates: Sequence[Endpoint], context: Context
    ) -> Sequence[float]:
        """One share per candidate."""
        hashes = request.block_hashes
        if not hashes:
            return [0.0] * len(candidates)
        cached_blocks = context.prefix.cached_blocks
        # The prompt's size is an estimate, and blocks are another: whichever is larger is the whole.
        whole = max(request.prompt_tokens, len(hashes) * context.block_tokens, self._full)
        each = context.block_tokens
        return [cached_blocks(e.id, hashes) * each / whole for e in candidates]
