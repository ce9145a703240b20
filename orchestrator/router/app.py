"""The router's client-facing application: a table of paths, and what the lives behind them share."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from dataclasses import replace
from random import Random
from typing import Protocol

from orchestrator import __version__
from orchestrator.clock import Clock
from orchestrator.core.address import join_host_port, split_http_url
from orchestrator.core.contracts import Scheduler
from orchestrator.core.hang import Signs
from orchestrator.core.pairs import Pairs
from orchestrator.core.retry import RetryBudget
from orchestrator.core.tenants import Tenants
from orchestrator.core.types import End, Endpoint, Outcome, PathKind, Snapshot
from orchestrator.engines.base import HttpCall
from orchestrator.errors import NoCapacity, NotServed, RequestError, TooLarge, WrongMethod
from orchestrator.router import dispatch, local, replies, road, watch
from orchestrator.router.ask import TooLong, ask
from orchestrator.router.decisions import DecisionLog
from orchestrator.router.desk import Desk
from orchestrator.router.forward import Unit
from orchestrator.router.givenup import Orphans
from orchestrator.router.offers import Registry
from orchestrator.router.rooms import Rooms
from orchestrator.router.settings import Settings
from orchestrator.router.tokens import Tokens
from orchestrator.topology.plan import Plan
from orchestrator.wire.client import Pool, WireError
from orchestrator.wire.exchange import Exchange
from orchestrator.wire.limits import Refusal

log = logging.getLogger(__name__)

HANDED_OVER = {
    "/v1/chat/completions": PathKind.CHAT,
    "/v1/completions": PathKind.COMPLETION,
    "/generate": PathKind.GENERATE,
    "/v1/embeddings": PathKind.EMBED,
    "/tokenize": PathKind.TOKENIZE,
    "/v1/responses": PathKind.RESPONSES,
    "/v1/messages": PathKind.MESSAGES,
}
"""POST paths that engines answer; every other path ends here."""

WITHOUT_KEY = frozenset(("/health", "/ready"))
"""Paths that say nothing but yes or no, for load balancers that have no key."""

HANG_UP_S = 5.0
"""How long an engine's abort call may take."""


class Metrics(dispatch.Counts, road.Counts, Protocol):
    """What the data path counts; `RouterMetrics` is one."""


class RouterApp:
    """Serves clients: `handle` is the wire server's handler.

    `policy_headers` are the request headers that scheduling policies read; `decisions` records what
    ends; `poll` reads an endpoint's load at once; `budget` bounds retries; `tokens` finds those of prompts;
    `tenants` and `pairs` stand for those of another process. Made within a running loop; `close` ends what it
    has running.
    """

    def __init__(
        self,
        plan: Plan,
        registry: Registry,
        scheduler: Scheduler,
        pool: Pool,
        metrics: Metrics,
        clock: Clock,
        rng: Random,
        policy_headers: Collection[str] = (),
        decisions: DecisionLog | None = None,
        poll: Callable[[str], None] | None = None,
        budget: RetryBudget | None = None,
        tokens: Tokens | None = None,
        tenants: Tenants | None = None,
        pairs: Pairs | None = None,
    ) -> None:
        self.draining = False
        self._registry = registry
        self._pool = pool
        self._metrics = metrics
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._connects: set[asyncio.Task[None]] = set()
        self._hang_ups: set[asyncio.Task[None]] = set()
        self._places: dict[str, tuple[Endpoint, road.Place]] = {}
        self._fresh_places: dict[str, road.Place] = {}
        self.units: set[Unit] = set()
        self._signs: dict[str, Signs] = {}
        self.orphans = Orphans(metrics)
        self._desk = Desk(scheduler, clock, None if decisions is None else decisions.wants, poll)
        # Not part of the port: a scheduler that does not say it is told everything.
        self._heeds: frozenset[str] = getattr(scheduler, "heeds", road.PROGRESS)
        settings = Settings.of(plan, policy_headers)
        self._dispatch = dispatch.Dispatch(
            settings=settings,
            road=self._road(settings),
            registry=registry,
            desk=self._desk,
            counts=metrics,
            rng=rng,
            recorder=decisions,
            budget=budget,
            tokens=tokens,
            tenants=tenants,
            pairs=pairs,
        )
        self._answers: dict[str, Callable[[Exchange], bytes]] = {
            "/health": lambda _: b'{"status":"ok"}',
            "/ready": lambda _: self.ready(),
            "/version": lambda _: b'{"version":"%b"}' % __version__.encode(),
            "/v1/models": lambda _: local.models(registry.models(), self._snapshot()),
            "/server_info": lambda _: local.server_info(self._snapshot(), __version__),
            "/get_server_info": lambda _: local.server_info(self._snapshot(), __version__),
        }
        registry.on_change(self._endpoints_changed)
        registry.on_incarnation(self._another_process)
        registry.on_hung(lambda endpoint, why: watch.lost(self.shared, endpoint, why))
        self._endpoints_changed()
        self._ticker = self._loop.call_later(self._period_s(), self._tick)

    @property
    def inflight(self) -> int:
        """Requests under way."""
        return len(self._dispatch.lives)

    @property
    def queued(self) -> int:
        """Those of them that wait for an endpoint."""
        return self._desk.waiting

    @property
    def shared(self) -> road.Road:
        """What units of legs share."""
        return self._dispatch.road

    def new_id(self) -> str:
        """An id for a request of the router's own."""
        return self._dispatch.new_id()

    @property
    def desk(self) -> Desk:
        """Where requests wait for their route."""
        return self._desk

    @property
    def tenants(self) -> Tenants:
        """What counts the requests of tenants with limits."""
        return self._dispatch.tenants

    @property
    def pairs(self) -> Pairs:
        """What is thought of pairs of endpoints."""
        return self._dispatch.pairs

    @property
    def rooms(self) -> Rooms:
        """The rooms of requests under way."""
        return self._dispatch.rooms

    def apply(self, plan: Plan, policy_headers: Collection[str] = ()) -> None:
        """Serve by `plan` from now on; requests under way go on by the old one."""
        settings = Settings.of(plan, policy_headers)
        self._dispatch.settings = settings
        self._dispatch.tenants.replace(settings.tenants)
        self._dispatch.road = self._road(settings)

    async def close(self) -> None:
        """Stop the timers, and end what still runs with an error."""
        self._ticker.cancel()
        self._desk.close()
        for life in tuple(self._dispatch.lives):
            life.stop()
        self.orphans.close()
        tasks = (*self._connects, *self._hang_ups)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def ready(self) -> bytes:
        """The answer while a request for some model could be served. Raises NoCapacity otherwise."""
        return local.ready(self._registry.models(), self._snapshot(), self.draining)

    def handle(self, exchange: Exchange) -> None:
        """Answer one request, now or from callbacks."""
        kind = HANDED_OVER.get(exchange.path)
        if kind is not None and exchange.method == "POST":
            self._dispatch.begin(exchange, kind)
            return
        request_id = self._dispatch.new_id()
        identity = replies.identity(request_id, replies.client_id(exchange))
        try:
            body = self._local(exchange)
        except RequestError as error:
            status = error.http_status
            exchange.respond(status, replies.error_body(error), replies.error_headers(error), identity)
            if exchange.path not in WITHOUT_KEY:
                # A load balancer that finds the router not ready asks on and on: no requests of anyone.
                outcome = Outcome(request_id, End.REFUSED, status, error.reason)
                self._metrics.request_done(outcome, "other", "")
        else:
            exchange.respond(200, body, replies.JSON, identity)

    def refuse(self, status: int, message: str) -> Refusal:
        """Refuse what never became a request: too large, malformed, or too slow to arrive."""
        request_id, reason = self._dispatch.new_id(), replies.wire_reason(status)
        self._metrics.request_done(Outcome(request_id, End.REFUSED, status, reason), "other", "")
        # A limit that is too low is found in the log; noise from strangers is not to fill it.
        level = logging.INFO if status == TooLarge.http_status else logging.DEBUG
        log.log(level, "refused", extra={"request_id": request_id, "status": status, "why": message})
        answer = replies.wire_error(status, message)
        return answer._replace(headers=((replies.REQUEST_ID, request_id.encode()), *answer.headers))

    def _local(self, exchange: Exchange) -> bytes:
        path = exchange.path
        if path not in WITHOUT_KEY:
            self._dispatch.settings.clients.who(exchange)
        answer = self._answers.get(path)
        known = answer is not None or path in HANDED_OVER or path.startswith("/v1/models/")
        if not known:
            message = f"there is no {path!r} here; requests for anything unlisted never reach an engine"
            raise NotServed(message, reason="unknown-path")
        if path in HANDED_OVER or exchange.method not in ("GET", "HEAD"):
            allow = "POST" if path in HANDED_OVER else "GET, HEAD"
            raise WrongMethod(f"{path} takes {allow}, not {exchange.method}", allow=allow)
        if answer is None:
            return local.model(path.removeprefix("/v1/models/"), self._registry.models(), self._snapshot())
        return answer(exchange)

    # -- what units of legs use

    def _road(self, settings: Settings) -> road.Road:
        return road.Road(
            pool=self._pool,
            clock=self._clock,
            timeouts=settings.timeouts,
            counts=self._metrics,
            place=self._place,
            progress=self._desk.progress,
            hang_up=self._hang_up,
            trouble=self._registry.leg_failed,
            watch=self.units,
            orphans=self.orphans,
            well=self._registry.well,
            signs=self._signs,
            key=settings.engine_key,
            heeds=self._heeds,
            connects=self._connects,
        )

    def _place(self, endpoint_id: str) -> road.Place:
        """Where an endpoint is; where it was last, if a reload has removed it meanwhile."""
        place = self._fresh_places.get(endpoint_id)
        if place is not None:
            return place
        place = self._fresh_places[endpoint_id] = self._find_place(endpoint_id)
        return place

    def _find_place(self, endpoint_id: str) -> road.Place:
        endpoint = self._registry.get(endpoint_id)
        known = self._places.get(endpoint_id)
        if known is not None and (endpoint is None or endpoint is known[0]):
            return known[1]
        if endpoint is None:
            raise NoCapacity(f"the endpoint {endpoint_id} has been removed", reason="endpoint-removed")
        host, port = split_http_url(endpoint.url)
        engine = self._registry.engine(endpoint_id)
        place = road.Place(
            endpoint=endpoint_id,
            host=host,
            port=port,
            authority=join_host_port(host, port),
            idle_s=float(endpoint.facts.get("idle_s", engine.idle_s)),
            engine=engine,
        )
        self._places[endpoint_id] = (endpoint, place)
        return place

    def _hang_up(self, place: road.Place, call: HttpCall) -> None:
        """Tell an engine that a leg is not wanted any more; nobody waits for the answer."""
        task = self._loop.create_task(self._call(place, call))
        self._hang_ups.add(task)
        task.add_done_callback(self._hang_ups.discard)

    async def _call(self, place: road.Place, call: HttpCall) -> None:
        bounded = replace(call, timeout_s=min(call.timeout_s, HANG_UP_S))
        try:
            await ask(self._pool, f"http://{place.authority}", bounded, self._dispatch.settings.engine_key)
        except (TimeoutError, WireError, TooLong) as error:
            # Its connection was closed in any case; the engine notices that too.
            log.info("abort call failed", extra={"endpoint": place.endpoint, "why": str(error)})

    def _snapshot(self) -> Snapshot:
        return self._registry.snapshot(self._clock.now_s())

    def _endpoints_changed(self) -> None:
        self._fresh_places.clear()
        self._desk.observe(self._snapshot())

    def _another_process(self, endpoint_id: str) -> None:
        self._signs.pop(endpoint_id, None)

    def _period_s(self) -> float:
        return min(0.5, max(0.01, self._dispatch.settings.shortest_s / 4))

    def _tick(self) -> None:
        now_s = self._clock.now_s()
        watch.look(self.shared, self._registry, now_s)
        self.orphans.check(now_s)
        self._ticker = self._loop.call_later(self._period_s(), self._tick)
