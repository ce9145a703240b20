"""Rooms and the randomness they are drawn from: in range, unique, and never the same page twice."""

from __future__ import annotations

from random import Random

from orchestrator.router.rooms import LAST_ROOM, PAGE_BYTES, PagedRandom, Rooms


def test_rooms_are_unique_while_they_live() -> None:
    rooms = Rooms(Random(1))
    taken = [rooms.take(count) for count in (1, 3, 0, 2)]
    numbers = [room for run in taken for room in run]
    assert len(set(numbers)) == len(rooms) == 6
    assert all(0 < room <= LAST_ROOM for room in numbers)
    for run in taken:
        rooms.free(run)
    assert len(rooms) == 0


def test_a_page_ends_and_another_follows() -> None:
    rng = PagedRandom()
    drawn = [rng.getrandbits(128) for _ in range(3 * PAGE_BYTES // 16)]
    assert len(set(drawn)) == len(drawn)
    assert max(drawn).bit_length() <= 128


def test_any_number_of_bits() -> None:
    rng = PagedRandom()
    for bits in (1, 7, 8, 63, 64 * PAGE_BYTES):
        drawn = [rng.getrandbits(bits) for _ in range(100)]
        assert max(drawn).bit_length() <= bits
        assert len(set(drawn)) > 1
    assert rng.getrandbits(0) == 0
    assert 0 <= rng.randrange(10) < 10
