"""The decision log: one line for each request that is recorded, when it has ended; never what it said."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import orjson

from orchestrator.clock import Clock
from orchestrator.core.slo import SloClass
from orchestrator.core.types import End, Outcome
from orchestrator.router.decisionfiles import DecisionFiles
from orchestrator.router.decisionline import Closed, entry
from orchestrator.router.logs import Seldom
from orchestrator.router.promises import Kept, kept
from orchestrator.router.record import Record
from orchestrator.topology.plan import Decisions, Plan

log = logging.getLogger(__name__)

FLUSH_S = 1.0
"""What is lost at most when the process is killed."""

MAX_PENDING = 20_000
"""Records that wait to be written: some 40 MB. A disk that takes none makes no more of them."""

QUIET_RATE = 20.0
"""Ordinary requests a second that `sampled` records whatever its share: in a quiet deployment, all."""

NOTABLE_RATE = 200.0
"""Refusals, failures and broken promises recorded a second; a storm of them must not wash out all else."""

CLOSE_S = 5.0
"""How long the last records may take to be written when the router stops."""


class Counts(Protocol):
    """What the log counts; `RouterMetrics` is one."""

    def decision(self, result: str, number: int = 1) -> None:
        """Records `written`, or dropped: `disk`, `rate` or `overflow`."""
        ...

    def promise(self, slo_class: str, verdict: str) -> None:
        """A request of a class ended."""
        ...


class Budget:
    """So many a second, and as many at once as a second brings."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._left = rate
        self._at_s = 0.0

    def left(self, now_s: float) -> bool:
        """Whether there is one."""
        self._left = min(self._rate, self._left + (now_s - self._at_s) * self._rate)
        self._at_s = now_s
        return self._left >= 1.0

    def take(self, now_s: float) -> bool:
        """Take one, if there is one."""
        if not self.left(now_s):
            return False
        self._left -= 1.0
        return True


class DecisionLog:
    """Records requests that end, in batches, from a thread of its own.

    A request is recorded if it was refused, has failed or broke its promise, if its id falls into the
    sampled share, or while there are few. `settings` may be replaced. Made within a running loop.
    """

    def __init__(
        self,
        settings: Decisions,
        files: DecisionFiles,
        clock: Clock,
        counts: Counts,
        block_tokens: int = 128,
    ) -> None:
        self.settings = settings
        self._files = files
        self._clock = clock
        self._counts = counts
        self._block_tokens = block_tokens
        self._seldom = Seldom(clock)
        self._quiet = Budget(QUIET_RATE)
        self._notable = Budget(NOTABLE_RATE)
        self._pending: list[Closed] = []
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None
        self._writer = ThreadPoolExecutor(1, "decisions")

    def wants(self, request_id: str) -> bool:
        """Whether a request that is being decided will be recorded even if all goes well with it."""
        settings = self.settings
        if settings.record == "off":
            return False
        return (
            settings.record == "full"
            or _sampled(request_id, settings.sample)
            or self._quiet.left(self._clock.now_s())
        )

    def ended(self, record: Record, outcome: Outcome, slo: SloClass | None) -> None:
        """A request is over: count how its promise was kept, and record it if it is to be."""
        verdict = None
        if slo is not None:
            due_s = _due_s(record)
            verdict = kept(slo, outcome, due_s, 1 if record.view is None else record.view.n)
            if verdict is not None:
                self._counts.promise(slo.name, verdict.verdict)
        recorded = self._recorded(outcome, verdict)
        if recorded is not None:
            self._add(record, outcome, verdict, recorded)

    @classmethod
    def of(cls, plan: Plan, clock: Clock, counts: Counts) -> DecisionLog:
        """The log of a plan that has a router, in its state directory."""
        assert plan.router is not None
        settings = plan.router.decisions
        files = DecisionFiles(Path(plan.state_dir) / "decisions", settings.keep_bytes)
        return cls(settings, files, clock, counts)

    async def close(self) -> None:
        """Write what is left, as far as the disk takes it in time."""
        if self._timer is not None:
            self._timer.cancel()
        try:
            async with asyncio.timeout(CLOSE_S):
                if self._writing is not None:
                    await self._writing
                if self._pending:
                    await self._flush()
        except TimeoutError:
            self._counts.decision("disk", len(self._pending))
        self._writer.shutdown(wait=False, cancel_futures=True)

    def _recorded(self, outcome: Outcome, verdict: Kept | None) -> str | None:
        """Why the request is recorded; None if it is not."""
        settings = self.settings
        if settings.record == "off":
            return None
        now_s = self._clock.now_s()
        notable = str(outcome.end) if outcome.end in _NOTABLE else ""
        if not notable and verdict is not None and verdict.missed:
            notable = "slo-missed"
        if settings.record == "full":
            return notable or "full"
        if _sampled(outcome.request_id, settings.sample):
            return notable or "sample"
        if notable:
            if self._notable.take(now_s):
                return notable
            self._counts.decision("rate")
            return None
        return "quiet" if self._quiet.take(now_s) else None

    def _add(self, record: Record, outcome: Outcome, verdict: Kept | None, recorded: str) -> None:
        if len(self._pending) >= MAX_PENDING:
            self._counts.decision("overflow")
            return
        arrived_s = self._clock.wall_s() - (self._clock.now_s() - record.arrived_s)
        self._pending.append(
            Closed(
                recorded,
                arrived_s,
                outcome,
                str(record.kind),
                record.model,
                record.tenant,
                record.client_id,
                record.clamped_from,
                record.message,
                record.view,
                record.assign,
                record.bind,
                record.reject,
                tuple(record.tries),
                verdict,
            )
        )
        if self._timer is None:
            self._timer = self._loop.call_later(FLUSH_S, self._due)

    def _due(self) -> None:
        self._timer = None
        if self._writing is None or self._writing.done():
            self._writing = self._loop.create_task(self._flush())
        else:
            self._timer = self._loop.call_later(FLUSH_S, self._due)

    async def _flush(self) -> None:
        batch, self._pending = self._pending, []
        try:
            await self._loop.run_in_executor(self._writer, self._write, batch)
        except OSError as error:
            self._counts.decision("disk", len(batch))
            times = self._seldom.due("disk")
            if times is not None:
                log.warning("decisions are not recorded", extra={"why": str(error), "times": times})
        else:
            self._counts.decision("written", len(batch))

    def _write(self, batch: Sequence[Closed]) -> None:
        """In the thread: make the lines and write them."""
        lines = []
        for closed in batch:
            lines.append(orjson.dumps(entry(closed, self.settings.hashes, self._block_tokens)))
            # Lets the event loop run between two lines; it would wait 5 ms for the interpreter else.
            time.sleep(0)
        self._files.append(b"\n".join(lines) + b"\n")


_NOTABLE = frozenset((End.REFUSED, End.FAILED, End.BROKEN))


def _sampled(request_id: str, share: float) -> bool:
    """By the id alone, so that everybody who sees it decides alike."""
    return int(request_id[:8], 16) < share * 0x1_0000_0000


def _due_s(record: Record) -> float | None:
    for told in (record.assign, record.reject):
        if told is not None and told.predicted is not None:
            return told.predicted.due_s
    return None
