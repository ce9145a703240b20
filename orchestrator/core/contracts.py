"""The seams of the core: the scheduler port and the policies' contracts, as typed protocols.

Those checked at run time stay interpreted when the core is compiled; the data they speak of does not.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import ClassVar, Protocol, runtime_checkable

from orchestrator.core.decisions import (
    Assign,
    Bind,
    Context,
    Decision,
    Poll,
    PrefixReader,
    Reject,
    Slice,
    Spent,
    Waiting,
)
from orchestrator.core.prediction import Accuracy
from orchestrator.core.types import Endpoint, LegEvent, Outcome, RequestView, Scored, Snapshot

__all__ = [
    "Accountable",
    "Assign",
    "Bind",
    "Context",
    "Decision",
    "DeferringOrder",
    "Filter",
    "Order",
    "Picker",
    "Poll",
    "PrefixReader",
    "Reject",
    "Scheduler",
    "Scorer",
    "Slice",
    "Spent",
    "Waiting",
]


class Scheduler(Protocol):
    """The port between the router and whatever decides.

    Each call returns the decisions that became due by it, for any request; every submitted request
    gets exactly one Decision (before it perhaps some Slices), and exactly one `finish` ends it. No call
    blocks or does I/O, so that the same port works as calls in one process and as frames between processes.
    """

    def submit(self, request: RequestView, now_s: float) -> Sequence[Decision]:
        """Offer a request; its decision may come at once or from a later call."""
        ...

    def progress(self, event: LegEvent, now_s: float) -> Sequence[Decision]:
        """Tell of a leg's progress (frees what a finished prefill, or a slice that is over, held)."""
        ...

    def cancel(self, request_id: str, now_s: float) -> Sequence[Decision]:
        """The client left before a decision; nothing happens if it was decided already."""
        ...

    def rebind(self, request: RequestView, now_s: float) -> Sequence[Decision]:
        """The decode side that was named could not be reached, and what prefill has computed is still there.

        Another is named (a `Bind`, at once or later), or it is given up (a `Spent`). `request.avoid` has who
        it was.
        """
        ...

    def finish(self, outcome: Outcome, now_s: float) -> Sequence[Decision]:
        """The request is over, however it ended; releases everything it held."""
        ...

    def observe(self, snapshot: Snapshot, now_s: float) -> Sequence[Decision]:
        """The endpoints as they are now (joins, loads, restarts)."""
        ...

    def due_s(self) -> float | None:
        """When `tick` wants to be called next; None: only on events."""
        ...

    def tick(self, now_s: float) -> Sequence[Decision]:
        """Time has passed."""
        ...


@runtime_checkable
class Order(Protocol):
    """Sorts the queue of requests that can still be on time (late mode)."""

    def key(self, waiting: Waiting) -> float:
        """The lowest goes first; asked when a request is queued and when its `work_s` has changed."""
        ...


@runtime_checkable
class DeferringOrder(Order, Protocol):
    """An order that may put requests off, where not all that wait can be on time."""

    def defer(self, queue: Sequence[Waiting], now_s: float, capacity: float) -> Collection[Waiting]:
        """Who of `queue` should go behind all others; among these the shortest prefill goes first.

        `queue` are all that wait with one priority, in no particular order; the machine is theirs from
        `now_s` on, and does `capacity` seconds of their `work_s` in a second. Asked when an eighth of the
        queue has come or gone, for all of it: whoever was put off before may not be this time.
        """
        ...


@runtime_checkable
class Filter(Protocol):
    """Says which candidates may be used at all."""

    def filter(
        self, request: RequestView, candidates: Sequence[Endpoint], context: Context
    ) -> Sequence[Endpoint]:
        """The candidates that stay, a subset of `candidates`; none: the request cannot go now."""
        ...


@runtime_checkable
class Scorer(Protocol):
    """Says how good each candidate is.

    `unit` is `share` (0..1, higher is better, weighted; immediate mode) or `seconds` (a cost, lower
    is better, added to the price; late mode). The schema refuses a scorer in the other mode.
    """

    unit: ClassVar[str]

    def score(
        self, request: RequestView, candidates: Sequence[Endpoint], context: Context
    ) -> Sequence[float]:
        """One finite figure per candidate, in the candidates' order."""
        ...


@runtime_checkable
class Picker(Protocol):
    """Takes one candidate from the scored ones."""

    def pick(self, request: RequestView, scored: Sequence[Scored], context: Context) -> Scored:
        """One of `scored`, which is never empty."""
        ...


@runtime_checkable
class Accountable(Protocol):
    """A predictor that keeps books of itself."""

    def report(self) -> tuple[Accuracy, ...]:
        """Every endpoint's and model's figures so far."""
        ...
