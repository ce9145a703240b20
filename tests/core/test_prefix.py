"""Block hashes, and the index of what each endpoint holds: exact, bounded, forgetful on demand, corrected."""

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


def test_case_36_a_new_process_has_nothing():
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


class Naive:
    """What the index must answer: one list of single blocks per endpoint, walked block by block."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.held: dict[str, list[int]] = {}

    def sent(self, endpoint, blocks):
        held = self.held.setdefault(endpoint, [])
        for block in reversed(blocks[: self.capacity]):
            if block in held:
                held.remove(block)
            held.append(block)
        del held[: max(0, len(held) - self.capacity)]

    def cached(self, endpoint, blocks):
        held = self.held.get(endpoint, [])
        leading = [block in held for block in blocks]
        return leading.index(False) if False in leading else len(leading)


PROMPT = st.lists(st.integers(0, 2), min_size=1, max_size=8)
TRAFFIC = st.lists(st.tuples(st.integers(0, 3), PROMPT), min_size=1, max_size=40)


@settings(max_examples=300)
@given(TRAFFIC, st.integers(1, 12))
def test_it_answers_as_lists_of_single_blocks_would(traffic, capacity):
    """Whatever is sent, split, joined and evicted; one walk for all endpoints agrees with one for each."""
    index, naive = PrefixIndex(default_capacity=capacity), Naive(capacity)
    chains = [chain(1, bytes(prompt), 1) for _, prompt in traffic]
    for (where, _), blocks in zip(traffic, chains, strict=True):
        believed = naive.cached(f"e{where}", blocks[:capacity])
        assert index.sent(f"e{where}", blocks).believed == believed
        naive.sent(f"e{where}", blocks)
        for other in chains:
            each = {f"e{i}": naive.cached(f"e{i}", other) for i in range(4)}
            assert {e: index.cached_blocks(e, other) for e in each} == each
            assert index.hits(other) == {e: n for e, n in each.items() if n}
            assert index.longest(other) == max(each.values(), default=0)
        for i in range(4):
            assert index.blocks(f"e{i}") == len(naive.held.get(f"e{i}", ()))


@settings(max_examples=200)
@given(TRAFFIC, st.integers(1, 12), st.randoms(use_true_random=False))
def test_nothing_is_left_when_every_endpoint_is_gone(traffic, capacity, rng):
    """Also between losses, reports and flushes: sums agree and the tree ends empty."""
    index = PrefixIndex(default_capacity=capacity)
    for where, prompt in traffic:
        endpoint, blocks = f"e{where}", chain(1, bytes(prompt), 1)
        before = index.blocks(endpoint)
        sent = index.sent(endpoint, blocks)
        what = rng.randrange(6)
        if what == 0:
            index.lost(sent)
            assert index.blocks(endpoint) <= before
            assert index.cached_blocks(endpoint, blocks) <= sent.believed
        elif what == 1:
            sent.computed()
            index.reported(sent, rng.randrange(len(blocks) + 1))
        elif what == 2:
            index.flush(endpoint)
            assert not index.blocks(endpoint)
        held = index.blocks(endpoint)
        assert held <= index.capacity(endpoint) <= capacity
    for i in range(4):
        index.drop(f"e{i}")
    assert index.hits(chain(1, bytes(traffic[0][1]), 1)) == {}
    index.sent("last", (1,))
    assert index.hits((1,)) == {"last": 1}


def test_a_prompt_that_was_never_computed_leaves_what_was_there():
    index = PrefixIndex()
    index.sent("p0", (1, 2, 3))
    index.lost(index.sent("p0", (1, 2, 3, 4, 5)))
    assert index.cached_blocks("p0", (1, 2, 3, 4, 5)) == 3
    lost = index.sent("p0", (1, 2, 30, 31))
    index.sent("p0", (1, 2, 30))  # somebody else has brought this one meanwhile
    index.lost(lost)
    assert index.cached_blocks("p0", (1, 2, 30, 31)) == 3
    index.drop("p0")
    index.lost(lost)
    assert index.blocks("p0") == 0


def test_a_block_that_is_missing_takes_all_that_is_older_with_it():
    index = PrefixIndex(default_capacity=100)
    for first in (10, 20, 30):
        index.sent("p0", range(first, first + 5)).computed()
    again = index.sent("p0", range(20, 25))
    index.reported(again, 2)  # block 22 was evicted: so was all of the tens, and nothing of the thirties
    assert index.cached_blocks("p0", range(10, 15)) == 0
    assert index.cached_blocks("p0", range(20, 25)) == 5  # just computed
    assert index.cached_blocks("p0", range(30, 35)) == 5
    assert 10 < index.capacity("p0") < 100


def test_what_was_still_being_computed_says_nothing_of_evictions():
    index = PrefixIndex(default_capacity=100)
    index.sent("p0", (8, 9)).computed()
    index.sent("p0", (1, 2, 3))
    index.reported(index.sent("p0", (1, 2, 3)), 0)  # both go through one batch
    assert index.cached_blocks("p0", (8, 9)) == 2
    assert index.capacity("p0") == 100


def test_a_report_of_an_earlier_incarnation_says_nothing():
    index = PrefixIndex(default_capacity=100)
    index.sent("p0", (1, 2, 3)).computed()
    sent = index.sent("p0", (1, 2, 3))
    index.drop("p0")
    index.sent("p0", (1, 2)).computed()
    index.reported(sent, 0)
    index.lost(sent)
    assert index.cached_blocks("p0", (1, 2)) == 2


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9, 1.0])
def test_reports_lead_to_the_engines_real_capacity(share):
    """An engine keeps less than its memory would hold: the model ends near it, belief near truth."""
    rng, told = Random(5), 2000
    real, index = Naive(int(told * share)), PrefixIndex(default_capacity=told)
    prompts = [tuple(rng.getrandbits(64) for _ in range(rng.randrange(5, 60))) for _ in range(150)]
    wrong = []
    for _ in range(4000):
        prompt = prompts[min(int(rng.paretovariate(0.6)) - 1, 149)]
        found = real.cached("p0", prompt)
        sent = index.sent("p0", prompt)
        real.sent("p0", prompt)
        sent.computed()
        index.reported(sent, found)
        wrong.append(abs(sent.believed - found) / len(prompt))
    assert 0.8 * real.capacity <= index.capacity("p0") <= 1.25 * real.capacity
    assert sum(wrong[2000:]) / 2000 < 0.02


def test_a_learned_capacity_stays_until_another_is_told():
    index = PrefixIndex()
    index.resize("p0", 100)
    for i in range(20):
        index.sent("p0", range(10 * i, 10 * i + 10)).computed()
    index.reported(index.sent("p0", range(150, 160)), 0)
    learned = index.capacity("p0")
    assert learned < 100
    index.resize("p0", 100)
    index.flush("p0")
    assert index.capacity("p0") == learned
    assert index.blocks("p0") == 0
    index.resize("p0", 120)
    assert index.capacity("p0") == 120
    index.drop("p0")
    assert index.capacity("p0") == prefix.DEFAULT_CAPACITY_BLOCKS
    index.flush("never-seen")


def test_it_stays_bounded_under_any_traffic():
    index = PrefixIndex(default_capacity=50)
    rng = Random(3)
    for _ in range(500):
        index.sent(f"p{rng.randrange(3)}", tuple(rng.getrandbits(64) for _ in range(rng.randrange(1, 80))))
    assert [index.blocks(f"p{i}") for i in range(3)] == [50, 50, 50]
