"""The clock as an argument: what the shells read time from, and the fake that tests pass instead."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A source of time in seconds."""

    def now_s(self) -> float:
        """Monotonic seconds; only differences mean anything."""
        ...

    def wall_s(self) -> float:
        """Seconds since the Unix epoch, for what people read and what outlives a process."""
        ...


class SystemClock:
    """The machine's own clocks."""

    # Read ten times per request: the functions themselves, without a call around them.
    now_s = staticmethod(time.monotonic)
    wall_s = staticmethod(time.time)


class FakeClock:
    """A clock that moves only when told; shipped for tests of pdctl and of plug-ins."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s

    def now_s(self) -> float:
        """The time that was last set."""
        return self._now_s

    def wall_s(self) -> float:
        """The same figure: a fake has one time line."""
        return self._now_s

    def advance(self, seconds: float) -> None:
        """Move forward by `seconds`; raises ValueError for a negative step."""
        if seconds < 0:
            raise ValueError(f"time does not run backwards: {seconds}")
        self._now_s += seconds
