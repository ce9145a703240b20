"""Paged KV memory: blocks with reference counts, chained content hashes, and an LRU of cached ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence


class BlockPool:
    """All KV of one engine, in blocks of equal size.

    A block is free, referenced by live requests, or cached: unreferenced, but findable by its hash until
    it is evicted, least recently used first. `cache_blocks` bounds the cached ones (None: no bound but
    the pool; 0: no prefix cache). Freed blocks without a hash are reused in the order they were freed,
    so that what a late reader finds in one lasts as long as it does on a real engine.
    """

    def __init__(self, blocks: int, cache_blocks: int | None = None, *, record: bool = False) -> None:
        if blocks < 1:
            raise ValueError(f"a pool needs at least one block, not {blocks}")
        self.blocks = blocks
        self.used = 0
        self.log: list[tuple[bool, int]] = []
        """Hashes that became findable (True) or stopped being so, in order, when `record` is set; the owner
        empties it."""
        self._record = record
        self._cache_blocks = blocks if cache_blocks is None else cache_blocks
        self._free: deque[int] = deque(range(blocks))
        self._refs = [0] * blocks
        self._hash: dict[int, int] = {}
        self._by_hash: dict[int, int] = {}
        self._lru: dict[int, None] = {}

    @property
    def cached(self) -> int:
        """Blocks held only by the cache."""
        return len(self._lru)

    @property
    def available(self) -> int:
        """Blocks that an allocation may take: the free ones and the cached ones."""
        return self.blocks - self.used

    def findable(self) -> Collection[int]:
        """The hashes by which blocks can be found."""
        return self._by_hash.keys()

    def match(self, hashes: Sequence[int]) -> list[int]:
        """The blocks of the longest cached prefix of `hashes`."""
        found = []
        for key in hashes:
            block = self._by_hash.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def acquire(self, blocks: Sequence[int]) -> None:
        """Reference blocks that `match` found."""
        for block in blocks:
            if self._refs[block] == 0:
                self.used += 1
                del self._lru[block]
            self._refs[block] += 1

    def allocate(self, count: int) -> list[int] | None:
        """`count` fresh blocks, referenced once each; None, and nothing changed, if there are not so many."""
        if count > self.blocks - self.used:
            return None
        taken = []
        for _ in range(count):
            block = self._free.popleft() if self._free else self._evict()
            self._refs[block] = 1
            taken.append(block)
        self.used += count
        return taken

    def commit(self, block: int, key: int) -> None:
        """Make a full block findable by its hash; the first block with a hash keeps it."""
        if self._cache_blocks and block not in self._hash and key not in self._by_hash:
            self._hash[block] = key
            self._by_hash[key] = block
            if self._record:
                self.log.append((True, key))

    def release(self, blocks: Sequence[int]) -> None:
        """Drop one reference of each; a chain's tail becomes evictable before its head."""
        for block in reversed(blocks):
            self._refs[block] -= 1
            if self._refs[block]:
                continue
            self.used -= 1
            if block in self._hash:
                self._lru[block] = None
                if len(self._lru) > self._cache_blocks:
                    self._free.append(self._evict())
            else:
                self._free.append(block)

    def flush(self) -> int:
        """Forget every block held only by the cache; how many there were."""
        count = len(self._lru)
        while self._lru:
            self._free.append(self._evict())
        return count

    def _evict(self) -> int:
        block = next(iter(self._lru))
        del self._lru[block]
        key = self._hash.pop(block)
        del self._by_hash[key]
        if self._record:
            self.log.append((False, key))
        return block
