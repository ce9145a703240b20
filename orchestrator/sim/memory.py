"""One engine's KV memory seen job by job: taking, growing, publishing and giving back blocks."""

from __future__ import annotations

from orchestrator.sim.blocks import BlockPool
from orchestrator.sim.jobs import Job


class KvMemory:
    """The block pool of one engine; every token of KV a job holds is in a block counted here."""

    def __init__(self, tokens: int, cache_tokens: int | None, block_tokens: int, *, record: bool) -> None:
        cache = None if cache_tokens is None else cache_tokens // block_tokens
        self.block_tokens = block_tokens
        self.pool = BlockPool(tokens // block_tokens, cache, record=record)

    @property
    def tokens(self) -> int:
        """All there is: the longest sequence, prompt and output, that fits when alone."""
        return self.pool.blocks * self.block_tokens

    def blocks_for(self, tokens: int) -> int:
        """Blocks that `tokens` occupy."""
        return -(-tokens // self.block_tokens)

    def take(self, job: Job, tokens: int, spare: int) -> int | None:
        """Give `job` blocks for `tokens`, cached ones first, if `spare` more blocks would be left.

        Returns how many tokens the cache had; None, and nothing taken, if there is no room.
        """
        # The last prompt token is always computed: its output is the first token's distribution.
        usable = 0 if job.private else (job.prompt_tokens - 1) // self.block_tokens
        hit = self.pool.match(job.hashes[:usable])
        self.pool.acquire(hit)
        needed = self.blocks_for(tokens) - len(hit)
        fresh = self.pool.allocate(needed) if needed + spare <= self.pool.available else None
        if fresh is None:
            self.pool.release(hit)
            return None
        job.blocks = hit + fresh
        return len(hit) * self.block_tokens

    def grow(self, job: Job) -> bool:
        """One more block for a job; False if there is none."""
        fresh = self.pool.allocate(1)
        if fresh is None:
            return False
        job.blocks += fresh
        return True

    def publish(self, job: Job, start: int, end: int) -> None:
        """Let others find the full blocks that tokens `start..end`, now computed, have completed."""
        if not job.private:
            for index in range(start // self.block_tokens, min(end // self.block_tokens, len(job.hashes))):
                self.pool.commit(job.blocks[index], job.hashes[index])

    def give_back(self, job: Job) -> None:
        """Drop the job's hold on its blocks; `job.blocks` still says which they were."""
        self.pool.release(job.blocks)
