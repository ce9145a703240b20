"""KV memory job by job, and the queues, channel and jobs around it.

Covers memory, queues, channel and jobs.
"""

from __future__ import annotations

import pytest

from orchestrator.sim.channel import Channel
from orchestrator.sim.jobs import Counters, Job
from orchestrator.sim.memory import KvMemory
from orchestrator.sim.queues import Queues
from orchestrator.sim.timing import QWEN3_32B_TP2, RDMA


def test_a_job_takes_cached_blocks_first_and_gives_all_back() -> None:
    memory = KvMemory(64, None, 8, record=False)
    first = Job("a", 20, 4, hashes=(1, 2))
    assert memory.take(first, 20, 0) == 0
    memory.publish(first, 0, 20)
    second = Job("b", 20, 4, hashes=(1, 2))
    assert memory.take(second, 20, 0) == 16
    assert second.blocks[:2] == first.blocks[:2]
    assert memory.pool.used == 4
    for job in (first, second):
        memory.give_back(job)
    assert (memory.pool.used, memory.pool.cached) == (0, 2)


def test_spare_blocks_are_left_and_growth_stops_at_the_end() -> None:
    memory = KvMemory(32, None, 8, record=False)
    assert memory.tokens == 32
    job = Job("a", 16, 99)
    assert memory.take(job, 16, spare=3) is None
    assert memory.pool.used == 0
    assert memory.take(job, 16, spare=2) == 0
    assert [memory.grow(job) for _ in range(3)] == [True, True, False]
    assert memory.blocks_for(17) == 3


def test_a_private_job_neither_finds_nor_is_found() -> None:
    memory = KvMemory(64, None, 8, record=False)
    for private in (False, True, False):
        job = Job("x", 9, 1, hashes=(1,), private=private)
        hit = memory.take(job, 9, 0)
        memory.publish(job, 0, 9)
        memory.give_back(job)
    assert hit == 8
    assert memory.take(Job("y", 9, 1, hashes=(1,), private=True), 9, 0) == 0


def test_queues_count_places_and_forget() -> None:
    queues, job = Queues(), Job("a", 5, 1)
    queues.jobs["a"] = queues.running["a"] = job
    assert queues.occupied() == 1
    load = queues.load(KvMemory(64, None, 8, record=False))
    assert (load.running, load.total_tokens) == (1, 64)
    queues.drop(job)
    assert queues.occupied() == 0
    assert not queues.jobs


def test_a_channel_sends_in_order_and_counts() -> None:
    counters = Counters()
    channel = Channel(QWEN3_32B_TP2, RDMA, counters)
    one_s = QWEN3_32B_TP2.wire_s(8192, RDMA)
    channel.put(8192, 0.0)
    channel.put(8192, 0.0)
    assert channel.done_s(16_384, 0.0) == pytest.approx(2 * one_s + RDMA.fixed_s)
    channel.put(0, 5.0)
    assert channel.done_s(0, 5.0) == pytest.approx(5.0 + RDMA.fixed_s)
    assert (counters.transfers, counters.transfer_tokens) == (2, 16_384)
