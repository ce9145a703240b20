"""How many requests may be tried again: a share of those that come, so that a sick fleet is not hit twice."""

from __future__ import annotations

RETRY_SHARE = 0.1
"""Retries per request; more would multiply the load on engines that are failing because of load."""

BURST = 10.0
"""Retries that may be saved up: an endpoint that dies takes several requests with it at once."""


class RetryBudget:
    """A token bucket that live traffic fills."""

    def __init__(self, share: float = RETRY_SHARE, burst: float = BURST) -> None:
        self._share = share
        self._burst = burst
        self._saved = burst

    def earn(self) -> None:
        """A request has come."""
        self._saved = min(self._burst, self._saved + self._share)

    def spend(self) -> bool:
        """Whether a request may be tried again; takes the permission if so."""
        if self._saved < 1.0:
            return False
        self._saved -= 1.0
        return True
