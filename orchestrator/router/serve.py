"""The router as one process: all its parts wired together, listening, reloading, stopping with a drain."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

from orchestrator import __version__
from orchestrator.clock import Clock, SystemClock
from orchestrator.core.address import http_url, is_wildcard, join_host_port
from orchestrator.core.types import Inflight
from orchestrator.errors import PdctlError, PolicyError, Problem, TopologyError
from orchestrator.metrics import RouterMetrics
from orchestrator.policy.build import Profile
from orchestrator.router import figures, logs
from orchestrator.router.admin import Admin, Control, Reload
from orchestrator.router.app import RouterApp
from orchestrator.router.canaries import Canaries
from orchestrator.router.decisions import DecisionLog
from orchestrator.router.endpoints import Registry
from orchestrator.router.gates import GateFile
from orchestrator.router.kvside import KvSide
from orchestrator.router.listening import Front, Listening
from orchestrator.router.policies import Policies
from orchestrator.router.rightanswers import AnswerFile
from orchestrator.router.rooms import PagedRandom
from orchestrator.router.scrape import Prober
from orchestrator.router.workers.crew import Crew
from orchestrator.router.workers.hub import Hub
from orchestrator.router.workers.relay import plan_frame
from orchestrator.topology.plan import Plan, RouterPlan, dump
from orchestrator.topology.scheduler import AnyScheduler, adopt, make_predictor, make_scheduler
from orchestrator.wire.client import Pool

log = logging.getLogger(__name__)

LAG_PERIOD_S = 0.25

CUT_S = 1.0
"""How long the last words of what is cut at the drain's end may take to be sent."""

MEET_S = 0.02
WARM_S = 5.0
"""How long a router gets to find the engines before it takes over from one that serves them."""

GATES = "gates.json"
"""Beside the admin's socket: what is kept from new work, for the router that comes after this one."""


class Router:
    """One router over one plan, to be made inside its event loop.

    `reread` reads the plan anew for a reload; None: it cannot be reloaded. `socket` is the path of the
    admin's Unix socket. `follow`: a router that answers there is followed, its listening sockets taken over
    once the engines are known. Raises TopologyError for a plan without a pdctl router, an engine that does
    not load or a scheduling profile that does not build.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        reread: Callable[[], Plan] | None = None,
        socket: Path | None = None,
        follow: bool = False,
        clock: Clock | None = None,
        rng: Random | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        # Rooms and ids must not be guessed, so each is drawn from the system. What only spreads load is not
        # worth a system call per draw.
        secret = rng or PagedRandom()
        rng = Random(secret.getrandbits(128))
        router = own_plan(plan)
        self._seldom = logs.Seldom(self._clock)
        self._plan, self._reread = plan, reread
        self._listening = Listening(router, socket, follow=follow)
        self._lag: asyncio.TimerHandle | None = None
        self.metrics = RouterMetrics((i.model for i in plan.instances), self._clock, __version__)
        gates = GateFile(None if socket is None else socket.with_name(GATES))
        self.registry = Registry(plan, self._clock, self.metrics, inflight=self._inflight, gates=gates)
        self.policies = Policies(router.scheduling, plan.base_dir, self._clock.now_s, self._policy_failed)
        profile = self.policies.watched()
        self.predictor = make_predictor(router.predictor, plan.base_dir)
        self.scheduler = self._make_scheduler(router, profile, rng)
        self.registry.on_incarnation(self.scheduler.prefix.drop)
        self._pool = Pool(connect_timeout_s=router.timeouts.connect_s)
        # Apart from the streams' pool, so that probes neither take their connections nor count as theirs.
        self._probe_pool = Pool(connect_timeout_s=router.timeouts.connect_s, max_idle=4)
        self._prober = Prober(
            self.registry, self._probe_pool, self.metrics, self._clock, rng, router.credentials.engine_key
        )
        self._kv = KvSide(plan, self.registry, self.scheduler, self._probe_pool, self.metrics)
        self._decisions = DecisionLog.of(plan, self._clock, self.metrics)
        self.app = RouterApp(
            plan,
            self.registry,
            self.policies.over(self.scheduler),
            self._pool,
            self.metrics,
            self._clock,
            secret,
            profile.headers,
            self._decisions,
            self._prober.poll,
            tokens=self._kv.tokens,
        )
        self._headers = profile.headers
        self._crew: Crew | None = None
        self._hub = self._make_workers(router, socket)
        self._canaries = self._make_canaries(AnswerFile.beside(socket, self.registry))
        self.metrics.watch(lambda: self.scheduler.ledger.snapshot(self._clock.now_s()))
        self.admin = Admin(self._control(), router.credentials.admin_key)

    def _make_scheduler(self, router: RouterPlan, profile: Profile, rng: Random) -> AnyScheduler:
        return make_scheduler(
            router,
            profile,
            self.predictor,
            rng=rng,
            serves=self.registry.serves,
            on_policy_error=self._policy_failed,
            on_accounting_error=self._accounting_failed,
        )

    def _make_workers(self, router: RouterPlan, socket: Path | None) -> Hub | None:
        """Where others serve clients, and this process schedules."""
        if router.workers == 1:
            return None
        hub = Hub(
            self.app,
            self.registry,
            self.scheduler.ledger,
            self.metrics,
            self._clock,
            lambda: plan_frame(dump(self._plan), sorted(self._headers), self.scheduler.heeds),
            lambda: own_plan(self._plan).limits.max_inflight,
        )
        crew = Crew(hub, self.metrics, router.workers, router.host, router.port, socket)
        self._listening.workers = self._crew = crew
        return hub

    def _make_canaries(self, answers: AnswerFile) -> Canaries:
        registry, pool, metrics = self.registry, self._probe_pool, self.metrics
        made = Canaries(registry, self.app, pool, metrics, self._clock, lambda: self._prober.key, answers)
        figures.follow(self.metrics, lambda: self.scheduler.cached, self.predictor, made.counts)
        return made

    @property
    def url(self) -> str:
        """Where clients reach it, with the port that was really bound."""
        router = own_plan(self._plan)
        host = "127.0.0.1" if is_wildcard(router.host) else router.host
        return http_url(host, self._listening.client.port, secure=router.tls is not None)

    @property
    def handed_over(self) -> asyncio.Event:
        """Set when another router serves in this one's place; `stop` then lets what runs here end."""
        return self._listening.handed_over

    async def start(self) -> None:
        """Listen and probe. Raises LaunchError when an address is taken or cannot be had."""
        router = own_plan(self._plan)
        self._canaries.start(router.canaries, self.policies.waits)
        self._prober.sync()
        try:
            if self._listening.follows or (self._crew is not None and self._crew.follows):
                await self._meet_engines()
            await self._listening.start(self.app, self.admin)
        except PdctlError:
            await self.close()
            raise
        self._tick_lag(None)
        log.info(
            "serving",
            extra={
                "url": self.url,
                "admin": join_host_port(router.admin_host, self._listening.admin.port),
                "endpoints": len(self._plan.instances),
                "pid": os.getpid(),
            },
        )

    async def stop(self) -> bool:
        """Take no more, let what runs end within `drain_s`, cut the rest; True if nothing was cut.

        Where another router has taken over, what still comes on connections from before is served too.
        """
        deadline_s = own_plan(self._plan).drain_s
        log.info("draining", extra={"inflight": self._under_way(), "deadline_s": deadline_s})
        client = self._listening.client
        if self.handed_over.is_set():
            ended = asyncio.create_task(client.retired())
        else:
            self.app.draining = True
            ended = asyncio.create_task(_drained(client, deadline_s + CUT_S))
        await asyncio.wait((ended,), timeout=deadline_s)
        whole = ended.done()
        await self.app.close()
        await client.drained(CUT_S)
        ended.cancel()
        await self.close()
        log.log(logging.INFO if whole else logging.WARNING, "stopped", extra={"all_finished": whole})
        return whole

    async def close(self) -> None:
        """Stop everything at once; streams that still run end in an error event."""
        if self._lag is not None:
            self._lag.cancel()
        await self.app.close()
        await self._listening.close()
        await self._canaries.close()
        await self._prober.close()
        self._kv.close()
        await self._decisions.close()
        self._probe_pool.close()
        self._pool.close()

    def reload(self, asked: Reload = Reload()) -> Mapping[str, Any]:
        """Read the plan anew and serve it; the one in use stays when this raises PdctlError.

        A new scheduling profile is tried on recorded requests before. Listen addresses and limits of the wire
        belong to the process: a change of them is told, not made.
        """
        try:
            if asked.dry_run and asked.scheduling is not None:
                return {"policies": self._tried(asked.scheduling, self._plan, asked)}
            told = self._reload(asked)
        except PdctlError as error:
            if not asked.dry_run:
                self.metrics.reload("refused")
                log.error("reload refused; the plan in use stays", extra={"why": error.message})
            raise
        if asked.dry_run:
            return told
        self.metrics.reload("ok")
        log.info("reloaded", extra=dict(told))
        return told

    def _tried(self, scheduling: Mapping[str, Any], plan: Plan, asked: Reload) -> str:
        made, serves = self.scheduler, self.registry.serves
        return self.policies.tried(scheduling, plan.base_dir, made, serves, force=asked.force)

    def _reload(self, asked: Reload) -> Mapping[str, Any]:
        if self._reread is None:
            raise TopologyError([Problem("this router was not started from a plan file; start it anew")])
        plan = self._reread()
        router, before = own_plan(plan), own_plan(self._plan)
        tried = self._tried(router.scheduling, plan, asked)
        if asked.dry_run:
            return {"policies": tried}
        self._listening.renew()
        self.registry.apply(plan)
        profile = self.policies.use(router.scheduling, plan.base_dir)
        adopt(self.scheduler, router, profile)
        self.metrics.serve_models(i.model for i in plan.instances)
        self._prober.key = router.credentials.engine_key
        self._kv.apply(router)
        self.admin.key = router.credentials.admin_key
        self._decisions.settings = router.decisions
        self.app.apply(plan, profile.headers)
        self._plan, self._headers = plan, profile.headers
        if self._hub is not None:
            self._hub.renew()
        self._prober.sync()
        fixed = ("host", "port", "admin_host", "admin_port", "limits", "tls", "workers")
        stale = [name for name in fixed if getattr(router, name) != getattr(before, name)]
        return {"endpoints": len(plan.instances), "needs_restart": stale, "policies": tried}

    async def _meet_engines(self) -> None:
        """Return when every engine is known and tried, or after `WARM_S`: one may be down for good."""
        loop, met = asyncio.get_running_loop(), False
        give_up_s = loop.time() + WARM_S
        while not met and loop.time() < give_up_s:
            await asyncio.sleep(MEET_S)
            met = all(s.joined for s in self.registry.states()) and self._canaries.settled

    def _control(self) -> Control:
        return Control(
            registry=self.registry,
            asks=self._prober,
            clock=self._clock,
            render=self._render,
            inflight=self._inflight,
            requests=self._under_way,
            ready=self.app.ready,
            forget=self.scheduler.prefix.flush,
            reload=self.reload,
            draining=lambda: self.app.draining,
            kv=self._kv.show,
            version=__version__,
            pairs=self._canaries.shown,
            fresh=None if self._hub is None else self._hub.fresh,
        )

    def _inflight(self, endpoint_id: str) -> Inflight:
        return self.scheduler.ledger.inflight(endpoint_id)

    def _under_way(self) -> int:
        return self.app.inflight + (0 if self._hub is None else len(self._hub.requests))

    def _render(self) -> bytes:
        self.metrics.inflight(self._under_way(), self.app.queued)
        return self.metrics.render()

    def _policy_failed(self, name: str, error: PolicyError) -> None:
        self.metrics.policy_error(name)
        times = self._seldom.due(f"policy {name}")
        if times is not None:
            fields = {"policy": name, "why": error.message, "times": times}
            log.warning("policy failed; bypassed", extra=fields)

    def _accounting_failed(self, error: PdctlError) -> None:
        times = self._seldom.due("accounting")
        if times is not None:
            log.error("in-flight accounting is off", extra={"why": error.message, "times": times})

    def _tick_lag(self, due_s: float | None) -> None:
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        if due_s is not None:
            self.metrics.loop_lag(max(0.0, now_s - due_s))
        next_s = now_s + LAG_PERIOD_S
        self._lag = loop.call_at(next_s, self._tick_lag, next_s)


async def _drained(server: Front, timeout_s: float) -> None:
    await server.drained(timeout_s)


def own_plan(plan: Plan) -> RouterPlan:
    """The router's part of the plan. Raises TopologyError when the plan has another router, or none."""
    if plan.router is None or plan.router.kind != "pdctl":
        kind = "none" if plan.router is None else plan.router.kind
        raise TopologyError(
            [Problem(f"router.kind is {kind}", file=plan.file, field="router.kind", hint="set it to pdctl")]
        )
    return plan.router
