"""The router as one process: all its parts wired together, listening, reloading, stopping with a drain."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import uvloop

from orchestrator import __version__
from orchestrator.clock import Clock, SystemClock
from orchestrator.core.address import http_url, is_wildcard, join_host_port
from orchestrator.core.types import Inflight
from orchestrator.errors import LaunchError, PdctlError, PolicyError, Problem, TopologyError
from orchestrator.fabric import ports, unix
from orchestrator.metrics import RouterMetrics
from orchestrator.router import figures, logs
from orchestrator.router.admin import Admin, Control, Reload
from orchestrator.router.app import RouterApp
from orchestrator.router.decisions import DecisionLog
from orchestrator.router.endpoints import Registry
from orchestrator.router.hung import Watchdog
from orchestrator.router.policies import Policies
from orchestrator.router.replies import wire_error
from orchestrator.router.rooms import PagedRandom
from orchestrator.router.scrape import Prober
from orchestrator.router.settings import wire_limits
from orchestrator.topology.plan import Plan, RouterPlan
from orchestrator.topology.scheduler import adopt, make_predictor, make_scheduler
from orchestrator.wire.client import Pool
from orchestrator.wire.server import Handler, OnBad, Server, WireLimits, serve

log = logging.getLogger(__name__)

STREAM_FDS = 3
"""Sockets of one disaggregated stream: the client's, and one to each engine."""

SPARE_FDS = 128
"""Descriptors for everything but streams: listeners, probes, the log, libraries."""

MAX_FDS = 1_048_576
"""The kernel's usual ceiling, taken where the hard limit is infinite."""

LAG_PERIOD_S = 0.25

CUT_S = 1.0
"""How long the last words of what is cut at the drain's end may take to be sent."""

GC_THRESHOLD = 20_000
"""Containers allocated and not freed before the collector looks; the default, 700, is passed by a burst."""

ADMIN_BODY_BYTES = 1024 * 1024


class Router:
    """One router over one plan, to be made inside its event loop.

    `reread` reads the plan anew for a reload; None: it cannot be reloaded. `socket` is the path of the
    admin's Unix socket. Raises TopologyError for a plan without a pdctl router, an engine that does not
    load or a scheduling profile that does not build.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        reread: Callable[[], Plan] | None = None,
        socket: Path | None = None,
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
        self._plan = plan
        self._reread = reread
        self._socket = socket
        self._servers: list[Server] = []
        self._client_server: Server | None = None
        self._lag: asyncio.TimerHandle | None = None
        self.metrics = RouterMetrics((i.model for i in plan.instances), self._clock, __version__)
        self.registry = Registry(plan, self._clock, self.metrics, inflight=self._inflight)
        self.policies = Policies(router.scheduling, plan.base_dir, self._clock.now_s, self._policy_failed)
        profile = self.policies.watched()
        self.predictor = make_predictor(router.predictor, plan.base_dir)
        self.scheduler = make_scheduler(
            router,
            profile,
            self.predictor,
            rng=rng,
            serves=self.registry.serves,
            on_policy_error=self._policy_failed,
            on_accounting_error=self._accounting_failed,
        )
        self.registry.on_incarnation(self.scheduler.prefix.drop)
        self._pool = Pool(connect_timeout_s=router.timeouts.connect_s)
        # Apart from the streams' pool, so that probes neither take their connections nor count as theirs.
        self._probe_pool = Pool(connect_timeout_s=router.timeouts.connect_s, max_idle=4)
        self._prober = Prober(
            self.registry, self._probe_pool, self.metrics, self._clock, rng, router.credentials.engine_key
        )
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
        )
        figures.follow(self.metrics, lambda: self.scheduler.cached, self.predictor)
        self.metrics.watch(lambda: self.scheduler.ledger.snapshot(self._clock.now_s()))
        self.admin = Admin(self._control(), router.credentials.admin_key)

    @property
    def url(self) -> str:
        """Where clients reach it, with the port that was really bound."""
        assert self._client_server is not None
        router = own_plan(self._plan)
        host = "127.0.0.1" if is_wildcard(router.host) else router.host
        return http_url(host, self._client_server.port)

    async def start(self) -> None:
        """Listen and probe. Raises LaunchError when an address is taken or cannot be had."""
        router = own_plan(self._plan)
        limits = wire_limits(router.limits)
        small = WireLimits(max_body_bytes=ADMIN_BODY_BYTES)
        if self._socket is not None:
            await self._listen_unix(self._socket, small)
        admin = await self._listen(
            "admin", self.admin.handle, wire_error, router.admin_host, router.admin_port, small
        )
        app = self.app
        self._client_server = await self._listen(
            "client", app.handle, app.refuse, router.host, router.port, limits
        )
        self._prober.sync()
        self._tick_lag(None)
        log.info(
            "serving",
            extra={
                "url": self.url,
                "admin": join_host_port(router.admin_host, admin.port),
                "endpoints": len(self._plan.instances),
                "pid": os.getpid(),
            },
        )

    async def stop(self) -> bool:
        """Take no more, let what runs end within `drain_s`, cut the rest; True if nothing was cut."""
        deadline_s = own_plan(self._plan).drain_s
        self.app.draining = True
        log.info("draining", extra={"inflight": self.app.inflight, "deadline_s": deadline_s})
        whole = True
        if self._client_server is not None:
            ended = asyncio.create_task(self._client_server.drained(deadline_s + CUT_S))
            await asyncio.wait((ended,), timeout=deadline_s)
            whole = ended.done()
            await self.app.close()
            await ended
        await self.close()
        log.log(logging.INFO if whole else logging.WARNING, "stopped", extra={"all_finished": whole})
        return whole

    async def close(self) -> None:
        """Stop everything at once; streams that still run end in an error event."""
        if self._lag is not None:
            self._lag.cancel()
        await self.app.close()
        for server in self._servers:
            await server.drained(0.0)
        if self._socket is not None and self._servers:
            self._socket.unlink(missing_ok=True)
        await self._prober.close()
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
        self.registry.apply(plan)
        profile = self.policies.use(router.scheduling, plan.base_dir)
        adopt(self.scheduler, router, profile)
        self.metrics.serve_models(i.model for i in plan.instances)
        self._prober.key = router.credentials.engine_key
        self.admin.key = router.credentials.admin_key
        self._decisions.settings = router.decisions
        self.app.apply(plan, profile.headers)
        self._plan = plan
        self._prober.sync()
        fixed = ("host", "port", "admin_host", "admin_port", "limits")
        stale = [name for name in fixed if getattr(router, name) != getattr(before, name)]
        return {"endpoints": len(plan.instances), "needs_restart": stale, "policies": tried}

    def _control(self) -> Control:
        return Control(
            registry=self.registry,
            asks=self._prober,
            clock=self._clock,
            render=self._render,
            inflight=self._inflight,
            requests=lambda: self.app.inflight,
            forget=self.scheduler.prefix.flush,
            reload=self.reload,
            draining=lambda: self.app.draining,
            version=__version__,
        )

    def _inflight(self, endpoint_id: str) -> Inflight:
        return self.scheduler.ledger.inflight(endpoint_id)

    def _render(self) -> bytes:
        self.metrics.inflight(self.app.inflight, self.app.queued)
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

    async def _listen(
        self, what: str, handler: Handler, on_bad: OnBad, host: str, port: int, limits: WireLimits
    ) -> Server:
        try:
            server = await serve(handler, host=host, port=port, limits=limits, on_bad=on_bad)
        except OSError as error:
            await self.close()
            raise _not_bound(what, host, port, error) from error
        self._servers.append(server)
        return server

    async def _listen_unix(self, path: Path, limits: WireLimits) -> None:
        try:
            sock = unix.bind(path)
        except FileExistsError as error:
            raise LaunchError(
                f"another router serves this state directory: {path}", reason="taken"
            ) from error
        except OSError as error:
            raise LaunchError(f"cannot make the socket {path}: {error.strerror}", reason="socket") from error
        server = await serve(self.admin.handle_trusted, sock=sock, limits=limits, on_bad=wire_error)
        self._servers.append(server)

    def _tick_lag(self, due_s: float | None) -> None:
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        if due_s is not None:
            self.metrics.loop_lag(max(0.0, now_s - due_s))
        next_s = now_s + LAG_PERIOD_S
        self._lag = loop.call_at(next_s, self._tick_lag, next_s)


def own_plan(plan: Plan) -> RouterPlan:
    """The router's part of the plan. Raises TopologyError when the plan has another router, or none."""
    if plan.router is None or plan.router.kind != "pdctl":
        kind = "none" if plan.router is None else plan.router.kind
        raise TopologyError(
            [Problem(f"router.kind is {kind}", file=plan.file, field="router.kind", hint="set it to pdctl")]
        )
    return plan.router


def _not_bound(what: str, host: str, port: int, error: OSError) -> LaunchError:
    where = join_host_port(host, port)
    holder = ports.holder(port)
    if holder is not None:
        return LaunchError(f"the {what} address {where} is taken by {holder}", reason="port-taken")
    return LaunchError(f"cannot listen on the {what} address {where}: {error.strerror}", reason="not-bound")


def raise_fd_limit() -> int:
    """Lift the soft limit of open files to the hard one; the disaggregated streams that it is enough for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_FDS if hard == resource.RLIM_INFINITY else hard
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        wanted = MAX_FDS if soft == resource.RLIM_INFINITY else soft
    else:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return max(0, wanted - SPARE_FDS) // STREAM_FDS


def run_router(
    plan: Plan,
    *,
    reread: Callable[[], Plan] | None = None,
    socket: Path | None = None,
    on_ready: Callable[[str], None] | None = None,
) -> int:
    """Serve `plan` until SIGTERM or SIGINT, then drain; 0. A second signal stops at once; SIGHUP reloads.

    `on_ready` is told the URL for clients once it listens. Raises what `Router` and its `start` raise.
    """
    router = own_plan(plan)
    credentials = router.credentials
    keys = [*credentials.client_keys, credentials.engine_key or "", credentials.admin_key or ""]
    for tenant in router.tenants.values():
        keys.extend(tenant.get("keys", ()) if isinstance(tenant, Mapping) else ())
    logs.set_up(keys, level=logs.level_of(os.environ))
    streams = raise_fd_limit()
    enough = streams >= router.limits.max_inflight
    fields = {"streams": streams, "max_inflight": router.limits.max_inflight}
    log.log(logging.INFO if enough else logging.WARNING, "open files allow this many streams", extra=fields)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(plan, reread, socket, on_ready))


async def _run(
    plan: Plan,
    reread: Callable[[], Plan] | None,
    socket: Path | None,
    on_ready: Callable[[str], None] | None,
) -> int:
    router = Router(plan, reread=reread, socket=socket)
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()

    def hang_up() -> None:
        try:
            router.reload()
        except PdctlError:
            return  # logged and counted there

    loop.add_signal_handler(signal.SIGHUP, hang_up)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked.set)
    await router.start()
    watchdog = Watchdog(loop)
    # What was made by now lives as long as the process: the collector need not look at it again.
    gc.collect()
    gc.freeze()
    # Requests leave no cycles behind them, so that the collector finds next to nothing: let it look seldom.
    gc.set_threshold(GC_THRESHOLD)
    if on_ready is not None:
        on_ready(router.url)
    await asked.wait()
    watchdog.stop()
    stopping = asyncio.create_task(router.stop())
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.cancel)
    try:
        await stopping
    except asyncio.CancelledError:
        log.warning("told to stop a second time: what was running is cut")
        await router.close()
    return 0
