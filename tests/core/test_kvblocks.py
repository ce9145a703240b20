"""Blocks by the tokens in them: what an engine's events add and take, and how much of a prompt they tell."""

import random
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.kvblocks import MAX_CHAIN_BLOCKS, KvBlocks, common, token_chain
from orchestrator.core.kvevents import BlocksRemoved, BlocksStored

SEED, SIZE = 7, 4


def packed(tokens):
    return array("I", tokens).tobytes()


def stored(hashes, tokens, parent=None, **more):
    return BlocksStored(hashes, parent, packed(tokens), more.pop("size", SIZE), **more)


def blocks(limit=1000):
    return KvBlocks(SEED, SIZE, limit)


def chain(tokens, size=SIZE):
    return token_chain(SEED, packed(tokens), size)


def test_a_name_stands_for_its_block_and_all_before_it():
    one, other = chain(range(12)), chain([*range(8), 99, 9, 10, 11])
    assert len(one) == 3
    assert one[:2] == other[:2]
    assert one[2] != other[2]
    assert chain(range(11)) == one[:2], "a block that is not full has no name"
    assert token_chain(SEED + 1, packed(range(12)), SIZE)[0] != one[0]
    assert chain(range(4, 8))[0] != one[1]


def test_the_names_of_a_beginning_save_their_work():
    whole = chain(range(40))
    assert token_chain(SEED, packed(range(40)), SIZE, known=whole[:6]) == whole
    assert token_chain(SEED, packed(range(12)), SIZE, known=whole) == whole[:3]


def test_what_two_prompts_share():
    one = chain(range(40))
    assert common(one, one) == 10
    assert common(one, one[:3]) == 3
    assert common(one, (*one[:4], 1, 2)) == 4
    assert common(one, (*one[:7], 9), known=5) == 7


def test_a_chain_is_bounded_and_its_size_checked():
    assert len(token_chain(SEED, bytes(8 * MAX_CHAIN_BLOCKS), 1)) == MAX_CHAIN_BLOCKS
    with pytest.raises(ValueError, match="at least one token"):
        token_chain(SEED, b"", 0)


def test_what_was_stored_is_held_whatever_the_engine_calls_it():
    held = blocks()
    held.store(stored([101, 55], range(8)))
    held.store(stored([3], range(8, 12), parent=55))
    assert [held.leading(chain(range(n))) for n in (3, 4, 8, 12, 99)] == [0, 1, 2, 3, 3]
    assert held.leading(chain([9, *range(1, 12)])) == 0
    assert held.leading(()) == 0
    assert len(held) == 3


def test_what_is_removed_goes_and_the_unknown_changes_nothing():
    held = blocks()
    held.store(stored([1, 2, 3], range(12)))
    held.remove(BlocksRemoved([3, 77]))
    assert held.leading(chain(range(12))) == 2
    held.remove(BlocksRemoved([2, 1, 1]))
    assert (held.leading(chain(range(12))), len(held)) == (0, 0)


def test_copies_are_counted():
    """Two prompts computed side by side leave two copies of a block, and each is told of when it goes."""
    held = blocks()
    for _ in range(2):
        held.store(stored([1, 2], range(8)))
    held.remove(BlocksRemoved([2, 1]))
    assert held.leading(chain(range(8))) == 2
    held.remove(BlocksRemoved([2, 1]))
    assert held.leading(chain(range(8))) == 0


def test_what_cannot_be_named_is_left_out_with_all_that_follows():
    held = blocks()
    held.store(stored([1], range(4), private=True))
    held.store(stored([2], range(4, 8), parent=1))
    held.store(stored([3], range(2), size=2))
    assert (len(held), held.strays) == (0, 3)
    held.remove(BlocksRemoved([1, 2, 3]))


def test_an_event_without_its_tokens_is_refused():
    with pytest.raises(ValueError, match="2 blocks of 4 tokens with 7 tokens"):
        blocks().store(stored([1, 2], range(7)))


def test_there_is_a_bound():
    held = blocks(limit=2)
    held.store(stored([1, 2], range(8)))
    assert not held.overfull
    held.store(stored([3], range(8, 12), parent=2))
    assert (len(held), held.overfull) == (2, True)
    held.clear()
    assert (len(held), held.overfull, held.leading(chain(range(8)))) == (0, False, 0)


@given(st.integers(0, 2**32))
def test_as_an_engine_evicts_what_is_found_is_what_it_holds(seed):
    """Random prompts that share beginnings, evicted from their ends: leading() is the walk from the front."""
    rng, held, present = random.Random(seed), blocks(), {}
    for _ in range(60):
        prompt = [rng.randrange(2) for _ in range(SIZE * rng.randrange(1, 6))]
        names = chain(prompt)
        if rng.random() < 0.6:
            for i, name in enumerate(names):
                if name not in present:
                    parent = names[i - 1] + 10 if i else None
                    held.store(stored([name + 10], prompt[i * SIZE : (i + 1) * SIZE], parent=parent))
                    present[name] = names[i - 1] if i else None
        else:
            leaves = set(present) - set(present.values())
            for name in leaves:
                if rng.random() < 0.5:
                    held.remove(BlocksRemoved([name + 10]))
                    del present[name]
        found = 0
        while found < len(names) and names[found] in present:
            found += 1
        assert held.leading(names) == found
    assert len(held) == len(present)
