"""Paged KV memory: never over capacity, never a block twice, cached prefixes found and evicted in order."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.sim.blocks import BlockPool


def test_blocks_are_shared_by_hash_and_counted_once() -> None:
    pool = BlockPool(4)
    first = pool.allocate(2)
    assert first is not None
    for block, key in zip(first, (11, 12), strict=True):
        pool.commit(block, key)
    found = pool.match((11, 12, 13))
    assert found == first
    pool.acquire(found)
    assert pool.used == 2
    pool.release(first)
    assert pool.used == 2
    pool.release(found)
    assert (pool.used, pool.cached) == (0, 2)
    assert pool.match((11, 12)) == first


def test_an_allocation_that_does_not_fit_changes_nothing() -> None:
    pool = BlockPool(3)
    assert pool.allocate(2) is not None
    assert pool.allocate(2) is None
    assert pool.used == 2


def test_the_least_recently_used_block_goes_first_and_a_chain_loses_its_tail() -> None:
    pool = BlockPool(3, record=True)
    blocks = pool.allocate(3)
    assert blocks is not None
    for block, key in zip(blocks, (1, 2, 3), strict=True):
        pool.commit(block, key)
    pool.release(blocks)
    assert pool.allocate(1) == [blocks[2]]
    assert pool.match((1, 2, 3)) == blocks[:2]
    assert pool.log == [(True, 1), (True, 2), (True, 3), (False, 3)]
    assert set(pool.findable()) == {1, 2}


def test_freed_blocks_without_a_hash_are_reused_last() -> None:
    pool = BlockPool(3)
    first = pool.allocate(1)
    assert first is not None
    pool.release(first)
    assert pool.allocate(2) is not None
    assert pool.allocate(1) == first


def test_the_cache_can_be_bounded_off_or_flushed() -> None:
    bounded, off, flushed = BlockPool(4, 1), BlockPool(4, 0), BlockPool(4)
    for pool in (bounded, off, flushed):
        blocks = pool.allocate(3)
        assert blocks is not None
        for block, key in zip(blocks, (1, 2, 3), strict=True):
            pool.commit(block, key)
        pool.release(blocks)
    assert bounded.cached == 1
    assert off.cached == 0
    assert off.match((1,)) == []
    assert flushed.flush() == 3
    assert flushed.match((1,)) == []
    assert flushed.allocate(4) is not None


def test_a_pool_has_blocks() -> None:
    with pytest.raises(ValueError, match="at least one block"):
        BlockPool(0)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6)), max_size=60),
    st.integers(1, 12),
    st.one_of(st.none(), st.integers(0, 6)),
)
def test_any_use_keeps_the_books(moves: list[tuple[int, int]], size: int, cache: int | None) -> None:
    pool = BlockPool(size, cache)
    held: list[list[int]] = []
    for prompt, length in moves:
        hashes = [prompt * 100 + i for i in range(length)]
        hit = pool.match(hashes)
        pool.acquire(hit)
        fresh = pool.allocate(length - len(hit))
        if fresh is None:
            pool.release(hit)
            if held:
                pool.release(held.pop(0))
        else:
            blocks = hit + fresh
            assert len(set(blocks)) == length
            for block, key in zip(blocks, hashes, strict=True):
                pool.commit(block, key)
            held.append(blocks)
        assert pool.used == len({block for one in held for block in one})
        assert pool.used + pool.cached <= size
        assert cache is None or pool.cached <= cache
    for one in held:
        pool.release(one)
    assert pool.used == 0
    assert pool.allocate(size) is not None
