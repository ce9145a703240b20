"""Virtual time is scaled, and can stand still without losing or gaining any."""

from __future__ import annotations

from orchestrator.clock import FakeClock
from orchestrator.sim.vclock import VirtualClock


def test_time_is_scaled_and_held() -> None:
    real = FakeClock(100.0)
    clock = VirtualClock(real, 10.0)
    real.advance(1.0)
    assert clock.now_s() == 10.0
    assert clock.real_s(30.0) == 3.0
    clock.hold()
    clock.hold()
    real.advance(5.0)
    assert clock.held
    assert clock.now_s() == 10.0
    clock.go()
    clock.go()
    real.advance(0.5)
    assert clock.now_s() == 15.0
    assert not clock.held
