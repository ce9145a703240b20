"""The scheduler port of the router: the calls in which policies may be asked have their time taken."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from orchestrator.core.contracts import Decision, Scheduler
from orchestrator.core.types import LegEvent, Outcome, RequestView, Snapshot
from orchestrator.policy.guard import Guard
from orchestrator.router.road import PROGRESS

PORT = frozenset(("submit", "progress", "cancel", "rebind", "finish", "observe", "due_s", "tick"))


class Over:
    """A scheduler under `guard`, which is told of each call that decides; `remember` gets what is submitted.

    `heeds`: see `Road`.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        guard: Guard,
        now_s: Callable[[], float],
        remember: Callable[[RequestView], None],
    ) -> None:
        self._scheduler = scheduler
        self._guard = guard
        self._now_s = now_s
        self._remember = remember
        # Not part of the port: one that says neither may ask policies in every call, and is told all.
        self._deciding: frozenset[str] = getattr(scheduler, "decides_in", PORT)
        self.heeds: frozenset[str] = getattr(scheduler, "heeds", PROGRESS)
        self._most_s = guard.budget.call_s

    def submit(self, request: RequestView, now_s: float) -> Sequence[Decision]:
        """Offer a request, which is remembered."""
        self._remember(request)
        began_s = self._now_s()
        decisions = self._scheduler.submit(request, now_s)
        self._took(began_s)
        return decisions

    def progress(self, event: LegEvent, now_s: float) -> Sequence[Decision]:
        """Something happened to a leg."""
        if "progress" not in self._deciding:
            return self._scheduler.progress(event, now_s)
        began_s = self._now_s()
        decisions = self._scheduler.progress(event, now_s)
        self._took(began_s)
        return decisions

    def cancel(self, request_id: str, now_s: float) -> Sequence[Decision]:
        """The client left before a decision."""
        if "cancel" not in self._deciding:
            return self._scheduler.cancel(request_id, now_s)
        began_s = self._now_s()
        decisions = self._scheduler.cancel(request_id, now_s)
        self._took(began_s)
        return decisions

    def rebind(self, request: RequestView, now_s: float) -> Sequence[Decision]:
        """Name another decode side."""
        if "rebind" not in self._deciding:
            return self._scheduler.rebind(request, now_s)
        began_s = self._now_s()
        decisions = self._scheduler.rebind(request, now_s)
        self._took(began_s)
        return decisions

    def finish(self, outcome: Outcome, now_s: float) -> Sequence[Decision]:
        """The request is over."""
        if "finish" not in self._deciding:
            return self._scheduler.finish(outcome, now_s)
        began_s = self._now_s()
        decisions = self._scheduler.finish(outcome, now_s)
        self._took(began_s)
        return decisions

    def observe(self, snapshot: Snapshot, now_s: float) -> Sequence[Decision]:
        """The endpoints as they are now."""
        if "observe" not in self._deciding:
            return self._scheduler.observe(snapshot, now_s)
        began_s = self._now_s()
        decisions = self._scheduler.observe(snapshot, now_s)
        self._took(began_s)
        return decisions

    def due_s(self) -> float | None:
        """When `tick` wants to be called next."""
        if "due_s" not in self._deciding:
            return self._scheduler.due_s()
        began_s = self._now_s()
        due_s = self._scheduler.due_s()
        self._took(began_s)
        return due_s

    def tick(self, now_s: float) -> Sequence[Decision]:
        """Time has passed."""
        if "tick" not in self._deciding:
            return self._scheduler.tick(now_s)
        began_s = self._now_s()
        decisions = self._scheduler.tick(now_s)
        self._took(began_s)
        return decisions

    def _took(self, began_s: float) -> None:
        ended_s = self._now_s()
        if ended_s - began_s > self._most_s or self._guard.watching:
            self._guard.took(began_s, ended_s)
