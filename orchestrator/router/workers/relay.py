"""One relay process from the inside: the router's data path, with the scheduler behind a socket."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from orchestrator import __version__
from orchestrator.clock import SystemClock
from orchestrator.core.tenants import TenantsElsewhere
from orchestrator.errors import PdctlError
from orchestrator.fabric import unix
from orchestrator.metrics import RouterMetrics
from orchestrator.router.app import RouterApp
from orchestrator.router.decisions import DecisionLog
from orchestrator.router.openfiles import streams_allowed
from orchestrator.router.rooms import PagedRandom
from orchestrator.router.settings import wire_limits
from orchestrator.router.tls import Secured
from orchestrator.router.workers import messages, tally
from orchestrator.router.workers.link import Link
from orchestrator.router.workers.messages import Kind
from orchestrator.router.workers.remote import RemotePairs, RemoteScheduler
from orchestrator.router.workers.views import Mirror, note_frame
from orchestrator.topology.plan import Plan, parse
from orchestrator.wire.client import Pool
from orchestrator.wire.server import Server, serve

log = logging.getLogger(__name__)

CUT_S = 1.0
"""How long the last words of what is cut at a drain's end may take to be sent."""

COUNTS_S = 1.0
"""How often counters are told unasked: what of them is lost at most when a relay is killed."""

REJOIN_S = 0.1
"""How often a relay looks whether there is a scheduler again."""

LAG_S = 0.25


def plan_frame(plan: bytes, headers: Sequence[str], heeds: frozenset[str]) -> bytes:
    """A PLAN frame: `plan` by `topology.plan.dump`, the headers that policies read, and what of a leg's
    progress the scheduler heeds."""
    told = {"plan": plan.decode(), "headers": list(headers), "heeds": sorted(heeds)}
    return messages.json_frame(Kind.PLAN, told)


class Relay:
    """Serves `listening` by the plan that it is told over its link, until it is told to stop, or retires for
    want of a scheduler. `rejoin` is where a scheduler that is started anew will listen."""

    def __init__(self, listening: Sequence[socket.socket], rejoin: Path | None) -> None:
        self.ended = asyncio.Event()
        self._listening, self._rejoin = listening, rejoin
        self._loop = asyncio.get_running_loop()
        self._link = Link(self._heard, self._lost)
        self._tasks: set[asyncio.Task[None]] = set()
        self._leaving: asyncio.Task[None] | None = None
        self._server: Server | None = None
        self._made = self._greeted = False
        self._clock = SystemClock()
        self._timer = self._loop.call_later(COUNTS_S, self._tell_counts)
        self._lag = self._loop.call_later(LAG_S, self._tick_lag, self._loop.time() + LAG_S)
        self._plan: Plan
        self._metrics: RouterMetrics
        self._tally: tally.Tally
        self._mirror: Mirror
        self._scheduler: RemoteScheduler
        self._pool: Pool
        self._decisions: DecisionLog
        self._app: RouterApp
        self._secured: Secured | None = None

    async def join(self, sock: socket.socket) -> None:
        """Speak with the scheduler over `sock`."""
        await self._loop.create_unix_connection(lambda: self._link, sock=sock)
        self._link.send(messages.json_frame(Kind.HELLO, (messages.VERSION, os.getpid())))

    async def drain(self, deadline_s: float) -> None:
        """Take no more, let what runs end within the deadline, cut the rest."""
        if self._server is not None:
            self._app.draining = True
            ended = self._loop.create_task(self._server.drained(deadline_s + CUT_S))
            await asyncio.wait((ended,), timeout=deadline_s)
            await self._app.close()
            await self._server.drained(CUT_S)
            ended.cancel()
        await self._close()

    async def retire(self) -> None:
        """Listen no more, for others do, and end when the last connection has."""
        if self._server is not None:
            await self._server.retired()
        await self._close()

    def leave(self, how: Any) -> None:
        """Drain or retire, whatever was begun of that before."""
        if self._leaving is not None:
            self._leaving.cancel()
        self._leaving = self._spawn(how)

    async def _close(self) -> None:
        self._timer.cancel()
        self._lag.cancel()
        if self._server is not None:
            await self._app.close()
            await self._decisions.close()
            self._scheduler.close()
            self._pool.close()
            self._send_counts()
        self._link.close()
        self.ended.set()

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a worker cannot go on", exc_info=error)
            self.ended.set()

    # -- what the scheduler says

    def _heard(self, kind: int, body: bytes) -> None:
        if kind == Kind.DECISION:
            self._scheduler.decided(messages.decided(body))
        elif kind == Kind.VIEWS:
            told, lazy = orjson.loads(body)
            self._app.pairs.lazy = lazy
            self._mirror.told(told)
        elif kind == Kind.PLAN:
            self._take_plan(body)
        elif kind == Kind.HUNG:
            self._mirror.hung(*orjson.loads(body))
        elif kind == Kind.ASK_COUNTS:
            self._send_counts(asked=True)
        elif kind == Kind.DRAIN:
            self.leave(self.drain(float(orjson.loads(body))))
        elif kind == Kind.RETIRE:
            self.leave(self.retire())
        else:
            raise messages.BadFrame(f"the scheduler sent a message of kind {kind}")

    def _take_plan(self, body: bytes) -> None:
        told = orjson.loads(body)
        plan, headers = parse(told["plan"].encode()), tuple(told["headers"])
        if not self._made:
            self._make(plan, headers, frozenset(told["heeds"]))
            self._spawn(self._serve())
        else:
            self._renew(plan, headers)
        if not self._greeted:
            self._greeted = True
            self._scheduler.linked(self._link.send)

    def _make(self, plan: Plan, headers: Sequence[str], heeds: frozenset[str]) -> None:
        assert plan.router is not None
        self._plan, self._made = plan, True
        self._metrics = RouterMetrics((i.model for i in plan.instances), self._clock, __version__)
        self._tally = tally.Tally(self._metrics)
        self._mirror = Mirror(plan, self._clock, self._note)
        self._decisions = DecisionLog.of(plan, self._clock, self._metrics)
        self._scheduler = RemoteScheduler(heeds, self._decisions.wants)
        self._pool = Pool(connect_timeout_s=plan.router.timeouts.connect_s)
        self._secured = None if plan.router.tls is None else Secured(plan.router.tls)
        self._app = RouterApp(
            plan,
            self._mirror,
            self._scheduler,
            self._pool,
            self._metrics,
            self._clock,
            PagedRandom(),
            headers,
            self._decisions,
            tenants=TenantsElsewhere(self._scheduler.over),
            pairs=RemotePairs(self._note),
        )
        self._scheduler.deliver = self._app.desk.deliver

    def _renew(self, plan: Plan, headers: Sequence[str]) -> None:
        """A reload, or a scheduler that was started anew."""
        assert plan.router is not None
        try:
            if self._secured is not None:
                self._secured.load()
            self._mirror.apply(plan)
        except PdctlError as error:
            log.error("a worker keeps the plan before", extra={"why": error.message})
            return
        self._plan = plan
        self._metrics.serve_models(i.model for i in plan.instances)
        self._decisions.settings = plan.router.decisions
        self._app.apply(plan, headers)

    async def _serve(self) -> None:
        router = self._plan.router
        assert router is not None
        limits = wire_limits(router.limits, streams_allowed())
        over = None if self._secured is None else self._secured.context
        first, *rest = self._listening
        app = self._app
        self._server = await serve(app.handle, sock=first, limits=limits, on_bad=app.refuse, tls=over)
        for sock in rest:
            await self._server.also(sock)
        self._link.send(messages.frame(Kind.SERVING))

    def _note(self, told: Sequence[Any]) -> None:
        self._link.send(note_frame(told))

    # -- counters

    def _tell_counts(self) -> None:
        self._timer = self._loop.call_later(COUNTS_S, self._tell_counts)
        self._send_counts()

    def _send_counts(self, asked: bool = False) -> None:
        if self._server is None or self._link.closed:
            return
        grown = self._tally.take()
        if grown or asked:
            self._link.send(messages.frame(Kind.COUNTS, grown))

    def _tick_lag(self, due_s: float) -> None:
        now_s = self._loop.time()
        if self._server is not None:
            self._metrics.loop_lag(max(0.0, now_s - due_s))
        self._lag = self._loop.call_at(now_s + LAG_S, self._tick_lag, now_s + LAG_S)

    # -- without a scheduler

    def _lost(self) -> None:
        """The scheduler is gone: what runs goes on, and another worker takes what comes."""
        if self.ended.is_set():
            return
        if self._server is None:
            self.ended.set()
            return
        log.warning("the scheduler is gone; what runs goes on", extra={"inflight": self._app.inflight})
        self._scheduler.lost()
        self._greeted = False
        if self._leaving is None:
            assert self._plan.router is not None
            self.leave(self._retire_within(self._plan.router.drain_s))
        if self._rejoin is not None:
            self._spawn(self._look_for(self._rejoin))

    async def _retire_within(self, deadline_s: float) -> None:
        assert self._server is not None
        retired = self._loop.create_task(self._server.retired())
        await asyncio.wait((retired,), timeout=deadline_s)
        retired.cancel()
        if not self._link.closed:
            # Known to a scheduler again: it says when, or it is over when the last stream is.
            await self._server.retired()
        await self.drain(0.0)

    async def _look_for(self, path: Path) -> None:
        while not self.ended.is_set():
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                with unix.short(path) as name:
                    sock.connect(name)
            except OSError:
                sock.close()
                await asyncio.sleep(REJOIN_S)
                continue
            self._link = Link(self._heard, self._lost)
            await self.join(sock)
            log.info("a scheduler is there again", extra={"inflight": self._app.inflight})
            return
