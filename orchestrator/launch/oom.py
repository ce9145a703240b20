"""Whether the kernel has killed a process for want of memory, as far as this user may know."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Collection, Iterator
from enum import StrEnum
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_READ = 8192
"""The longest record of the kernel's log, which is read one record at a time."""
_KILLED = re.compile(r"^\d+,\d+,(\d+),.*[Oo]ut of memory: Killed process (\d+) ")


class Oom(StrEnum):
    """What is known."""

    PROVEN = "proven"
    """The kernel's log names one of the processes."""
    LIKELY = "likely"
    """The kernel has just killed some process of this host for want of memory."""
    RULED_OUT = "ruled-out"
    """It has killed none."""
    UNKNOWN = "unknown"


class OomWatch:
    """Asks the kernel's log, which root and few others may read, and its count of kills, which all may.

    `look` must be called every few seconds: the count tells of the time since the look before the last one.
    """

    def __init__(self, vmstat: Path = Path("/proc/vmstat"), log: Path = Path("/dev/kmsg")) -> None:
        self._vmstat = vmstat
        self._log = log
        # Two, lest the kill that is asked about came just before the last look.
        self._counts: deque[int | None] = deque(maxlen=2)

    def look(self) -> None:
        """Remember the count of now."""
        self._counts.append(self._count())

    def verdict(self, pids: Collection[int], ticks: int) -> Oom:
        """Whether one of `pids`, the first of which was started at `ticks` (clock ticks since boot), was
        killed."""
        if not pids:
            # Of another host, whose kernel it is that might know.
            return Oom.UNKNOWN
        since_us = ticks * 1_000_000 // TICKS_PER_S
        if any(pid in pids and at_us >= since_us for at_us, pid in self._kills()):
            return Oom.PROVEN
        now, before = self._count(), self._counts[0] if self._counts else None
        if now is None or before is None:
            return Oom.UNKNOWN
        return Oom.LIKELY if now > before else Oom.RULED_OUT

    def _count(self) -> int | None:
        """How many it has killed since boot; None if this kernel keeps no count."""
        try:
            text = self._vmstat.read_text()
        except OSError:
            return None
        found = re.search(r"^oom_kill (\d+)$", text, re.MULTILINE)
        return int(found[1]) if found else None

    def _kills(self) -> Iterator[tuple[int, int]]:
        """(microseconds since boot, pid) of each kill in the kernel's log; none if we may not read it."""
        for line in self._lines():
            found = _KILLED.match(line)
            if found:
                yield int(found[1]), int(found[2])

    def _lines(self) -> Iterator[str]:
        try:
            fd = os.open(self._log, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return
        rest = b""
        try:
            while True:
                try:
                    data = os.read(fd, _READ)
                except BrokenPipeError:
                    # The record we were about to read was overwritten; the next read gives the oldest left.
                    continue
                except OSError:
                    # BlockingIOError at the log's end; of anything else what was read so far stays true.
                    return
                if not data:
                    return
                *lines, rest = (rest + data).split(b"\n")
                yield from (line.decode(errors="replace") for line in lines)
        finally:
            os.close(fd)
