"""A trace as the router would see it: requests without their outputs, blocks hashed as both sides do."""

from __future__ import annotations

from orchestrator.core.types import PathKind, RequestView
from orchestrator.sim.replay.trace import Entry, Trace, chained

MAX_TOKENS = 4096
"""What a request asks for at most where its trace does not tell: its true length is for nobody to see."""


class Requests:
    """Built once, replayed at any rate under any policy.

    One block hash stands for `block_tokens` (the trace's own, else 128), one of an engine's prefix cache for
    `engine_block_tokens` (as many): nothing finer than the trace's blocks is known in any case. `seed` keys
    the hashes. Requests that name no class are of `default_class`.
    """

    def __init__(
        self,
        trace: Trace,
        *,
        model: str = "sim",
        block_tokens: int | None = None,
        engine_block_tokens: int | None = None,
        seed: int = 0,
        max_tokens: int = MAX_TOKENS,
        default_class: str | None = None,
    ) -> None:
        self.trace = trace
        self.default_class = default_class
        self.model = model
        self.max_tokens = max_tokens
        own = trace.block_tokens
        self.block_tokens = block_tokens or own or 128
        self.engine_block_tokens = engine_block_tokens or self.block_tokens
        self.hashes = [_hashes(trace, e, self.block_tokens, seed) for e in trace.entries]
        self.engine_hashes = self.hashes
        if self.engine_block_tokens != self.block_tokens:
            self.engine_hashes = [_hashes(trace, e, self.engine_block_tokens, seed) for e in trace.entries]

    def view(self, index: int, arrived_s: float) -> RequestView:
        """What the scheduler sees of one."""
        entry = self.trace.entries[index]
        return RequestView(
            id=f"{index:032x}",
            model=self.model,
            path=PathKind.COMPLETION,
            arrived_s=arrived_s,
            prompt_tokens=entry.prompt_tokens,
            max_tokens=entry.max_tokens or self.max_tokens,
            stream=True,
            slo_class=entry.slo_class or self.default_class,
            tenant=entry.tenant,
            block_hashes=self.hashes[index],
            parts=True,
        )


def _hashes(trace: Trace, entry: Entry, block_tokens: int, seed: int) -> tuple[int, ...]:
    if trace.block_tokens is None:
        return ()
    return chained(entry.ids, entry.prompt_tokens, trace.block_tokens, block_tokens, seed)
