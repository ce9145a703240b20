"""What processes cost: CPU time to the nanosecond of all their threads, and memory."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import psutil


def tree(pid: int) -> list[int]:
    """A process and all that come from it; empty if there is none."""
    try:
        root = psutil.Process(pid)
        return [pid, *(child.pid for child in root.children(recursive=True))]
    except psutil.NoSuchProcess:
        return []


def spent_s(pid: int) -> float:
    """CPU seconds of a process tree's threads, from schedstat: clock ticks are too coarse for a short load.

    Threads that have ended count no more: routers keep theirs.
    """
    total = 0
    for one in tree(pid):
        for task in Path(f"/proc/{one}/task").glob("*/schedstat"):
            try:
                total += int(task.read_text().split()[0])
            except FileNotFoundError:  # a thread that has just ended
                continue
    return total / 1e9


def rss_mib(pid: int) -> float:
    """Resident memory of a process tree."""
    return sum(psutil.Process(one).memory_info().rss for one in tree(pid)) / 2**20


@dataclass(frozen=True, slots=True)
class Idle:
    """What a process burns without load, in CPU seconds a second, to be left out of what a load costs it."""

    pid: int
    rate: float

    @classmethod
    def of(cls, pid: int, window_s: float = 1.0) -> Idle:
        """Measured for `window_s`; nothing else may ask the process for anything meanwhile."""
        before, began = spent_s(pid), time.monotonic()
        time.sleep(window_s)
        return cls(pid, (spent_s(pid) - before) / (time.monotonic() - began))

    def meter(self) -> Meter:
        """A meter that begins now."""
        return Meter(self, spent_s(self.pid), time.monotonic())


@dataclass(frozen=True, slots=True)
class Meter:
    """CPU since a moment."""

    idle: Idle
    before_s: float
    began_s: float

    def read_s(self) -> float:
        """CPU seconds since then beyond the idle ones; 0 at least."""
        used_s = spent_s(self.idle.pid) - self.before_s
        return max(0.0, used_s - self.idle.rate * (time.monotonic() - self.began_s))
