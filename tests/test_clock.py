"""The clocks: the system's own, and the fake that moves only when told."""

from __future__ import annotations

import time

import pytest

from orchestrator.clock import FakeClock, SystemClock


def test_a_fake_moves_only_when_told_and_never_back() -> None:
    clock = FakeClock(5.0)
    assert (clock.now_s(), clock.wall_s()) == (5.0, 5.0)
    clock.advance(1.5)
    assert clock.now_s() == 6.5
    with pytest.raises(ValueError, match="backwards"):
        clock.advance(-0.1)
    assert clock.now_s() == 6.5


def test_the_system_clock_reads_both_of_the_machines_clocks() -> None:
    clock = SystemClock()
    before = time.monotonic(), time.time()
    assert before[0] <= clock.now_s() <= time.monotonic()
    assert abs(clock.wall_s() - before[1]) < 3600
