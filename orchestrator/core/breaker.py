"""A circuit breaker: closed while things go well, open after failures, half-open for the try that decides."""

from __future__ import annotations

from enum import StrEnum

from orchestrator.core.frozen import record

TRIP_AFTER = 5
"""Failures in a row that open it: fewer happen by chance when an engine is only full."""

OPEN_S = 5.0
"""How long it stays open at first: an engine that restarts its scheduler needs about as long."""

MOST_OPEN_S = 60.0
"""What that grows to, doubling each time a look finds it no better."""


class Circuit(StrEnum):
    """The three states of a breaker."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


@record(slots=True)
class Breaker:
    """One breaker; times are seconds on the caller's clock.

    `until_s` is when it may be tried again, `opened` how often in a row it was opened.
    """

    circuit: Circuit = Circuit.CLOSED
    failures: int = 0
    opened: int = 0
    until_s: float = 0.0

    @property
    def shut(self) -> bool:
        """Nothing may go through."""
        return self.circuit is Circuit.OPEN

    def failed(self, now_s: float) -> bool:
        """Something went wrong there; True if that opened it."""
        self.failures += 1
        if self.circuit is Circuit.OPEN:
            return False
        if self.circuit is Circuit.CLOSED and self.failures < TRIP_AFTER:
            return False
        self.trip(now_s)
        return True

    def trip(self, now_s: float) -> None:
        """Open it, for twice as long as the last time unless something went well since."""
        self.until_s = now_s + min(MOST_OPEN_S, OPEN_S * 2**self.opened)
        self.opened = min(self.opened + 1, 16)
        self.circuit = Circuit.OPEN

    def succeeded(self) -> bool:
        """Something went well there; True if that closed it."""
        closes = self.circuit is not Circuit.CLOSED
        self.reset()
        return closes

    def look(self, now_s: float) -> bool:
        """True if it is half-open from now on: its time is over, and the next try decides."""
        if self.circuit is not Circuit.OPEN or now_s < self.until_s:
            return False
        self.circuit = Circuit.HALF_OPEN
        return True

    def reset(self) -> None:
        """As new: what was known is of no use any more."""
        self.circuit, self.failures, self.opened = Circuit.CLOSED, 0, 0
