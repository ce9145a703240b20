"""KV memory counted in tokens: equal to the block pool where blocks are all there is."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.sim.jobs import Job
from orchestrator.sim.memory import KvMemory
from orchestrator.sim.replay.cache import Holding, TokenMemory

BLOCK = 16

actions = st.lists(
    st.tuples(
        st.sampled_from(["take", "publish", "back"]), st.integers(0, 5), st.integers(1, 6), st.integers(0, 3)
    ),
    max_size=60,
)


@settings(max_examples=300)
@given(actions, st.integers(6, 20), st.sampled_from([None, 0, 2, 5]))
def test_the_same_as_the_block_pool(
    what: list[tuple[str, int, int, int]], blocks: int, cache: int | None
) -> None:
    """The same hits, refusals, use and evictions, whatever is done to both."""
    most = None if cache is None else cache * BLOCK
    pool = KvMemory(blocks * BLOCK, most, BLOCK, record=False)
    ours = TokenMemory(blocks * BLOCK, BLOCK, most)
    jobs: dict[int, tuple[Job, Holding]] = {}
    for action, slot, length, family in what:
        if action == "take" and slot not in jobs:
            prompt = length * BLOCK
            hashes = tuple(family * 100 + i for i in range(length))
            job, held = Job(f"{slot}", prompt, 1, hashes), Holding()
            hit = pool.take(job, prompt, family)
            assert ours.take(held, hashes, prompt, prompt, family * BLOCK) == hit
            if hit is not None:
                jobs[slot] = (job, held)
        elif action == "publish" and slot in jobs:
            job, held = jobs[slot]
            pool.publish(job, 0, job.prompt_tokens)
            ours.publish(held, job.hashes, 0, job.prompt_tokens)
        elif action == "back" and slot in jobs:
            job, held = jobs.pop(slot)
            pool.give_back(job)
            ours.give_back(held)
        assert ours.used == pool.pool.used * BLOCK
        assert ours.cached == pool.pool.cached * BLOCK
    for job, held in jobs.values():
        pool.give_back(job)
        ours.give_back(held)
    assert ours.used == 0


def test_growth_takes_from_the_cache() -> None:
    memory, held = TokenMemory(64, BLOCK), Holding()
    assert memory.take(held, (1, 2, 3), 48, 48, 0) == 0
    memory.publish(held, (1, 2, 3), 0, 48)
    memory.give_back(held)
    assert (memory.used, memory.cached, memory.available) == (0, 48, 64)
    memory.grow(20)
    assert (memory.used, memory.cached) == (20, 32)
    memory.grow(-20)
    assert memory.available == 64
