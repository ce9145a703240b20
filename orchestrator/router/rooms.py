"""Numbers that a prefill and a decode leg find each other by: unguessable, and unique while they live."""

from __future__ import annotations

from random import Random

ROOM_BITS = 63
"""Engines read a room as a signed 64-bit integer."""

LAST_ROOM = (1 << ROOM_BITS) - 1


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
