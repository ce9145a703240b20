"""The model in real time: owners are told, cancelled work leaves nothing, spoiled blocks spoil readers."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from orchestrator.clock import SystemClock
from orchestrator.sim import sglang_pages
from orchestrator.sim.calls import Params
from orchestrator.sim.engine import Engine
from orchestrator.sim.faults import Faults
from orchestrator.sim.generation import Generation
from orchestrator.sim.options import SimOptions
from orchestrator.sim.timing import RDMA
from orchestrator.sim.vclock import VirtualClock


class Owner:
    """Waits for a generation's end."""

    def __init__(self) -> None:
        self.tokens = 0
        self.done = asyncio.Event()

    def flush(self, gen: Generation) -> None:
        self.tokens = gen.sent = gen.produced
        if gen.done is not None:
            self.done.set()


def engine(**options: object) -> Engine:
    chosen = SimOptions(**{"speed": 200.0, **options})  # type: ignore[arg-type]
    faults = Faults(Random(1))
    clock = VirtualClock(SystemClock(), chosen.speed)
    return Engine(chosen, RDMA, clock, faults, sglang_pages.new_stats(), lambda why: None)


def gen(owner: Owner, prompt: range, limit: int = 10, name: str = "g") -> Generation:
    params = Params(ignore_eos=True)
    return Generation(name, owner, 0, tuple(prompt), params, limit=limit, block_tokens=64, now_s=0.0)


async def finish(made: Engine, one: Generation, owner: Owner) -> list[int]:
    made.admit(one)
    await asyncio.wait_for(owner.done.wait(), 20)
    return one.tokens


async def test_an_owner_gets_every_token_and_the_end() -> None:
    made, owner = engine(), Owner()
    one = gen(owner, range(100, 300), 40)
    assert len(await finish(made, one, owner)) == owner.tokens == 40
    assert one.done == "length"
    assert made.generations == {}
    assert made.stats.finished == {"length": 1}
    assert made.stats.ttft_s.total == 1
    assert made.stats.itl_s.total == 39
    assert made.stats.output_tokens == 40


async def test_a_cancelled_generation_leaves_nothing_and_tells_nobody() -> None:
    made, owner = engine(), Owner()
    one = gen(owner, range(100, 300), 10_000)
    made.admit(one)
    made.cancel(one)
    made.cancel(one)
    assert (one.done, made.generations, made.model.load().used_tokens) == ("abort", {}, 0)
    assert made.stats.finished == {"abort": 1}
    assert not owner.done.is_set()


async def test_spoiled_blocks_spoil_every_reader_until_they_are_rewritten() -> None:
    made = engine()
    prompt = range(100, 300)
    texts = []
    for name in ("clean", "cached", "spoiled", "rewritten"):
        if name == "spoiled":
            made.contents = [state ^ 1 for state in made.contents]
        if name == "rewritten":
            made.model.memory.pool.flush()
        owner = Owner()
        texts.append(await finish(made, gen(owner, prompt, name=name), owner))
    assert texts[0] == texts[1] == texts[3] != texts[2]


async def test_a_job_that_cannot_fit_is_refused_and_forgotten() -> None:
    made = engine(kv_tokens=256)
    with pytest.raises(ValueError, match="more than the 256 tokens"):
        made.admit(gen(Owner(), range(100, 400)))
    assert made.generations == {}


async def test_time_that_is_held_holds_the_engine() -> None:
    made, owner = engine(), Owner()
    made.clock.hold()
    made.admit(gen(owner, range(10, 20), 3))
    await asyncio.sleep(0.05)
    assert owner.tokens == 0
    made.clock.go()
    made.arm()
    await asyncio.wait_for(owner.done.wait(), 20)
    assert owner.tokens == 3


async def test_a_preempted_generation_says_what_it_would_have_said() -> None:
    """Its blocks are given away and recomputed, prompt and output so far, perhaps from cached ones."""
    made = engine(kv_tokens=512, max_running=8)
    pairs = []
    for number in range(6):
        owner = Owner()
        start = 100 if number % 2 else 1000 * number
        pairs.append((gen(owner, range(start, start + 70), 200, f"g{number}"), owner))
    expected = [list(one.tokens) for one, _ in pairs]
    for one, _ in pairs:
        made.admit(one)
    for _, owner in pairs:
        await asyncio.wait_for(owner.done.wait(), 30)
    assert made.model.counters.preemptions > 0
    assert [one.tokens for one, _ in pairs] == expected
    assert not any(one.spoiled for one, _ in pairs)
    assert [owner.tokens for _, owner in pairs] == [200] * 6


async def test_the_next_turn_reads_the_cached_output_and_goes_on_rightly() -> None:
    made = engine()
    owner, again = Owner(), Owner()
    first = gen(owner, range(100, 200), 150)
    await finish(made, first, owner)
    second = Generation(
        "next", again, 0, (*first.prompt, *first.tokens), Params(ignore_eos=True), limit=30,
        block_tokens=64, now_s=0.0,
    )  # fmt: skip
    expected = list(second.tokens)
    assert await finish(made, second, again) == expected
    assert second.cached_tokens == 192
    assert not second.spoiled
