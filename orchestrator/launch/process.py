"""Processes as /proc shows them: who is who, who belongs together, and how to signal without mistake."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

MARK = "PDCTL_INSTANCE"
"""Environment variable that every process of an instance inherits: `<state dir id>/<name>/<incarnation>`."""
MARK_DIGEST = "PDCTL_DIGEST"
"""Environment variable with the digest of what was launched, so that adoption needs no other record."""

_DEAD = frozenset("ZXx")


@dataclass(frozen=True, slots=True, order=True)
class Identity:
    """One process for all time since boot: its pid, and its start in clock ticks against reuse of the pid."""

    pid: int
    ticks: int


@dataclass(frozen=True, slots=True)
class Stat:
    """A line of /proc/PID/stat. `state` is the kernel's letter (R, S, D, Z, ...); `status` a zombie's wait
    status, nought where we may not know it."""

    identity: Identity
    command: str
    state: str
    ppid: int
    pgrp: int
    session: int
    status: int = 0

    @property
    def alive(self) -> bool:
        """False for a zombie: it has ended and only waits to be reaped."""
        return self.state not in _DEAD


def read_stat(pid: int) -> Stat | None:
    """The process `pid`, or None if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command is in parentheses and may itself hold some, and blanks.
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    return Stat(
        identity=Identity(pid, int(fields[19])),
        command=head.partition("(")[2],
        state=fields[0],
        ppid=int(fields[1]),
        pgrp=int(fields[2]),
        session=int(fields[3]),
        status=int(fields[49]),
    )


def identify(pid: int) -> Identity | None:
    """The identity of the living process `pid`; None if it has ended."""
    stat = read_stat(pid)
    return stat.identity if stat is not None and stat.alive else None


def alive(identity: Identity) -> bool:
    """Whether that very process still runs."""
    return identify(identity.pid) == identity


def boot_id() -> str:
    """What tells this boot of the machine from every other: start ticks mean nothing across boots."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def environment(pid: int) -> dict[str, str]:
    """The environment `pid` was started with; empty when it is gone, another user's, or was overwritten
    (programs that set their own title may do that)."""
    try:
        data = Path(f"/proc/{pid}/environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return {}
    pairs = (item.partition(b"=") for item in data.split(b"\0"))
    return {os.fsdecode(k): os.fsdecode(v) for k, separator, v in pairs if separator}


@dataclass(frozen=True, slots=True)
class Mark:
    """The marker of one incarnation, read from or written to an environment."""

    state_id: str
    name: str
    incarnation: int

    def __str__(self) -> str:
        return f"{self.state_id}/{self.name}/{self.incarnation}"


def parse_mark(text: str) -> Mark | None:
    """The marker in `text`; None if it is none."""
    parts = text.split("/")
    if len(parts) != 3 or not parts[2].isdecimal():
        return None
    return Mark(parts[0], parts[1], int(parts[2]))


class Table:
    """All processes at one moment. Reading it costs a few milliseconds per hundred processes."""

    def __init__(self, stats: Mapping[int, Stat]) -> None:
        self.stats = stats
        self._children: dict[int, list[int]] = {}
        for stat in stats.values():
            self._children.setdefault(stat.ppid, []).append(stat.identity.pid)

    @classmethod
    def take(cls) -> Table:
        """The processes that live now, zombies left out."""
        found = (read_stat(int(name)) for name in os.listdir("/proc") if name.isdecimal())
        return cls({s.identity.pid: s for s in found if s is not None and s.alive})

    def descendants(self, pids: Iterable[int]) -> set[int]:
        """`pids` and all their children, their children's children, and so on."""
        found: set[int] = set()
        todo = list(pids)
        while todo:
            pid = todo.pop()
            if pid not in found:
                found.add(pid)
                todo += self._children.get(pid, ())
        return found

    def family(self, leader: Identity, known: Iterable[Identity] = ()) -> set[Identity]:
        """The living processes that stem from `leader`, itself included: its session, its group, all their
        descendants, and those of the `known` ones that still live, with their descendants."""
        at_pid = self.stats.get(leader.pid)
        # A pid is not given out again while a session or group bears it: a stranger at the leader's pid
        # proves that both are empty.
        stranger = at_pid is not None and at_pid.identity != leader
        pids = {i.pid for i in known if (s := self.stats.get(i.pid)) is not None and s.identity == i}
        if not stranger:
            pids |= {
                pid
                for pid, s in self.stats.items()
                if leader.pid in (s.session, s.pgrp) and s.identity.ticks >= leader.ticks
            }
        found = self.descendants(pids) - {os.getpid()}
        return {self.stats[pid].identity for pid in found if pid in self.stats}

    def marked(self, state_id: str) -> dict[Identity, Mark]:
        """The processes that bear a marker of the state directory `state_id`, this one left out."""
        found: dict[Identity, Mark] = {}
        for pid, stat in self.stats.items():
            if pid == os.getpid():
                continue
            mark = parse_mark(environment(pid).get(MARK, ""))
            if mark is not None and mark.state_id == state_id:
                found[stat.identity] = mark
        return found


def send(identity: Identity, number: signal.Signals) -> bool:
    """Signal that very process; False if it has ended. Raises PermissionError for another user's."""
    try:
        fd = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        return False
    try:
        # The descriptor holds the process fast, so the check cannot be overtaken by a reuse of the pid.
        if not alive(identity):
            return False
        signal.pidfd_send_signal(fd, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(fd)
    return True


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def ended(identity: Identity) -> None:
    """Return once that very process has ended, whether or not it is a child of ours."""
    try:
        fd = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        return
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()
    try:
        if not alive(identity):
            return
        loop.add_reader(fd, _resolve, over)
        try:
            await over
        finally:
            loop.remove_reader(fd)
    finally:
        os.close(fd)


def describe(identity: Identity) -> str:
    """A process that will not go, for the operator: pid, command, and what it is stuck in."""
    stat = read_stat(identity.pid)
    if stat is None:
        return f"pid {identity.pid} (gone)"
    stuck = " in uninterruptible sleep, so waiting for a driver or a disk" if stat.state == "D" else ""
    return f"pid {identity.pid} ({stat.command}){stuck}"
