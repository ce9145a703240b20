"""The blocks that one engine says it holds, found by the tokens in them whatever the engine calls them."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from orchestrator.core.kvevents import KEY_MASK, BlocksRemoved, BlocksStored

BYTES_PER_TOKEN = 4

MAX_CHAIN_BLOCKS = 16_384
"""Blocks of one prompt that are named: 262,144 tokens in blocks of 16, and 10 ms of work."""


def link(before: int, tokens: bytes) -> int:
    """The name of the block that holds `tokens` and follows the block `before` (a seed: nothing).

    Truncated SHA-256, keyed by the seed that the first name of a chain follows from. 60 bits: see KEY_MASK.
    """
    digest = sha256(before.to_bytes(8, "little") + tokens).digest()
    return int.from_bytes(digest[:8], "little") & KEY_MASK


def token_chain(seed: int, tokens: bytes, block_tokens: int, known: Sequence[int] = ()) -> tuple[int, ...]:
    """The names of the whole blocks of a prompt, first block first, at most MAX_CHAIN_BLOCKS.

    `tokens` are 4 bytes each, little-endian. `known` are the names of its first blocks, if they were made
    before. Raises ValueError for a block size below 1.
    """
    if block_tokens < 1:
        raise ValueError(f"a block has at least one token, not {block_tokens}")
    width = block_tokens * BYTES_PER_TOKEN
    blocks = min(len(tokens) // width, MAX_CHAIN_BLOCKS)
    names = list(known[:blocks])
    name = names[-1] if names else seed & KEY_MASK
    for start in range(len(names) * width, blocks * width, width):
        name = link(name, tokens[start : start + width])
        names.append(name)
    return tuple(names)


def common(one: Sequence[int], other: Sequence[int], known: int = 0) -> int:
    """How many leading blocks two prompts share, of which `known` are known to: O(log blocks)."""
    low, high = known, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) >> 1
        if one[middle - 1] == other[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low


class KvBlocks:
    """What one engine holds in one tier, as its events tell.

    Engines name blocks by hashes of their own, no two kinds alike; here a block is named by the tokens in it
    and before it (`link`), and a table leads from the engine's hash to that name. An engine may hold a block
    several times, tells of each copy, and of each that goes.

    Memory, measured: 148 bytes a block (two tables and two numbers) at ten million over ten engines, 1.5 GB.
    Beyond `limit` blocks nothing more is taken in, and `overfull` says so.
    """

    __slots__ = ("_copies", "_names", "block_tokens", "limit", "overfull", "seed", "strays")

    def __init__(self, seed: int, block_tokens: int, limit: int) -> None:
        self.block_tokens = block_tokens
        self.limit = limit
        self.overfull = False
        self.strays = 0
        """Blocks that could not be named: private ones, those of another size, those that follow such."""
        self.seed = seed & KEY_MASK
        self._names: dict[int, int] = {}
        self._copies: dict[int, int] = {}

    def __len__(self) -> int:
        """Blocks held, each counted once."""
        return len(self._copies)

    def name(self, told: int) -> int | None:
        """The name of a block that the engine knows as `told`; None: it is not here."""
        return self._names.get(told)

    def store(self, event: BlocksStored, beside: Sequence[KvBlocks] = ()) -> None:
        """Take in a chain of blocks, which may go on from, or be copies of, such as `beside` holds.

        Copies may come without their tokens. Raises ValueError for a chain without some that it should have.
        """
        names, copies, hashes = self._names, self._copies, event.hashes
        if beside and not event.tokens:
            self._copy(hashes, beside)
            return
        name = self.seed if event.parent is None else names.get(event.parent)
        if name is None and event.parent is not None:
            name = _elsewhere(event.parent, beside)
        if name is None or event.private or event.block_tokens != self.block_tokens:
            self.strays += len(hashes)
            return
        tokens, width = event.tokens, event.block_tokens * BYTES_PER_TOKEN
        if len(tokens) != width * len(hashes):
            had = len(tokens) // BYTES_PER_TOKEN
            raise ValueError(f"{len(hashes)} blocks of {event.block_tokens} tokens with {had} tokens in all")
        if len(names) + len(hashes) > self.limit:
            self.overfull = True
            return
        start = 0
        for told in hashes:
            known = names.get(told)
            if known is None:
                name = link(name, tokens[start : start + width])
                names[told] = name
                copies[name] = copies.get(name, 0) + 1
            else:
                name = known
                copies[name] += 1
            start += width

    def _copy(self, hashes: Sequence[int], beside: Sequence[KvBlocks]) -> None:
        names, copies = self._names, self._copies
        for told in hashes:
            name = names.get(told)
            if name is None:
                name = _elsewhere(told, beside)
            if name is None:
                self.strays += 1
            elif len(names) >= self.limit:
                self.overfull = True
                return
            else:
                names[told] = name
                copies[name] = copies.get(name, 0) + 1

    def remove(self, event: BlocksRemoved) -> None:
        """Take note that a copy of each block has gone; of those never named nothing is known."""
        names, copies = self._names, self._copies
        for told in event.hashes:
            name = names.get(told)
            if name is None:
                continue
            left = copies[name] - 1
            if left:
                copies[name] = left
            else:
                del copies[name], names[told]

    def clear(self) -> None:
        """Nothing is held."""
        self._names, self._copies = {}, {}
        self.overfull = False

    def leading(self, chain: Sequence[int]) -> int:
        """How many leading blocks of a prompt are held: O(log blocks).

        Engines give up what follows a block before the block itself, so that what is held of a prompt is
        always its beginning.
        """
        return self.reach(chain, 0)

    def reach(self, chain: Sequence[int], start: int) -> int:
        """How many leading blocks are held, if the first `start` are, here or elsewhere: O(log blocks)."""
        held, size = self._copies, len(chain)
        if start >= size or chain[start] not in held:
            return start
        if chain[size - 1] in held:
            return size
        low, high = start + 1, size - 1
        while low < high:
            middle = (low + high + 1) >> 1
            if chain[middle - 1] in held:
                low = middle
            else:
                high = middle - 1
        return low


def _elsewhere(told: int, beside: Sequence[KvBlocks]) -> int | None:
    for blocks in beside:
        name = blocks.name(told)
        if name is not None:
            return name
    return None
