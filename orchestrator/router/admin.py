"""The admin app: metrics, what every endpoint is doing and why, gates and drains, reload and cache flush."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import asdict, dataclass
from hmac import compare_digest
from typing import Any, Protocol

import orjson

from orchestrator.clock import Clock
from orchestrator.core.types import Inflight, Load, Role
from orchestrator.engines.base import HttpCall
from orchestrator.errors import BadRequest, NotServed, PdctlError, RequestError, Unauthorized
from orchestrator.metrics import CONTENT_TYPE
from orchestrator.router.ask import Reply, TooLong
from orchestrator.router.endpoints import Registry
from orchestrator.router.gates import HOLDERS, OPERATOR
from orchestrator.router.state import State
from orchestrator.wire.client import WireError
from orchestrator.wire.server import Exchange

log = logging.getLogger(__name__)

MAX_DRAIN_S = 24 * 3600.0
"""The longest deadline a drain accepts."""

DRAIN_POLL_S = 0.02
"""How often a drain looks whether the endpoint is empty."""

_JSON = ((b"content-type", b"application/json"),)


class Asks(Protocol):
    """Performs an adapter's call on an endpoint; `Prober` does."""

    async def call(self, endpoint_id: str, call: HttpCall) -> Reply:
        """The engine's answer."""
        ...


@dataclass(frozen=True, slots=True)
class Reload:
    """What a reload is asked to do.

    `dry_run`: say what would come of it and change nothing, for the scheduling profile `scheduling` if one is
    given, else for the plan's. `force`: use a profile that did badly on recorded requests all the same.
    """

    dry_run: bool = False
    force: bool = False
    scheduling: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Control:
    """What the admin app acts on, made by whoever runs the router.

    `reload` reads the plan anew and raises PdctlError when it keeps the old one, or should. `forget` drops
    what is believed of an endpoint's prefix cache. `inflight` is what an endpoint has been given.
    `draining` says that the router itself is stopping, `kv` what is known by an endpoint's KV events, if any
    are wanted, `pairs` what is thought of the pairs of endpoints. `ready` answers as clients are, and raises
    NoCapacity.
    """

    registry: Registry
    asks: Asks
    clock: Clock
    render: Callable[[], bytes]
    inflight: Callable[[str], Inflight]
    requests: Callable[[], int]
    ready: Callable[[], bytes]
    forget: Callable[[str], None]
    reload: Callable[[Reload], Mapping[str, Any]]
    draining: Callable[[], bool]
    kv: Callable[[str], Mapping[str, Any] | None]
    version: str
    pairs: Callable[[], Mapping[str, Any]] = dict
    fresh: Callable[[], Awaitable[None]] | None = None
    """Has what other processes count brought up to date."""


class Admin:
    """Answers the admin routes. `trusted` exchanges (the Unix socket, guarded by file modes) need no key."""

    def __init__(self, control: Control, key: str | None) -> None:
        self._control = control
        self.key = key
        self._tasks: set[asyncio.Task[None]] = set()
        self._routes: dict[tuple[str, str], Callable[[Exchange], None]] = {
            ("GET", "/health"): self._health,
            ("GET", "/ready"): lambda e: e.respond(200, self._control.ready(), _JSON),
            ("GET", "/metrics"): self._metrics,
            ("GET", "/endpoints"): self._endpoints,
            ("POST", "/gate"): lambda e: self._gate(e, closed=True),
            ("POST", "/ungate"): lambda e: self._gate(e, closed=False),
            ("POST", "/drain"): self._drain,
            ("POST", "/reload"): self._reload,
            ("POST", "/flush_cache"): self._flush,
        }

    def handle(self, exchange: Exchange) -> None:
        """Answer an exchange of the admin listener."""
        self._answer(exchange, trusted=False)

    def handle_trusted(self, exchange: Exchange) -> None:
        """Answer an exchange of the Unix socket."""
        self._answer(exchange, trusted=True)

    def _answer(self, exchange: Exchange, trusted: bool) -> None:
        try:
            route = self._routes.get((exchange.method, exchange.path))
            if route != self._health and not trusted:
                self._check(exchange)
            if route is None:
                known = ", ".join(sorted(f"{m} {p}" for m, p in self._routes))
                raise NotServed(f"no {exchange.method} {exchange.path} here; the admin routes are {known}")
            route(exchange)
        except RequestError as error:
            _refuse(exchange, error)

    def _check(self, exchange: Exchange) -> None:
        if exchange.method != "GET" and exchange.header(b"origin") is not None:
            # A browser names the page that sends it; no page has business here, least of all on loopback.
            raise Unauthorized("requests from web pages are not taken here", reason="cross-origin")
        given = exchange.header(b"authorization") or b""
        if self.key and not compare_digest(given, f"Bearer {self.key}".encode()):
            raise Unauthorized("the admin key is missing or wrong; send it as Authorization: Bearer KEY")

    def _spawn(self, exchange: Exchange, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(_guarded(exchange, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        exchange.on_close = lambda: _cancel(task)

    # Reading.

    def _health(self, exchange: Exchange) -> None:
        states = tuple(self._control.registry.states())
        status = "draining" if self._control.draining() else "ok"
        told = {
            "status": status,
            "version": self._control.version,
            "pid": os.getpid(),
            "endpoints": len(states),
            "ready": sum(s.ready for s in states),
            "inflight": self._control.requests(),
        }
        _reply(exchange, 200, told)

    def _metrics(self, exchange: Exchange) -> None:
        if self._control.fresh is None:
            self._render(exchange)
        else:
            self._spawn(exchange, self._rendered(exchange, self._control.fresh))

    async def _rendered(self, exchange: Exchange, fresh: Callable[[], Awaitable[None]]) -> None:
        await fresh()
        self._render(exchange)

    def _render(self, exchange: Exchange) -> None:
        exchange.respond(200, self._control.render(), ((b"content-type", CONTENT_TYPE.encode()),))

    def _endpoints(self, exchange: Exchange) -> None:
        now_s = self._control.clock.now_s()
        shown = [self._show(s, now_s) for s in self._control.registry.states()]
        told = {"endpoints": shown, "inflight": self._control.requests(), "pairs": self._control.pairs()}
        _reply(exchange, 200, told)

    def _show(self, state: State, now_s: float) -> dict[str, Any]:
        plan = state.plan
        return {
            "name": plan.name,
            "pool": plan.pool,
            "role": str(plan.role),
            "engine": plan.engine,
            "model": plan.model,
            "url": plan.url,
            "ready": state.ready,
            "joined": state.joined,
            "gated": state.gated,
            "circuit": str(state.breaker.circuit),
            "cap": state.cap,
            "shuns": sorted(state.shuns),
            "apart": state.apart,
            "gates": sorted(state.gates),
            "hung": self._control.registry.hang(plan.name),
            "for_s": round(now_s - state.since_s, 3),
            "why": f"gated by {' and '.join(sorted(state.gates))}"
            if state.gated and state.joined
            else state.why,
            "incarnation": state.incarnation,
            "inflight": asdict(self._control.inflight(plan.name)),
            "load": _show_load(state.load, now_s),
            "facts": {k: _brief(v) for k, v in {**plan.facts, **state.learned}.items()},
            "labels": dict(plan.labels),
            "kv_events": self._control.kv(plan.name),
        }

    # Acting.

    def _gate(self, exchange: Exchange, closed: bool) -> None:
        body = _body(exchange)
        name = self._instance(body)
        self._control.registry.gate(name, closed, str(body.get("incarnation", "")), _holder(body))
        _reply(exchange, 200, {"instance": name, "gated": closed, **self._left(name)})

    def _drain(self, exchange: Exchange) -> None:
        body = _body(exchange)
        name = self._instance(body)
        deadline_s = body.get("deadline_s", 30.0)
        if isinstance(deadline_s, bool) or not isinstance(deadline_s, int | float):
            raise BadRequest("deadline_s must be a number of seconds", param="deadline_s")
        if not 0 <= deadline_s <= MAX_DRAIN_S:
            raise BadRequest(f"deadline_s must be 0 to {MAX_DRAIN_S:.0f}", param="deadline_s")
        self._control.registry.gate(name, True, by=_holder(body))
        log.info("draining", extra={"endpoint": name, "deadline_s": deadline_s, **self._left(name)})
        self._spawn(exchange, self._drained(exchange, name, float(deadline_s)))

    async def _drained(self, exchange: Exchange, name: str, deadline_s: float) -> None:
        clock = self._control.clock
        end_s = clock.now_s() + deadline_s
        # A prefill instance whose legs have ended is not empty until decode has pulled the last KV.
        while self._control.inflight(name) != Inflight() and clock.now_s() < end_s:  # noqa: ASYNC110
            await asyncio.sleep(min(DRAIN_POLL_S, max(0.0, end_s - clock.now_s())))
        drained, left = self._control.inflight(name) == Inflight(), self._left(name)
        log.info("drained" if drained else "drain deadline passed", extra={"endpoint": name, **left})
        _reply(exchange, 200, {"instance": name, "gated": True, "drained": drained, **left})

    def _left(self, name: str) -> dict[str, int]:
        given = self._control.inflight(name)
        return {"inflight": given.requests, "kv_tokens": given.kv_tokens}

    def _reload(self, exchange: Exchange) -> None:
        asked = _asked(_body(exchange))
        try:
            told = self._control.reload(asked)
        except PdctlError as error:
            raise BadRequest(f"the plan in use stays: {error.message}", reason=error.reason) from error
        _reply(exchange, 200, {"reloaded": not asked.dry_run, **told})

    def _flush(self, exchange: Exchange) -> None:
        self._spawn(exchange, self._flushed(exchange))

    async def _flushed(self, exchange: Exchange) -> None:
        """Each engine that can empties its cache; what is believed of it goes whether or not it did."""
        states = [s for s in self._control.registry.states() if s.joined and s.plan.role is not Role.ENCODE]
        told = await asyncio.gather(*map(self._empty, states))
        results = {s.plan.name: t for s, t in zip(states, told, strict=True)}
        failed = any(r not in ("flushed", "unsupported") for r in results.values())
        body = {"success": all(r == "flushed" for r in results.values()), "endpoints": results}
        _reply(exchange, 502 if failed else 200, body)

    async def _empty(self, state: State) -> str:
        name, call = state.plan.name, state.engine.flush()
        if call is None:
            return "unsupported"
        # Forgetting what is there costs a hit; believing what is not costs a prefill on the wrong engine.
        self._control.forget(name)
        try:
            reply = await self._control.asks.call(name, call)
        except KeyError:
            return "removed meanwhile"
        except (TimeoutError, WireError, TooLong) as error:
            return f"failed: {error or 'no answer in time'}"
        return "flushed" if _succeeded(reply) else f"failed: status {reply.status}: {_text(reply.body)}"

    def _instance(self, body: Mapping[str, Any]) -> str:
        name = body.get("instance")
        if not isinstance(name, str):
            raise BadRequest('the body must be {"instance": NAME, ...}', param="instance")
        if self._control.registry.state(name) is None:
            known = ", ".join(s.plan.name for s in self._control.registry.states())
            raise NotServed(f"no instance {name!r} here; there are: {known}", param="instance")
        return name


async def _guarded(exchange: Exchange, work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except Exception:
        # The last boundary of a task: an adapter may be a user's file, and somebody waits for an answer.
        log.exception("admin request failed", extra={"path": exchange.path})
        if not exchange.started:
            _refuse(exchange, RequestError("internal error; see the router's log", reason="internal"))


def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()


def _body(exchange: Exchange) -> dict[str, Any]:
    try:
        body = orjson.loads(exchange.body or b"{}")
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object")
    return body


def _holder(body: Mapping[str, Any]) -> str:
    """Who gates. Raises BadRequest."""
    by = body.get("by", OPERATOR)
    if by not in HOLDERS:
        raise BadRequest(f"by is one of {', '.join(HOLDERS)}", param="by")
    return str(by)


def _asked(body: Mapping[str, Any]) -> Reload:
    """The body of a reload. Raises BadRequest."""
    dry_run, force, scheduling = (body.get(name) for name in ("dry_run", "force", "scheduling"))
    for name, value in (("dry_run", dry_run), ("force", force)):
        if not isinstance(value, bool | None):
            raise BadRequest(f"{name} must be true or false", param=name)
    if scheduling is not None and not (dry_run and isinstance(scheduling, dict)):
        raise BadRequest("scheduling is a profile to try, and goes with dry_run", param="scheduling")
    return Reload(bool(dry_run), bool(force), scheduling)


def _reply(exchange: Exchange, status: int, body: Mapping[str, Any]) -> None:
    exchange.respond(status, orjson.dumps(body), _JSON)


def _refuse(exchange: Exchange, error: RequestError) -> None:
    told = {"message": error.message, "type": error.error_type, "param": error.param, "code": error.reason}
    headers = (*_JSON, (b"x-pdctl-reason", error.reason.encode()))
    exchange.respond(error.http_status, orjson.dumps({"error": told}), headers)


def _succeeded(reply: Reply) -> bool:
    """200, unless the engine says in JSON that it did not (it may answer 200 while it is busy)."""
    try:
        told = orjson.loads(reply.body)
    except orjson.JSONDecodeError:
        told = None
    refused = isinstance(told, dict) and told.get("success") is False
    return reply.status == 200 and not refused


def _text(body: bytes) -> str:
    return body[:200].decode("utf-8", "replace").strip()


def _show_load(load: Load | None, now_s: float) -> dict[str, Any] | None:
    if load is None:
        return None
    shown = asdict(load)
    shown["age_s"] = round(now_s - shown.pop("at_s"), 3)
    return shown


def _brief(value: object) -> object:
    """A fact for people: numbers and short texts as they are, anything bigger by its beginning."""
    if value is None or isinstance(value, bool | int | float):
        return value
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 120 else text[:117] + "..."
