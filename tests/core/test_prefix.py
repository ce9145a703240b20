"""Block hashes, and the index of what each endpoint holds: exact, bounded, forgetful on demand."""

import os
import subprocess
import sys
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.core import prefix
from orchestrator.core.prefix import PrefixIndex, chain


def test_equal_prefixes_have_equal_hashes_and_no_more():
    a = chain(7, b"same" * 100 + b"one!" * 100, 40)
    b = chain(7, b"same" * 100 + b"two!" * 100, 40)
    assert len(a) == len(b) == 20
    assert a[:10] == b[:10]
    assert not set(a[10:]) & set(b[10:])


def test_a_hash_stands_for_all_that_came_before():
    a = chain(7, b"A" * 10 + b"C" * 10, 10)
    b = chain(7, b"B" * 10 + b"C" * 10, 10)
    assert a[1] != b[1]


def test_only_whole_blocks_up_to_the_limit():
    assert chain(7, b"x" * 99, 10) == chain(7, b"x" * 90, 10)
    assert len(chain(7, b"x" * 99, 10)) == 9
    assert chain(7, b"x" * 9, 10) == ()
    assert chain(7, b"", 10) == ()
    assert chain(7, b"x" * 99, 10, limit=3) == chain(7, b"x" * 99, 10)[:3]
    assert len(chain(7, bytes(100 * prefix.MAX_BLOCKS), 10)) == prefix.MAX_BLOCKS


def test_the_seed_keys_them_and_they_have_64_bits():
    hashes = chain(7, bytes(10_000), 10) + chain(8, bytes(10_000), 10) + chain(-7, bytes(10_000), 10)
    assert len(set(hashes)) == 3000
    assert all(0 <= h < 1 << 64 for h in hashes)
    assert max(hashes).bit_length() == 64


def test_every_process_hashes_alike():
    code = "from orchestrator.core.prefix import chain; print(chain(42, b'some prompt of no importance', 8))"
    root = os.path.dirname(os.path.dirname(os.path.dirname(prefix.__file__)))
    told = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": root},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert told == {str(chain(42, b"some prompt of no importance", 8))}


def test_a_block_has_at_least_one_byte():
    with pytest.raises(ValueError, match="at least one byte"):
        chain(7, b"x", 0)


def test_what_was_sent_is_cached_there_and_nowhere_else():
    index = PrefixIndex()
    index.sent("p0", (1, 2, 3, 4))
    assert index.cached_blocks("p0", (1, 2, 3, 4, 5, 6)) == 4
    assert index.cached_blocks("p0", (1, 2)) == 2
    assert index.cached_blocks("p0", (1, 2, 9)) == 2
    assert index.cached_blocks("p0", (9, 2, 3)) == 0
    assert index.cached_blocks("p0", ()) == 0
    assert index.cached_blocks("p1", (1, 2, 3, 4)) == 0
    index.sent("p0", ())
    assert index.blocks("p0") == 4


def test_a_new_process_has_nothing():
    """Case 36: the index must not prefer an engine for what its predecessor had."""
    index = PrefixIndex()
    index.sent("p0", (1, 2))
    index.sent("p1", (1, 2))
    index.drop("p0")
    index.drop("never-seen")
    assert index.cached_blocks("p0", (1, 2)) == 0
    assert index.cached_blocks("p1", (1, 2)) == 2


def test_eviction_takes_the_end_of_what_was_used_longest_ago():
    index = PrefixIndex(default_capacity=6)
    index.sent("p0", (1, 2, 3))
    index.sent("p0", (7, 8, 9))
    index.sent("p0", (1, 2))  # used again
    index.sent("p0", (20, 21))  # two must go: 3 was last used before 9
    assert index.cached_blocks("p0", (1, 2, 3)) == 2
    assert index.cached_blocks("p0", (7, 8, 9)) == 2
    assert index.cached_blocks("p0", (20, 21)) == 2


def test_a_prompt_larger_than_the_cache_keeps_its_beginning():
    index = PrefixIndex(default_capacity=3)
    index.sent("p0", tuple(range(1, 10)))
    assert index.cached_blocks("p0", tuple(range(1, 10))) == 3


def test_capacity_follows_the_endpoints_memory_within_a_bound():
    index = PrefixIndex(default_capacity=4)
    index.resize("p0", 2)
    index.sent("p0", (1, 2, 3))
    assert index.blocks("p0") == 2
    index.resize("p0", 100)
    index.sent("p0", (1, 2, 3, 4, 5, 6))
    assert index.blocks("p0") == 6
    index.resize("p0", None)
    assert index.blocks("p0") == 4
    assert index.cached_blocks("p0", (1, 2, 3, 4, 5, 6)) == 4
    index.resize("p0", 0)
    assert index.blocks("p0") == 1
    index.resize("p0", 10**9)
    for i in range(0, prefix.MAX_CAPACITY_BLOCKS + 2000, 1000):
        index.sent("p0", range(i, i + 1000))
    assert index.blocks("p0") == prefix.MAX_CAPACITY_BLOCKS


PROMPTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), min_size=1, max_size=40)


@settings(max_examples=200)
@given(PROMPTS, st.integers(1, 12))
def test_what_is_held_of_a_prompt_is_always_a_prefix_of_it(prompts, capacity):
    """So the binary search agrees with a walk, whatever was sent and evicted."""
    index = PrefixIndex(default_capacity=capacity)
    chains = [chain(1, bytes(p), 1) for p in prompts]
    for sent in chains:
        index.sent("p0", sent)
        assert index.blocks("p0") <= capacity
        assert index.cached_blocks("p0", sent) == min(len(sent), capacity)
        for other in chains:
            held = [bool(index.cached_blocks("p0", other[i : i + 1])) for i in range(len(other))]
            leading = held.index(False) if False in held else len(held)
            assert not any(held[leading:])
            assert index.cached_blocks("p0", other) == leading


def test_it_stays_bounded_under_any_traffic():
    index = PrefixIndex(default_capacity=50)
    rng = Random(3)
    for _ in range(500):
        index.sent(f"p{rng.randrange(3)}", tuple(rng.getrandbits(64) for _ in range(rng.randrange(1, 80))))
    assert [index.blocks(f"p{i}") for i in range(3)] == [50, 50, 50]
