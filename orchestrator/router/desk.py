"""The shell around the scheduler port: hands decisions to whom they are for, runs the timer."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from orchestrator.clock import Clock
from orchestrator.core.contracts import Assign, Bind, Decision, Poll, Reject, Scheduler, Slice, Spent
from orchestrator.core.types import LegEvent, Outcome, RequestView, Snapshot
from orchestrator.errors import LegFailed, NoCapacity, Overloaded, RequestError

log = logging.getLogger(__name__)

EXPIRED = "handoff-expired"
"""The reason of a Spent whose prefill could still be fetched: nobody had room for it."""

Told = Callable[[Decision], None]
"""Hears the decision on one request; raises nothing."""


def refusal(decision: Reject) -> RequestError:
    """The error that a Reject becomes."""
    kind = NoCapacity if decision.http_status == NoCapacity.http_status else Overloaded
    return kind(decision.message, reason=decision.reason, retry_after_s=decision.retry_after_s)


def given_up(decision: Spent) -> RequestError:
    """The error that a Spent becomes if the request is not tried again."""
    expired = decision.reason == EXPIRED
    message = "no decode endpoint had room in time" if expired else "prefill has lost what it had computed"
    return LegFailed(message, reason=decision.reason)


class Desk:
    """Where requests wait for their route.

    Every decision a scheduler call returns is handed to the request it is for, whichever call it was, with
    its reasons if `wants` says so of the request. `poll` reads an endpoint's load when the scheduler asks to.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        clock: Clock,
        wants: Callable[[str], bool] | None = None,
        poll: Callable[[str], None] | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._poll = poll
        self._clock = clock
        self.wants = wants
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[str, Told] = {}
        self._bound: dict[str, Told] = {}
        self._undelivered: deque[Decision] = deque()
        self._delivering = False
        self._timer: asyncio.TimerHandle | None = None
        self._due_s: float | None = None

    @property
    def waiting(self) -> int:
        """Requests without a decision."""
        return len(self._waiting)

    def submit(self, view: RequestView, told: Told) -> None:
        """Offer a request: `told` hears of the decision once, from within this call or later, and before it
        of every Slice.

        Every request offered here must end in one `finish`, also a refused or withdrawn one.
        """
        decisions = self._scheduler.submit(view, self._clock.now_s())
        if len(decisions) == 1 and decisions[0].request_id == view.id and type(decisions[0]) is not Slice:
            if self._scheduler.due_s() != self._due_s:
                self._rearm()
            told(self._reasoned(decisions[0]))
            return
        self._waiting[view.id] = told
        self.deliver(decisions)

    def expect(self, request_id: str, told: Told) -> None:
        """`told` hears of the Bind or Spent after a provisional Assign, if it is not finished first."""
        self._bound[request_id] = told

    def rebind(self, view: RequestView, told: Told) -> None:
        """Have another decode side named for a finished prefill: `told` hears of the Bind or Spent."""
        self._bound[view.id] = told
        self.deliver(self._scheduler.rebind(view, self._clock.now_s()))

    def withdraw(self, request_id: str) -> None:
        """The client has left; nothing happens if there was a decision."""
        if self._waiting.pop(request_id, None) is not None:
            self.deliver(self._scheduler.cancel(request_id, self._clock.now_s()))

    def progress(self, event: LegEvent) -> None:
        """Tell of a leg's progress."""
        decisions = self._scheduler.progress(event, event.at_s)
        if decisions or self._scheduler.due_s() != self._due_s:
            self.deliver(decisions)

    def finish(self, outcome: Outcome) -> None:
        """The request, or one attempt at it, is over."""
        self._bound.pop(outcome.request_id, None)
        self.deliver(self._scheduler.finish(outcome, self._clock.now_s()))

    def observe(self, snapshot: Snapshot) -> None:
        """Tell of the endpoints as they are now."""
        self.deliver(self._scheduler.observe(snapshot, self._clock.now_s()))

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def deliver(self, decisions: Sequence[Decision]) -> None:
        """Hand decisions to whom they are for; time may be due anew after any call.

        Whoever is told may call again from within: a loop, so that a queue full of requests that end at
        once is no recursion.
        """
        if decisions:
            self._undelivered.extend(map(self._reasoned, decisions))
            if not self._delivering:
                self._delivering = True
                try:
                    while self._undelivered:
                        decision = self._undelivered.popleft()
                        if isinstance(decision, Poll):
                            if self._poll is not None:
                                self._poll(decision.endpoint)
                            continue
                        if isinstance(decision, Slice):
                            waits = self._waiting.get(decision.request_id)
                            if waits is not None:
                                waits(decision)
                            continue
                        waiting = self._waiting if isinstance(decision, Assign | Reject) else self._bound
                        told = waiting.pop(decision.request_id, None)
                        if told is not None:
                            told(decision)
                finally:
                    self._delivering = False
        if self._scheduler.due_s() != self._due_s:
            self._rearm()

    def _explained(self, decision: Decision) -> Decision:
        """The decision with its reasons where they are wanted: after the next call they cannot be had."""
        if not isinstance(decision, (Assign, Bind)) or decision.explain is None or self.wants is None:
            return decision
        if not self.wants(decision.request_id):
            return decision
        try:
            return replace(decision, why=decision.explain(), explain=None)
        except Exception:
            # The request goes on without: what it would have told is for people only.
            log.exception("a decision cannot be explained", extra={"request_id": decision.request_id})
            return replace(decision, explain=None)

    def _reasoned(self, decision: Decision) -> Decision:
        """The same; of a refusal always, since refusals are recorded as long as they are not too many."""
        if not isinstance(decision, Reject) or decision.explain is None:
            return self._explained(decision)
        try:
            return replace(decision, why=decision.explain(), explain=None)
        except Exception:
            log.exception("a refusal cannot be explained", extra={"request_id": decision.request_id})
            return replace(decision, explain=None)

    def _rearm(self) -> None:
        self._due_s = due_s = self._scheduler.due_s()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if due_s is not None:
            self._timer = self._loop.call_later(max(0.0, due_s - self._clock.now_s()), self._tick)

    def _tick(self) -> None:
        self._timer, self._due_s = None, None
        self.deliver(self._scheduler.tick(self._clock.now_s()))
