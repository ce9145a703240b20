"""How a deployment's state is shown: live on a terminal, as lines elsewhere, and as text at the end."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from orchestrator.core.breaker import Circuit
from orchestrator.core.lifecycle import State
from orchestrator.launch.status import BadPair, InstanceStatus, Phase, Status

STYLES = {
    State.READY: "green",
    State.FATAL: "bold red",
    State.BACKOFF: "yellow",
    State.STARTING: "cyan",
    State.DRAINING: "magenta",
    State.STOPPING: "magenta",
    State.STOPPED: "dim",
}

SETTLED = frozenset({State.READY, State.FATAL, State.STOPPED})
ASKED = frozenset({State.DRAINING, State.STOPPING})
"""States entered by request: how long the one before had lasted is no achievement."""
PAIRS_SHOWN = 6
"""How many bad pairs are named for each reason."""
STILL_S = 15.0
"""How often it is said what is waited for, where no live table shows it."""


def brief_s(seconds: float) -> str:
    """A length of time for people: 4.2s, 42s, 12m30s, 5h02m, 3d04h."""
    if seconds < 10:
        return f"{seconds:.1f}s"
    minutes, s = divmod(int(seconds), 60)
    hours, m = divmod(minutes, 60)
    days, h = divmod(hours, 24)
    if days:
        return f"{days}d{h:02d}h"
    if hours:
        return f"{hours}h{m:02d}m"
    return f"{minutes}m{s:02d}s" if minutes else f"{s}s"


def columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Rows as aligned lines, however wide: what is piped must not be cut to a terminal's width."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def failures(status: Status) -> Iterator[str]:
    """What did not become ready and what to look at, line by line; nothing if all is well."""
    if status.problem:
        yield status.problem
    for i in status.instances:
        if i.state is State.READY and i.detail:
            yield f"{i.name}: {i.detail}"
        if i.state in (State.READY, State.STOPPED):
            continue
        why = i.last_error or i.detail
        tries = f" after {i.restarts} restart{'s' * (i.restarts > 1)}" if i.restarts else ""
        yield f"{i.name}: {i.state.name}{tries}{f': {why}' if why else ''}"
        yield f"  log: {i.log}"
        yield from (f"  | {line}" for line in i.failure)


def urls(status: Status) -> list[str]:
    """Where clients go: the router, or every engine where there is none."""
    return [status.url] if status.url else [i.url for i in status.instances]


class Patient(Console):
    """A console whose reader may leave: what is being started does not depend on who watches."""

    def on_broken_pipe(self) -> None:
        """Write to nowhere from now on, also what Python flushes at the end."""
        self.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.file.fileno())
        os.close(nowhere)


class Progress:
    """Shows a deployment until it is settled, and what changes after that. A context manager.

    `err` takes the progress, so that `out` holds nothing but the URL once it is ready.
    """

    def __init__(
        self, out: Console | None = None, err: Console | None = None, still_s: float = STILL_S
    ) -> None:
        self._out = out or Patient(highlight=False, soft_wrap=True)
        self._err = err = err or Patient(stderr=True, highlight=False, soft_wrap=True)
        self._live = (
            Live(
                console=err, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
            )
            if err.is_terminal
            else None
        )
        self._told = False
        self._spoke_s = time.monotonic()
        self._still_s = still_s
        self._last: Status | None = None
        self._since_s: dict[str, float] = {}

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, status: Status) -> None:
        """How things stand now."""
        before, self._last = self._last, status
        now_s = time.monotonic()
        for line in self._changes(before, status):
            self._err.print(line)
            self._spoke_s = now_s
        if self._live is None and status.phase is Phase.WORKING and now_s - self._spoke_s >= self._still_s:
            self._spoke_s = now_s
            for text in _waiting(status):
                self._err.print(text, markup=False)
        if before is None or before.phase is not status.phase:
            self._phase(before, status)
        if self._live is not None:
            # The empty line below is where a terminal echoes ^C: behind a row as wide as the screen it
            # would wrap, and the display would lose count of its lines.
            self._live.update(Group(_table(status), Text()), refresh=True)

    def say(self, text: str) -> None:
        """One sentence for the operator."""
        self._err.print(text, markup=False)

    def _changes(self, before: Status | None, status: Status) -> Iterator[Text]:
        """A line for each instance whose state is another one than before."""
        known = {i.name: i for i in before.instances} if before else {}
        now_s = time.monotonic()
        for i in status.instances:
            old = known.get(i.name)
            if old is not None and (old.state, old.incarnation) == (i.state, i.incarnation):
                continue
            entered_s = now_s - i.since_s
            # Two clocks are read one after the other, so the difference may fall below nothing.
            spent_s = max(0.0, entered_s - self._since_s.get(i.name, entered_s))
            self._since_s[i.name] = entered_s
            if i.state is State.PENDING:
                continue
            # One that begins with an error was found dead: why it is started at all.
            fresh = old is None or old.state is State.PENDING
            begins = fresh and i.state is State.STARTING and not i.restarts
            why = i.last_error if begins or i.state in (State.BACKOFF, State.FATAL) else ""
            timed = old is not None and old.state is not State.PENDING and i.state not in ASKED
            took = f" after {brief_s(spent_s)}" if timed else ""
            yield Text.assemble(
                f"{i.name:<16} ", (i.state.name, STYLES.get(i.state, "")), took, f": {why}" if why else ""
            )

    def _phase(self, before: Status | None, status: Status) -> None:
        if status.phase is Phase.READY:
            self._ready(status)
        elif status.phase is Phase.FAILED:
            for line in failures(status):
                self._err.print(line, markup=False, style="red")
        elif status.phase is Phase.STOPPED and before is not None:
            self._err.print("all stopped")

    def _ready(self, status: Status) -> None:
        """Print the URL, the first time for whoever reads our output."""
        again, self._told = self._told, True
        # On one terminal only the live display knows where to write; a pipe gets the URL alone.
        console = self._err if again or (self._live is not None and self._out.is_terminal) else self._out
        for url in urls(status):
            console.print(f"ready again: {url}" if again else url, markup=False)


def _waiting(status: Status) -> Iterator[str]:
    """A line for each instance that is still on its way."""
    for i in status.instances:
        if i.state not in SETTLED:
            yield f"{i.name:<16} still {i.state.name} after {brief_s(i.since_s)}: {_now(i)}"


def _now(i: InstanceStatus) -> str:
    """What an instance is about: its last line and what it waits for."""
    if i.state is not State.STARTING:
        return i.detail or i.last_error
    return f"{i.last_line}  [{i.detail}]" if i.detail and i.last_line else i.last_line or i.detail


def _table(status: Status) -> Table:
    table = Table(box=None, pad_edge=False, expand=True)
    for name in ("INSTANCE", "STATE", "FOR"):
        table.add_column(name, no_wrap=True)
    table.add_column("NOW", no_wrap=True, ratio=1, overflow="ellipsis")
    for i in status.instances:
        table.add_row(
            i.name, Text(i.state.name, style=STYLES.get(i.state, "")), brief_s(i.since_s), Text(_now(i))
        )
    return table


def _last_error(i: InstanceStatus) -> str:
    """Its last error; of one that has recovered, with how long that is past at least."""
    if not i.last_error or i.state is not State.READY or i.uptime_s is None:
        return i.last_error
    return f"{i.last_error}, over {brief_s(i.uptime_s)} ago"


def _circuit(i: InstanceStatus) -> str:
    """That the router keeps requests from it, where that is so."""
    if i.circuit in (None, Circuit.CLOSED):
        return ""
    tried = "is about to be tried" if i.circuit == Circuit.HALF_OPEN else "gets no requests for now"
    return f"circuit {i.circuit}: it failed, and {tried}"


def pair_lines(pairs: Sequence[BadPair]) -> Iterator[str]:
    """The bad pairs, a line for each reason, with the first few of each."""
    reasons: dict[str, list[str]] = {}
    for prefill, decode, why in pairs:
        reasons.setdefault(why, []).append(f"{prefill} > {decode}" if prefill else decode)
    if reasons:
        yield ""
    for why, names in reasons.items():
        more = f" and {len(names) - PAIRS_SHOWN} more" if len(names) > PAIRS_SHOWN else ""
        yield f"bad pairs: {', '.join(names[:PAIRS_SHOWN])}{more}: {why}"


def ps_lines(instances: Sequence[InstanceStatus]) -> Iterator[str]:
    """`ps` as text: a row each, as narrow as a terminal is; below them what each waits for, and what went
    wrong with it last.

    The pool has no column: an instance's name begins with it.
    """
    rows = [["INSTANCE", "ROLE", "STATE", "PID", "UPTIME", "RESTARTS", "URL"]]
    for i in instances:
        uptime = brief_s(i.uptime_s) if i.uptime_s is not None else "-"
        rows.append([i.name, i.role, i.state.name, str(i.pid or "-"), uptime, str(i.restarts), i.url])
    yield from columns(rows)
    told = [(i, text) for i in instances for text in (i.detail, _circuit(i), _last_error(i)) if text]
    if told:
        yield ""
    for i, text in told:
        yield f"{i.name}: {text}"
