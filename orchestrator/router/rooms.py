"""Numbers that a prefill and a decode leg find each other by: unguessable, and unique while they live."""

from __future__ import annotations

from os import urandom
from random import Random, SystemRandom

ROOM_BITS = 63
"""Engines read a room as a signed 64-bit integer."""

PAGE_BYTES = 4096
"""Randomness fetched from the system at a time."""

LAST_ROOM = (1 << ROOM_BITS) - 1


class PagedRandom(SystemRandom):
    """The system's randomness, fetched by the page: every request draws twice, a system call of 2 us each.

    Not for a process that forks: both would go on with the same page.
    """

    def __init__(self) -> None:
        super().__init__()
        self._page = b""
        self._at = 0

    def getrandbits(self, k: int, /) -> int:
        """`k` random bits."""
        size = (k + 7) // 8
        if self._at + size > len(self._page):
            self._page, self._at = urandom(max(PAGE_BYTES, size)), 0
        drawn = self._page[self._at : self._at + size]
        self._at += size
        return int.from_bytes(drawn, "little") >> (8 * size - k)


class Rooms:
    """Hands out runs of consecutive rooms: two live requests with one room crash a prefill engine."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._live: set[int] = set()

    def __len__(self) -> int:
        """Rooms in use."""
        return len(self._live)

    def take(self, count: int) -> range:
        """`count` consecutive rooms that are free, to be given back by `free`; none of them is 0."""
        if not count:
            return range(0)
        while True:
            first = self._rng.getrandbits(ROOM_BITS)
            rooms = range(first, first + count)
            if 0 < first <= LAST_ROOM - count and self._live.isdisjoint(rooms):
                self._live.update(rooms)
                return rooms

    def free(self, rooms: range) -> None:
        """Give rooms back."""
        self._live.difference_update(rooms)
