"""Numbers that a prefill and a decode leg find each other by: unguessable, and unique while they live."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

ROOM_BITS = 63
"""Engines read a room as a signed 64-bit integer."""


class Rooms:
    """Hands out runs of consecutive rooms: two live requests with one room crash a prefill engine."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._live: set[int] = set()

    def __len__(self) -> int:
        """Rooms in use."""
        return len(self._live)

    @contextmanager
    def lease(self, count: int) -> Iterator[int]:
        """The first of `count` consecutive rooms that are free, held while the context lasts; 0 for none."""
        if count == 0:
            yield 0
            return
        rooms = self._find(count)
        self._live.update(rooms)
        try:
            yield rooms.start
        finally:
            self._live.difference_update(rooms)

    def _find(self, count: int) -> range:
        while True:
            first = self._rng.randrange(1, (1 << ROOM_BITS) - count)
            rooms = range(first, first + count)
            if self._live.isdisjoint(rooms):
                return rooms
