"""The shell around the scheduler: decisions reach whom they are for, timers run, what left is cancelled."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence

import pytest

from orchestrator.clock import FakeClock, SystemClock
from orchestrator.core.contracts import Assign, Decision, Reject, Slice
from orchestrator.core.types import End, LegEvent, LegKind, Outcome, PathKind, RequestView, Route, Snapshot
from orchestrator.errors import NoCapacity, Overloaded
from orchestrator.router.desk import Desk, refusal

ROUTE = Route(decode="d0")


def view(name: str) -> RequestView:
    return RequestView(id=name, model="m", path=PathKind.CHAT, arrived_s=0.0, prompt_tokens=1, max_tokens=1)


class Script:
    """A scheduler whose every call returns what was laid out for it."""

    def __init__(self) -> None:
        self.next: list[Decision] = []
        self.calls: list[str] = []
        self.due: float | None = None
        self.on_tick: Callable[[], None] = lambda: None

    def _give(self, call: str) -> Sequence[Decision]:
        self.calls.append(call)
        out, self.next = self.next, []
        return out

    def submit(self, request: RequestView, now_s: float) -> Sequence[Decision]:
        return self._give(f"submit {request.id}")

    def progress(self, event: LegEvent, now_s: float) -> Sequence[Decision]:
        return self._give(f"progress {event.request_id}")

    def cancel(self, request_id: str, now_s: float) -> Sequence[Decision]:
        return self._give(f"cancel {request_id}")

    def finish(self, outcome: Outcome, now_s: float) -> Sequence[Decision]:
        return self._give(f"finish {outcome.request_id}")

    def observe(self, snapshot: Snapshot, now_s: float) -> Sequence[Decision]:
        return self._give("observe")

    def due_s(self) -> float | None:
        return self.due

    def tick(self, now_s: float) -> Sequence[Decision]:
        self.due = None
        self.on_tick()
        return self._give("tick")


class Asked:
    """A request at the desk, and the decisions it has heard."""

    def __init__(self, desk: Desk, name: str) -> None:
        self.heard: list[Decision] = []
        desk.submit(view(name), self.heard.append)


async def test_a_decision_at_once() -> None:
    script = Script()
    desk = Desk(script, FakeClock())
    script.next = [Assign("a", ROUTE)]
    assert Asked(desk, "a").heard == [Assign("a", ROUTE)]
    assert desk.waiting == 0


async def test_slices_come_before_the_decision() -> None:
    script = Script()
    desk = Desk(script, FakeClock())
    pieces = [Slice("a", ROUTE, 128 * n, n) for n in (1, 2)]
    script.next = [pieces[0]]
    asked = Asked(desk, "a")
    assert (asked.heard, desk.waiting) == ([pieces[0]], 1)
    for decision in (pieces[1], Assign("a", ROUTE)):
        script.next = [decision]
        desk.progress(LegEvent("a", LegKind.PREFILL, "p0", "done", 0.0))
    assert (asked.heard, desk.waiting) == ([*pieces, Assign("a", ROUTE)], 0)
    script.next = [Slice("gone", ROUTE, 128, 0)]
    desk.observe(Snapshot(0.0, ()))  # nobody waits for it: nothing happens


@pytest.mark.parametrize(("status", "kind"), [(429, Overloaded), (503, NoCapacity)])
def test_what_a_refusal_becomes(status: int, kind: type[Exception]) -> None:
    error = refusal(Reject("a", "why", "text", status, 2.0))
    assert type(error) is kind
    assert (error.reason, error.retry_after_s) == ("why", 2.0)


@pytest.mark.parametrize("by", ["submit", "progress", "finish", "observe"])
async def test_a_decision_may_come_from_any_later_call(by: str) -> None:
    script = Script()
    desk = Desk(script, FakeClock())
    first, second = Asked(desk, "a"), Asked(desk, "b")
    assert desk.waiting == 2
    refused = Reject("b", "why", "text")
    script.next = [refused, Assign("a", ROUTE), Assign("nobody", ROUTE)]
    if by == "submit":
        assert not Asked(desk, "c").heard
    elif by == "progress":
        desk.progress(LegEvent("x", LegKind.DECODE, "d0", "done", 0.0))
    elif by == "finish":
        desk.finish(Outcome("x", End.COMPLETED, 200))
    else:
        desk.observe(Snapshot(0.0, ()))
    assert first.heard == [Assign("a", ROUTE)]
    assert second.heard == [refused]


async def test_who_leaves_is_cancelled_and_frees_others() -> None:
    script = Script()
    desk = Desk(script, FakeClock())
    first, second = Asked(desk, "a"), Asked(desk, "b")
    script.next = [Assign("b", ROUTE)]
    desk.withdraw("a")
    assert second.heard == [Assign("b", ROUTE)]
    assert not first.heard
    assert script.calls == ["submit a", "submit b", "cancel a"]
    assert desk.waiting == 0


async def test_leaving_after_the_decision_is_no_cancel() -> None:
    script = Script()
    desk = Desk(script, FakeClock())
    Asked(desk, "a")
    script.next = [Assign("a", ROUTE)]
    desk.observe(Snapshot(0.0, ()))
    desk.withdraw("a")
    assert "cancel a" not in script.calls


async def test_a_queue_that_ends_one_by_one_is_no_recursion() -> None:
    script = Script()
    desk = Desk(script, FakeClock())
    ended: list[str] = []

    def end(name: int) -> Callable[[Decision], None]:
        def told(decision: Decision) -> None:
            ended.append(decision.request_id)
            script.next = [Assign(str(name + 1), ROUTE)]
            desk.finish(Outcome(str(name), End.COMPLETED, 200))

        return told

    many = 2 * sys.getrecursionlimit()
    for name in range(many):
        desk.submit(view(str(name)), end(name))
    script.next = [Assign("0", ROUTE)]
    desk.observe(Snapshot(0.0, ()))
    assert ended == [str(name) for name in range(many)]


async def test_the_timer_ticks_when_it_is_due() -> None:
    script = Script()
    clock = SystemClock()
    desk = Desk(script, clock)
    script.due = clock.now_s() + 0.01
    script.on_tick = lambda: script.next.append(Assign("a", ROUTE))
    heard: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()
    desk.submit(view("a"), heard.set_result)
    assert await asyncio.wait_for(heard, 20) == Assign("a", ROUTE)
    assert script.calls == ["submit a", "tick"]


async def test_an_earlier_deadline_replaces_a_later_one() -> None:
    script = Script()
    clock = SystemClock()
    desk = Desk(script, clock)
    script.due = clock.now_s() + 1000.0
    desk.observe(Snapshot(0.0, ()))
    ticked = asyncio.Event()
    script.on_tick = ticked.set
    script.due = clock.now_s() - 1.0
    desk.observe(Snapshot(0.0, ()))
    await asyncio.wait_for(ticked.wait(), 20)
    script.due = clock.now_s() + 1000.0
    desk.observe(Snapshot(0.0, ()))
    desk.close()
