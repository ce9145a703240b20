"""Says where an event loop hangs: what no code on the loop itself could tell any more."""

from __future__ import annotations

import asyncio
import faulthandler
import sys
from typing import IO

HUNG_S = 10.0
"""Nothing on the loop may take so long: every stream stands still meanwhile."""

REARM_S = 1.0


class Watchdog:
    """Prints the traceback of every thread to `out` when the loop has not turned for `after_s`.

    A thread of the interpreter's own does it, so that it works while Python code spins or waits for ever. It
    ends nothing: the process may yet come back, and whoever runs it decides.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        after_s: float = HUNG_S,
        every_s: float = REARM_S,
        out: IO[str] | None = None,
    ) -> None:
        self._loop = loop
        self._after_s, self._every_s = after_s, every_s
        self._out = out or sys.stderr
        self._timer: asyncio.TimerHandle | None = None
        self._arm()

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
        faulthandler.cancel_dump_traceback_later()

    def _arm(self) -> None:
        faulthandler.dump_traceback_later(self._after_s + self._every_s, file=self._out)
        self._timer = self._loop.call_later(self._every_s, self._arm)
