"""When a refused request should come back, from how fast work in flight has been ending."""

from __future__ import annotations

MIN_RETRY_S = 1.0
"""Retry-After has whole seconds: a shorter wait cannot be said."""

MAX_RETRY_S = 60.0
"""No estimate is good for longer than this."""

FIRST_RESIDENCE_S = 10.0
"""How long a request is taken to stay before any has finished."""

_WEIGHT = 0.1  # of the newest residence in the running mean: the last ten or so count


class Drain:
    """Estimates when the next place frees, and hands each refused request a place of its own.

    With n requests in flight that stay W seconds on average, one ends every W/n seconds (Little's law).
    Refused requests are told successive ends: told the same one, they would all come back at once.
    """

    def __init__(self) -> None:
        self._residence_s: float | None = None
        self._promised_s = float("-inf")

    def finished(self, residence_s: float) -> None:
        """A request that was in flight for `residence_s` has ended."""
        if self._residence_s is None:
            self._residence_s = residence_s
        else:
            self._residence_s += _WEIGHT * (residence_s - self._residence_s)

    def retry_after_s(self, now_s: float, in_flight: int) -> float:
        """Seconds from now until a place should be free for the request being refused.

        Between MIN_RETRY_S and MAX_RETRY_S; with nothing in flight the router has nothing to predict
        from (others fill the engines) and says MIN_RETRY_S.
        """
        if in_flight <= 0:
            return MIN_RETRY_S
        residence_s = FIRST_RESIDENCE_S if self._residence_s is None else self._residence_s
        promised_s = max(self._promised_s, now_s) + residence_s / in_flight
        self._promised_s = min(promised_s, now_s + MAX_RETRY_S)
        return max(MIN_RETRY_S, self._promised_s - now_s)
