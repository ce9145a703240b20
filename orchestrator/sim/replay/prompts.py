"""Texts for the requests of a trace: as long as it says, and equal as far as its block ids are."""

from __future__ import annotations

from functools import lru_cache
from hashlib import shake_128

from orchestrator.sim.replay.trace import Trace

TOKEN_BYTES = 4
"""A token is a space and three letters: one to the simulated engines, and as many bytes of text as the router
takes for a token, so that its estimates are exact and its blocks hold what the trace's do."""

QUOTES = 2
"""Bytes of JSON around the text that the router counts as text: the first word is shorter by so many."""

FILLER_TOKENS = 512

KEPT_BLOCKS = 16_384

_LETTERS = bytes(b"abcdefgh"[i % 8] for i in range(256))
"""Few words: the simulated tokenizer looks them up in half the time that it takes for many."""


class Prompts:
    """Writes the prompts of a trace, the same each time. Where a prompt has no ids, its text is its own."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._block = lru_cache(KEPT_BLOCKS)(_words)

    def text(self, index: int) -> bytes:
        """The prompt of one request; it holds nothing that JSON would escape."""
        entry, tokens = self._trace.entries[index], self._trace.block_tokens or FILLER_TOKENS
        parts = [self._block(f"id {one}", tokens) for one in entry.ids]
        missing = entry.prompt_tokens - tokens * len(parts)
        parts += [_words(f"own {index} {at}", tokens) for at in range(0, missing, tokens)]
        return b"".join(parts)[: TOKEN_BYTES * entry.prompt_tokens][QUOTES:]


def _words(seed: str, count: int) -> bytes:
    """`count` tokens that depend on `seed`."""
    text = bytearray(shake_128(seed.encode()).digest(TOKEN_BYTES * count).translate(_LETTERS))
    text[::TOKEN_BYTES] = b" " * count
    return bytes(text)
