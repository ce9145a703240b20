"""KV memory of one engine in tokens, with an LRU of hashed prefix blocks: the lean twin of `sim.memory`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class Holding:
    """What one job holds: blocks that others may find, first block first, and tokens of its own."""

    __slots__ = ("private", "shared")

    def __init__(self) -> None:
        self.shared: list[int] = []
        self.private = 0


class TokenMemory:
    """All KV of one engine, counted in tokens; only blocks with a hash are kept apart.

    `block_tokens` is what one hash stands for, `cache_tokens` bounds the unreferenced cached ones (None: all
    memory). What is referenced by nobody goes, least recently used first, when room is needed.
    """

    __slots__ = ("_lru", "_most", "_refs", "block_tokens", "tokens", "used")

    def __init__(self, tokens: int, block_tokens: int, cache_tokens: int | None = None) -> None:
        self.tokens = tokens
        self.block_tokens = block_tokens
        self.used = 0
        self._most = (tokens if cache_tokens is None else cache_tokens) // block_tokens
        self._refs: dict[int, int] = {}
        self._lru: OrderedDict[int, None] = OrderedDict()

    @property
    def available(self) -> int:
        """Tokens that may be taken: the free ones and those only cached."""
        return self.tokens - self.used

    @property
    def cached(self) -> int:
        """Tokens held only by the cache."""
        return len(self._lru) * self.block_tokens

    def take(self, held: Holding, hashes: Sequence[int], prompt: int, tokens: int, spare: int) -> int | None:
        """Give memory for `tokens`, cached blocks first, if `spare` more would be left.

        Returns how many tokens the cache had; None, and nothing taken, if there is no room.
        """
        block, refs, lru = self.block_tokens, self._refs, self._lru
        hit = 0
        revived = 0
        if hashes:
            # The last prompt token is always computed: its output is the first token's distribution.
            usable = min((prompt - 1) // block, len(hashes))
            while hit < usable:
                key = hashes[hit]
                if key in lru:
                    revived += 1
                elif key not in refs:
                    break
                hit += 1
        needed = tokens - hit * block
        if self.used + revived * block + needed + spare > self.tokens:
            return None
        shared = list(hashes[:hit])
        for key in shared:
            count = refs.get(key)
            if count is None:
                del lru[key]
                refs[key] = 1
            else:
                refs[key] = count + 1
        held.shared = shared
        held.private = needed
        self.used += revived * block + needed
        if self.used + len(lru) * block > self.tokens:
            self._evict()
        return hit * block

    def grow(self, tokens: int) -> None:
        """Take `tokens` more, which must be available; whose they are is settled by `give_back`."""
        self.used += tokens
        if self.used + len(self._lru) * self.block_tokens > self.tokens:
            self._evict()

    def publish(self, held: Holding, hashes: Sequence[int], start: int, end: int) -> None:
        """Let others find the full blocks that tokens `start..end`, now computed, have completed."""
        if not hashes or not self._most:
            return
        block, refs, lru = self.block_tokens, self._refs, self._lru
        for key in hashes[start // block : end // block]:
            if key not in refs and key not in lru:
                refs[key] = 1
                held.shared.append(key)
                held.private -= block

    def give_back(self, held: Holding) -> None:
        """Drop all that is held; a chain's tail becomes evictable before its head."""
        self.used -= held.private
        if held.shared:
            block, refs, lru = self.block_tokens, self._refs, self._lru
            freed = 0
            for key in reversed(held.shared):
                count = refs[key] - 1
                if count:
                    refs[key] = count
                else:
                    del refs[key]
                    lru[key] = None
                    freed += 1
            self.used -= freed * block
            while len(lru) > self._most:
                lru.popitem(last=False)
        held.shared = []
        held.private = 0

    def _evict(self) -> None:
        over = self.used + len(self._lru) * self.block_tokens - self.tokens
        lru = self._lru
        while over > 0:
            lru.popitem(last=False)
            over -= self.block_tokens
