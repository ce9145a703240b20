"""The page of `bench streams` from figures made up: memory by stream, and CPU beside one process."""

from __future__ import annotations

from benchmarks import streams
from benchmarks.machine import Machine
from benchmarks.streams import Cost, Held

HERE = Machine("A CPU", 2, 8.0, "6.1", "3.11", "abc", "2026-01-01 00:00 UTC", 0.1)


def test_costs_are_put_beside_one_process() -> None:
    taken = [
        Cost(workers, number, load.name, us + number, 0)
        for number in range(3)
        for load in streams.COST
        for workers, us in ((1, 100.0), (2, 150.0))
    ]
    held = [Held(2, 10_000, 0, 450_000, 70.0, 18.26, 30.0, 4.0)]
    text = streams.report(held, taken, "scripts/bench streams", HERE).markdown()
    assert "| workers: 2 | 10,000 | 0 | 450,000 | 70 | 18.3 | 30 | 4.0 |" in text
    assert "| requests, workers: 1 | 101 (100-102) | +0 | 1.00 |" in text
    assert "| chunks, workers: 2 | 151 (150-152) | +50 | 1.50 |" in text
