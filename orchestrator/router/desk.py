"""The shell around the scheduler port: awaits a request's decision, runs the timer, cancels what left."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from orchestrator.clock import Clock
from orchestrator.core.contracts import Assign, Decision, Reject, Scheduler
from orchestrator.core.types import LegEvent, Outcome, RequestView, Snapshot
from orchestrator.errors import NoCapacity, Overloaded, RequestError


def refusal(decision: Decision) -> RequestError | None:
    """The error that a Reject becomes; None for any other decision."""
    if not isinstance(decision, Reject):
        return None
    kind = NoCapacity if decision.http_status == NoCapacity.http_status else Overloaded
    return kind(decision.message, reason=decision.reason, retry_after_s=decision.retry_after_s)


class Desk:
    """Where requests wait for their route.

    Every decision a scheduler call returns is handed to the request it is for, whichever call it was.
    """

    def __init__(self, scheduler: Scheduler, clock: Clock) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[str, asyncio.Future[Assign]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._due_s: float | None = None

    @property
    def waiting(self) -> int:
        """Requests without a decision."""
        return len(self._waiting)

    async def assign(self, view: RequestView) -> Assign:
        """The route of a request. Raises Overloaded or NoCapacity when it is refused.

        Every request offered here must end in one `finish`, also a refused or cancelled one.
        """
        decisions = self._scheduler.submit(view, self._clock.now_s())
        if len(decisions) == 1 and decisions[0].request_id == view.id:
            self._rearm()
            decision = decisions[0]
            if isinstance(decision, Assign):
                return decision
            error = refusal(decision)
            assert error is not None
            raise error
        answer: asyncio.Future[Assign] = self._loop.create_future()
        self._waiting[view.id] = answer
        self._deliver(decisions)
        try:
            return await answer
        except asyncio.CancelledError:
            if self._waiting.pop(view.id, None) is not None:
                self._deliver(self._scheduler.cancel(view.id, self._clock.now_s()))
            raise

    def progress(self, event: LegEvent) -> None:
        """Tell of a leg's progress."""
        decisions = self._scheduler.progress(event, event.at_s)
        if decisions:
            self._deliver(decisions)
        else:
            self._rearm()

    def finish(self, outcome: Outcome) -> None:
        """The request, or one attempt at it, is over."""
        self._deliver(self._scheduler.finish(outcome, self._clock.now_s()))

    def observe(self, snapshot: Snapshot) -> None:
        """Tell of the endpoints as they are now."""
        self._deliver(self._scheduler.observe(snapshot, self._clock.now_s()))

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _deliver(self, decisions: Sequence[Decision]) -> None:
        """Hand decisions to whom they are for; time may be due anew after any call."""
        for decision in decisions:
            answer = self._waiting.pop(decision.request_id, None)
            if answer is None or answer.done():
                continue
            if isinstance(decision, Assign):
                answer.set_result(decision)
            else:
                error = refusal(decision)
                assert error is not None
                answer.set_exception(error)
        self._rearm()

    def _rearm(self) -> None:
        due_s = self._scheduler.due_s()
        if due_s == self._due_s:
            return
        self._due_s = due_s
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if due_s is not None:
            self._timer = self._loop.call_later(max(0.0, due_s - self._clock.now_s()), self._tick)

    def _tick(self) -> None:
        self._timer, self._due_s = None, None
        self._deliver(self._scheduler.tick(self._clock.now_s()))
