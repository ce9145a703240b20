"""Simulated engines publish what their caches hold, numbered and replayed as real ones do."""

import asyncio
import contextlib

import msgspec
import pytest
import zmq
import zmq.asyncio

from orchestrator.core.kvblocks import KvBlocks, token_chain
from orchestrator.core.kvevents import BlocksCleared, BlocksRemoved, BlocksStored
from orchestrator.engines.kvevents import decode, pack
from orchestrator.sim import text
from orchestrator.sim.blocks import BlockPool
from orchestrator.sim.calls import Params
from orchestrator.sim.generation import Generation
from orchestrator.sim.kvpublish import END, KvPublisher, KvTeller

SIZE = 4


@contextlib.asynccontextmanager
async def publishing():
    publisher = KvPublisher("127.0.0.1", 0, 0, "kv")
    context = zmq.asyncio.Context()
    try:
        yield publisher, context
    finally:
        publisher.close()
        context.destroy(linger=0)


async def replayed(context, publisher, first):
    with context.socket(zmq.DEALER) as dealer:
        dealer.connect(f"tcp://127.0.0.1:{publisher.replay_port}")
        await dealer.send_multipart([b"", first.to_bytes(8, "big")])
        found = []
        while True:
            frames = await asyncio.wait_for(dealer.recv_multipart(), 10)
            if frames[2] == END:
                assert frames == [b"", b"", END, b""]
                return found
            found.append((frames[1], int.from_bytes(frames[2], "big"), frames[3]))


async def test_batches_are_numbered_and_replayed_from_any_of_them():
    async with publishing() as (publisher, context):
        publisher.muted = True
        for body in (b"a", b"b", b"c"):
            publisher.publish(body)
        assert await replayed(context, publisher, 1) == [(b"kv", 1, b"b"), (b"kv", 2, b"c")]
        assert await replayed(context, publisher, 9) == []


async def test_subscribers_get_topic_number_and_batch():
    async with publishing() as (publisher, context):
        with context.socket(zmq.SUB) as sub:
            sub.connect(f"tcp://127.0.0.1:{publisher.port}")
            sub.subscribe(b"kv")
            while not await sub.poll(20):
                publisher.publish(b"x")
            topic, number, batch = await sub.recv_multipart()
            assert (topic, batch) == (b"kv", b"x")
            assert int.from_bytes(number, "big") < publisher.number


async def test_a_taken_port_is_an_error():
    async with publishing() as (publisher, _):
        with pytest.raises(OSError, match="in use"):
            KvPublisher("127.0.0.1", publisher.port, 0)


class Kept:
    """A publisher that keeps what it is given."""

    def __init__(self):
        self.batches = []

    def publish(self, batch):
        self.batches.append(batch)

    def events(self):
        events = [event for batch in self.batches for event in decode(batch)]
        self.batches.clear()
        return events


def teller(dialect, blocks=8):
    pool, kept = BlockPool(blocks, record=True), Kept()
    return pool, kept, KvTeller(kept, pool, SIZE, dialect, lambda: 1.0)


def put(pool, tell, tokens):
    """Compute a prompt there and let it go."""
    gen = Generation("g", None, 0, tuple(tokens), Params(), limit=1, block_tokens=SIZE, now_s=0.0)
    names = text.block_hashes(text.block_states(tokens, SIZE), 0)
    tell.know(gen, names)
    hit = pool.match(names)
    pool.acquire(hit)
    fresh = pool.allocate(len(names) - len(hit))
    for block, name in zip(fresh, names[len(hit) :], strict=True):
        pool.commit(block, name)
    pool.release(hit + fresh)


@pytest.mark.parametrize("dialect", ["sglang", "vllm"])
def test_what_is_told_is_what_the_pool_holds(dialect):
    pool, kept, tell = teller(dialect)
    held = KvBlocks(0, SIZE, 100)
    for tokens in (list(range(16)), [*range(8), 90, 91, 92, 93], list(range(50, 70)), list(range(16))):
        put(pool, tell, tokens)
        tell.tell()
        for event in kept.events():
            if isinstance(event, BlocksStored):
                held.store(event)
            elif isinstance(event, BlocksRemoved):
                held.remove(event)
            else:
                held.clear()
        assert len(held) == len(pool.findable())
        found = pool.match(text.block_hashes(text.block_states(tokens, SIZE), 0))
        assert held.leading(token_chain(0, pack(tokens), SIZE)) == len(found)
    assert held.strays == 0


def test_dialects_name_the_same_block_otherwise_and_both_join_chains():
    told = {}
    for dialect in ("sglang", "vllm"):
        pool, kept, tell = teller(dialect)
        put(pool, tell, list(range(12)))
        tell.tell()
        (batch,) = kept.batches
        told[dialect] = msgspec.msgpack.decode(batch)[1]
        assert len(told[dialect]) == 1, "a chain is one event"
        assert len(told[dialect][0]["block_hashes"]) == 3
    assert told["sglang"][0]["block_hashes"] != told["vllm"][0]["block_hashes"]
    assert "kv_cache_spec_kind" in told["vllm"][0]


def test_an_empty_cache_is_told_as_such_and_nothing_new_as_nothing():
    pool, kept, tell = teller("sglang")
    put(pool, tell, list(range(8)))
    tell.tell()
    kept.events()
    tell.tell()
    assert kept.batches == []
    pool.flush()
    tell.tell()
    assert kept.events() == [BlocksCleared()]
