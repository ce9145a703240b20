"""The calls of a scheduler that decide have their time taken; the others go straight through."""

from __future__ import annotations

from orchestrator.clock import FakeClock
from orchestrator.policy.guard import Guard
from orchestrator.policy.testing import make_request
from orchestrator.router.over import Over


class Slow:
    """A scheduler that takes ten milliseconds for everything."""

    decides_in = frozenset({"submit", "tick"})

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock

    def submit(self, request: object, now_s: float) -> tuple[()]:
        self.clock.advance(0.01)
        return ()

    def cancel(self, request_id: str, now_s: float) -> tuple[()]:
        self.clock.advance(0.01)
        return ()


def test_only_a_call_that_decides_is_timed_and_what_is_submitted_is_remembered() -> None:
    clock, kept = FakeClock(), []
    guard = Guard(clock.now_s, lambda name, error: None)
    over = Over(Slow(clock), guard, clock.now_s, kept.append)
    over.cancel("a", 0.0)
    assert not guard.watching
    request = make_request()
    over.submit(request, 0.0)
    assert guard.watching
    assert kept == [request]
