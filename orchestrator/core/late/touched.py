"""Touched: of which prompts what is cached may have changed, so that only those are looked up anew."""

from __future__ import annotations

from collections.abc import Sequence

TOUCHES = 4096
"""First blocks whose last change is remembered; beyond, all waiting requests are looked up anew once. What
one prompt evicts of others' is noticed then, or when they are next sent or reported."""


class Touched:
    """Changes are counted; a prompt looked up at one count is up to date until its first block is touched."""

    def __init__(self) -> None:
        self.count = 0
        self._blocks: dict[int, int] = {}
        self._all = 0

    def block(self, first: int) -> None:
        """What is cached of the prompts that begin with this block may have changed."""
        if len(self._blocks) > TOUCHES:
            self.all()
        self.count += 1
        self._blocks[first] = self.count

    def all(self) -> None:
        """Whatever is cached may have changed."""
        self.count += 1
        self._all = self.count
        self._blocks.clear()

    def changed(self, hashes: Sequence[int]) -> int:
        """The count at the last change to a prompt of these blocks."""
        return max(self._all, self._blocks.get(hashes[0], 0)) if hashes else 0
