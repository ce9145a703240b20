"""Whether a request that failed is tried again: what may be, how often, and a budget for the whole fleet."""

from __future__ import annotations

from enum import StrEnum

from orchestrator.errors import LegFailed, NoCapacity, Overloaded, RequestError, StageDeadline

MAX_ATTEMPTS = 3
"""One may find a connection that is closing, the next an engine that is gone: the third goes elsewhere."""

MAX_DEADLY = 2
"""A request with which so many engines have died or hung in a row may be what they die of."""

RETRY_SHARE = 0.2
"""Retries per request that comes; more would multiply the load on engines that fail because of it."""

BURST = 16.0
"""Retries that may be saved up however little traffic there is."""

DEADLY = frozenset({"connection-dropped", "engine-hung"})
"""Reasons of failures that may have been the end of the engine."""

UNSENT = frozenset({"connect-failed"})
"""Reasons of failures that no engine has seen anything of: to try again costs none of them anything."""

FINAL = frozenset({"engine-auth", "unknown-transfer", "total-deadline"})
"""Reasons of failures that would be the same everywhere, or leave no time."""


class Verdict(StrEnum):
    """What becomes of a request whose attempt has failed."""

    AGAIN = "again"
    FINAL = "final"
    """It would fail anywhere: the client's own mistake, or ours."""
    ATTEMPTS = "attempts"
    """It has been tried often enough."""
    BUDGET = "budget"
    """The fleet has no retries left."""


def repeatable(error: RequestError) -> bool:
    """Whether a failed attempt could do better elsewhere.

    An engine that answers that its queue is full has not begun; every other 4xx is the client's. What the
    engines failed at may be repeated, since the failed attempt's legs have been aborted and the client has
    nothing of it yet.
    """
    return (
        isinstance(error, LegFailed | NoCapacity | StageDeadline | Overloaded) and error.reason not in FINAL
    )


class RetryBudget:
    """A token bucket that live traffic fills.

    It holds up to one retry for each request under way, since an engine that dies takes its share of those
    with it at once, and never less than `burst`.
    """

    def __init__(self, share: float = RETRY_SHARE, burst: float = BURST) -> None:
        self._share = share
        self._burst = burst
        self._saved = burst

    def earn(self, live: int = 0) -> None:
        """A request has come; `live` are under way."""
        saved = self._saved + self._share
        most = self._burst if live < self._burst else live
        self._saved = most if saved > most else saved

    def spend(self) -> bool:
        """Whether a request may be tried again; takes the permission if so."""
        if self._saved < 1.0:
            return False
        self._saved -= 1.0
        return True


class Tries:
    """One request's attempts so far. Its first is counted from the start."""

    __slots__ = ("attempts", "deadly")

    def __init__(self) -> None:
        self.attempts = 1
        self.deadly = 0

    def failed(self, error: RequestError, budget: RetryBudget) -> Verdict:
        """An attempt has failed with `error`: whether there is another; takes it from the budget if so."""
        self.deadly += error.reason in DEADLY
        if not repeatable(error):
            return Verdict.FINAL
        if self.attempts >= MAX_ATTEMPTS or self.deadly >= MAX_DEADLY:
            return Verdict.ATTEMPTS
        if error.reason not in UNSENT and not budget.spend():
            return Verdict.BUDGET
        self.attempts += 1
        return Verdict.AGAIN
