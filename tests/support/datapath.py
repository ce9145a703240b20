"""A whole data path on real sockets: scripted engines, a scheduler that does as told, a raw client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any

import orjson

from orchestrator.clock import SystemClock
from orchestrator.core.contracts import Assign, Decision, Reject, Spent
from orchestrator.core.retry import RetryBudget
from orchestrator.core.types import (
    Endpoint,
    LegEvent,
    LegKind,
    Outcome,
    PathKind,
    RequestView,
    Role,
    Route,
    Snapshot,
)
from orchestrator.engines.base import (
    NO_FACTS,
    HandoffDone,
    HandoffFailed,
    HandoffRequest,
    HandoffStep,
    HttpCall,
    Leg,
    Probes,
)
from orchestrator.engines.splice import JsonBody
from orchestrator.errors import BadRequest, LegFailed, NoCapacity, Overloaded, RequestError
from orchestrator.router.app import RouterApp
from orchestrator.router.road import PROGRESS
from orchestrator.topology.plan import Credentials, Limits, Plan, RouterPlan, Timeouts
from orchestrator.wire.client import Pool
from orchestrator.wire.server import Exchange, Server, WireLimits, serve

GUARD_S = 20.0
"""How long a test waits for what must happen; reached only when it does not."""

DONE = b"data: [DONE]\n\n"


def event(text: str, index: int = 0, **more: Any) -> bytes:
    """One streamed completion chunk."""
    body = {"id": "e", "choices": [{"index": index, "text": text, "finish_reason": None}], **more}
    return b"data: %b\n\n" % orjson.dumps(body)


def usage_event(prompt: int = 5, completion: int = 2) -> bytes:
    """The usage chunk before `[DONE]`."""
    usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return b"data: %b\n\n" % orjson.dumps({"id": "e", "choices": [], "usage": usage})


def completion(text: str, **more: Any) -> bytes:
    """A whole completion."""
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
    choice = {"index": 0, "text": text, "finish_reason": "stop"}
    return orjson.dumps({"id": "c", "object": "text_completion", "choices": [choice], "usage": usage, **more})


class Adapter:
    """An engine adapter for the data path.

    `chained`: decode starts on prefill's answer, which must hold `"kv"`; else both start at once. `splits`:
    a batch of prompts is fanned out. `owed`: prefill is owed to decode. KV that a chained decode leg is not
    sent for is freed by `POST /release`.
    """

    name = "fake"
    idle_s = 5.0
    guarded_fields = frozenset(("kv",))
    guarded_headers = frozenset(("x-rank",))

    def __init__(
        self, *, chained: bool = False, splits: bool = False, merges: bool = False, owed: bool = False
    ) -> None:
        self.owed = owed
        self.chained = chained
        self.splits = splits
        self.merges = merges
        self.requests: list[HandoffRequest] = []

    def serves(self, kind: PathKind, role: Role, disaggregated: bool) -> bool:
        """Everything on one endpoint; only generation apart."""
        return not disaggregated or kind in (PathKind.CHAT, PathKind.COMPLETION, PathKind.GENERATE)

    def check(
        self, kind: PathKind, body: JsonBody, disaggregated: bool, facts: Mapping[str, Any] = NO_FACTS
    ) -> None:
        """Refuses `impossible`, and a `level` that is not the endpoint's."""
        if body.fields.get("level", facts.get("level")) != facts.get("level"):
            raise BadRequest(f"the level is {facts.get('level')}", reason="bad-level", param="level")
        if body.fields.get("impossible"):
            raise BadRequest("the engine cannot do that", reason="unsupported", param="impossible")

    def split(self, kind: PathKind, body: JsonBody, disaggregated: bool) -> Sequence[JsonBody] | None:
        """One request per prompt and sample."""
        prompt, n = body.fields.get("prompt"), body.fields.get("n", 1)
        if not self.splits or (not isinstance(prompt, list) and n == 1):
            return None
        prompts = prompt if isinstance(prompt, list) else [prompt]
        changed = [{"prompt": orjson.dumps(one)} for one in prompts for _ in range(n)]
        return [JsonBody(b"".join(body.edit(change, ("n",)))) for change in changed]

    def rooms(self, kind: PathKind, body: JsonBody) -> int:
        """One, or one per prompt."""
        prompt = body.fields.get("prompt")
        return len(prompt) if isinstance(prompt, list) else 1

    def needs_merge(self, kind: PathKind, body: JsonBody) -> bool:
        """As told."""
        return self.merges

    def merge(self, kind: PathKind, prefill_body: bytes, decode_body: bytes) -> bytes:
        """Both bodies side by side."""
        if b"unfit" in prefill_body:
            raise LegFailed("the bodies do not fit", reason="bad-answer")
        return prefill_body + decode_body

    def handoff(self, request: HandoffRequest) -> Machine:
        """See Machine."""
        self.requests.append(request)
        return Machine(request, self.chained, self.owed)

    def abort(self, leg: Leg) -> HttpCall | None:
        """`POST /abort` with the leg's id."""
        return HttpCall("POST", "/abort", leg.engine_id.encode())

    def map_error(self, status: int, body: bytes) -> RequestError:
        """The engine's own message."""
        message = str(orjson.loads(body).get("error", {}).get("message", "?"))
        if status == 429:
            return Overloaded(message, reason="engine-queue-full")
        if status == 503:
            return NoCapacity(message, reason="engine-full")
        if status < 500:
            return BadRequest(message, reason="engine-refused")
        return LegFailed(message, reason="engine-error")


class Machine:
    """The hand-off of `Adapter`."""

    def __init__(self, request: HandoffRequest, chained: bool, owed: bool) -> None:
        self._request = request
        self._chained = chained
        self._owed = owed
        self.notes: dict[str, Any] = {}

    def bind(self, decode: Endpoint) -> None:
        """Decode goes there."""
        self._request = replace(self._request, decode=decode)

    def start(self) -> tuple[Leg, ...]:
        """One leg, both, or prefill alone."""
        request = self._request
        if request.prefill is None:
            return (self._leg(LegKind.UNIFIED, request.decode, {}, relay=True),)
        prefill = self._leg(LegKind.PREFILL, request.prefill, {"max_tokens": b"1"}, relay=False)
        return (prefill,) if self._chained else (prefill, self._decode({}))

    def on_response(self, kind: LegKind, status: int, body: bytes) -> HandoffStep:
        """Decode after prefill; or the end."""
        if status >= 400:
            return HandoffFailed(LegFailed(f"prefill said {status}", reason="prefill-failed"))
        try:
            answer = orjson.loads(body)
        except orjson.JSONDecodeError:
            return HandoffFailed(LegFailed("prefill said nothing that makes sense", reason="bad-answer"))
        self.notes["cached_tokens"] = answer.get("cached", 0)
        if self._chained:
            return (self._decode({"kv": orjson.dumps(answer["kv"])}),)
        return HandoffDone(self.notes)

    def _decode(self, extra: Mapping[str, bytes]) -> Leg:
        return self._leg(LegKind.DECODE, self._request.decode, extra, relay=True)

    def _leg(self, kind: LegKind, endpoint: Endpoint, extra: Mapping[str, bytes], *, relay: bool) -> Leg:
        request = self._request
        fields = {"room": b"%d" % request.room, **extra}
        return Leg(
            kind=kind,
            endpoint=endpoint.id,
            path=request.path,
            body=request.body.edit(fields, ("kv",)),
            engine_id=request.engine_id(kind),
            relay=relay,
            stream=relay and request.stream,
            headers=(("content-type", "application/json"), *request.headers),
            owed=self._owed and not relay,
            release=partial(HttpCall, "POST", "/release", extra["kv"]) if "kv" in extra else None,
        )


Script = Callable[[Exchange], Awaitable[None]]


class Engine:
    """A scripted engine server: `script` answers each request; what came is kept."""

    def __init__(self, name: str, role: Role) -> None:
        self.name = name
        self.role = role
        self.script: Script | None = None
        self.exchanges: list[Exchange] = []
        self.bodies: list[dict[str, Any]] = []
        self.aborted: list[str] = []
        self.released: list[bytes] = []
        self.left: list[str] = []
        self.server: Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen on a free port."""
        self.server = await serve(self._handle, host="127.0.0.1", port=0)

    @property
    def url(self) -> str:
        """Where it listens."""
        assert self.server is not None
        return f"http://127.0.0.1:{self.server.port}"

    @property
    def endpoint(self) -> Endpoint:
        """As the registry shows it."""
        return Endpoint(
            id=self.name,
            pool=self.role.value,
            role=self.role,
            engine="fake",
            model="m",
            url=self.url,
            ready=True,
        )

    @property
    def open(self) -> int:
        """Exchanges that were neither answered nor left."""
        return sum(not (e.ended or e.closed) for e in self.exchanges)

    def _handle(self, exchange: Exchange) -> None:
        if exchange.path == "/abort":
            self.aborted.append(exchange.body.decode())
            exchange.respond(200, b"{}")
            return
        if exchange.path == "/release":
            self.released.append(exchange.body)
            exchange.respond(404, b"{}")
            return
        self.exchanges.append(exchange)
        self.bodies.append(json.loads(exchange.body))
        exchange.on_close = lambda: self.left.append(exchange.path)
        if self.script is not None:
            task = asyncio.get_running_loop().create_task(_run(self.script, exchange))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Cut everything."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.server is not None:
            await self.server.drained(0.0)


async def _run(script: Script, exchange: Exchange) -> None:
    await script(exchange)


def answers(status: int, body: bytes, kind: bytes = b"application/json") -> Script:
    """Answer at once."""

    async def script(exchange: Exchange) -> None:
        exchange.respond(status, body, ((b"content-type", kind),))

    return script


def streams(*pieces: bytes, gap_s: float = 0.0, cut: bool = False) -> Script:
    """Stream the pieces, then end, or cut the connection."""

    async def script(exchange: Exchange) -> None:
        exchange.start(200, ((b"content-type", b"text/event-stream"),))
        for piece in pieces:
            exchange.write(piece)
            await asyncio.sleep(gap_s)
        if cut:
            exchange.abort()
        else:
            exchange.end()

    return script


async def hangs(exchange: Exchange) -> None:
    """Never answer."""
    await asyncio.get_running_loop().create_future()


class Fleet:
    """The registry of scripted engines."""

    def __init__(self, adapter: Adapter, engines: Sequence[Engine]) -> None:
        self.adapter = adapter
        self.endpoints = {engine.name: engine.endpoint for engine in engines}
        self.troubles: list[tuple[str, BaseException]] = []
        self.wells: list[str] = []
        self.failures: list[str] = []
        self.hung: list[str] = []
        self.moved: dict[str, float] = {}
        self.on_hung_told: list[Callable[[str, str], None]] = []
        self._callbacks: list[Callable[[], None]] = []

    def snapshot(self, now_s: float) -> Snapshot:
        """All of them."""
        return Snapshot(at_s=now_s, endpoints=tuple(self.endpoints.values()))

    def get(self, endpoint_id: str) -> Endpoint | None:
        """One of them."""
        return self.endpoints.get(endpoint_id)

    def engine(self, endpoint_id: str) -> Any:
        """The adapter of all."""
        return self.adapter

    def models(self) -> tuple[str, ...]:
        """The models they serve."""
        return tuple(sorted({e.model for e in self.endpoints.values()}))

    def on_change(self, callback: Callable[[], None]) -> None:
        """Remember who to tell."""
        self._callbacks.append(callback)

    def leg_failed(self, endpoint_id: str, error: BaseException) -> None:
        """Keep what is told."""
        self.troubles.append((endpoint_id, error))

    def failed(self, endpoint_id: str) -> None:
        """Keep what is told."""
        self.failures.append(endpoint_id)

    def well(self, endpoint_id: str) -> None:
        """Keep what is told."""
        self.wells.append(endpoint_id)

    def moved_s(self, endpoint_id: str) -> float:
        """These engines count nothing, unless told."""
        return self.moved.get(endpoint_id, float("-inf"))

    def hangs(self, endpoint_id: str, silent_s: float) -> None:
        """Keep what is told."""
        self.hung.append(endpoint_id)

    def on_hung(self, callback: Callable[[str, str], None]) -> None:
        """Remember who to tell."""
        self.on_hung_told.append(callback)

    def on_incarnation(self, callback: Callable[[str], None]) -> None:
        """No endpoint is another process here."""

    def change(self, **changes: Endpoint) -> None:
        """Replace endpoints by name and tell."""
        self.endpoints.update(changes)
        for callback in self._callbacks:
            callback()


class Told:
    """A scheduler that assigns as told, and checks that every request is finished once per submit."""

    def __init__(self, route: Route, heeds: frozenset[str] = PROGRESS) -> None:
        self.route = route
        self.heeds = heeds
        self.routes: list[Route] = []
        self.reject: Reject | None = None
        self.hold = False
        self.provisional = False
        self.holds = False
        """Whoever is to be named anew is held."""
        self.next: list[Decision] = []
        """What the next call returns that tells of something."""
        self.held: list[RequestView] = []
        self.submitted: list[RequestView] = []
        self.cancelled: list[str] = []
        self.rebound: list[RequestView] = []
        self.finished: list[Outcome] = []
        self.events: list[LegEvent] = []
        self.open: set[str] = set()

    def submit(self, request: RequestView, now_s: float) -> Sequence[Decision]:
        """Assign, reject or hold."""
        assert request.id not in self.open
        self.open.add(request.id)
        self.submitted.append(request)
        if self.reject is not None:
            return (replace(self.reject, request_id=request.id),)
        if self.hold:
            self.held.append(request)
            return ()
        route = self.routes.pop(0) if self.routes else self.route
        return (Assign(request.id, route, provisional=self.provisional),)

    def progress(self, event: LegEvent, now_s: float) -> Sequence[Decision]:
        """Keep it."""
        self.events.append(event)
        return self._given()

    def cancel(self, request_id: str, now_s: float) -> Sequence[Decision]:
        """Keep it."""
        self.cancelled.append(request_id)
        self.held = [r for r in self.held if r.id != request_id]
        return ()

    def rebind(self, request: RequestView, now_s: float) -> Sequence[Decision]:
        """Nobody else, or later if told."""
        self.rebound.append(request)
        return self._given() if self.holds else (Spent(request.id),)

    def finish(self, outcome: Outcome, now_s: float) -> Sequence[Decision]:
        """The one end; releases everything held when told by `hold`."""
        self.open.remove(outcome.request_id)
        self.finished.append(outcome)
        return ()

    def observe(self, snapshot: Snapshot, now_s: float) -> Sequence[Decision]:
        """What was laid out for the next call."""
        return self._given()

    def _given(self) -> Sequence[Decision]:
        given, self.next = self.next, []
        return given

    def due_s(self) -> float | None:
        """Never."""
        return None

    def tick(self, now_s: float) -> Sequence[Decision]:
        """Nothing."""
        return ()


class Counted:
    """Metrics that keep what they are told."""

    def __init__(self) -> None:
        self.done: list[tuple[Outcome, str, str]] = []
        self.legs: list[tuple[str, str, str]] = []
        self.fields: list[str] = []
        self.ttfts: list[tuple[float, str]] = []
        self.classes: list[tuple[str, int]] = []
        self.itls: list[float] = []
        self.stages: list[str] = []
        self.retries: list[tuple[str, str]] = []
        self.itl = self.itls.append

    def request_done(
        self, outcome: Outcome, path: str, model: str, slo_class: str = "", choices: int = 1
    ) -> None:
        self.done.append((outcome, str(path), model))
        self.classes.append((slo_class, choices))

    def ttft(self, seconds: float, slo_class: str) -> None:
        self.ttfts.append((seconds, slo_class))

    def leg_done(self, leg: str, endpoint: str, result: str) -> None:
        self.legs.append((str(leg), endpoint, result))

    def stripped(self, field: str) -> None:
        self.fields.append(field)

    def retried(self, kind: str, result: str) -> None:
        self.retries.append((kind, str(result)))

    def stage(self, name: str, seconds: float) -> None:
        self.stages.append(name)


@dataclass
class Reply:
    """An answer as the client read it; `whole`: it ended as its framing says it should."""

    status: int
    headers: dict[str, str]
    body: bytes
    whole: bool

    def json(self) -> Any:
        """The body."""
        return json.loads(self.body)

    def events(self) -> list[bytes]:
        """The events of a stream."""
        return [part for part in self.body.split(b"\n\n") if part]

    @property
    def error(self) -> dict[str, Any]:
        """The error of a body, or of the last event of a stream."""
        text = self.events()[-1].removeprefix(b"data: ") if self.body.startswith(b"data:") else self.body
        return dict(json.loads(text)["error"])


class Client:
    """One raw client connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(
        self, path: str, body: Any = None, method: str = "POST", headers: Mapping[str, str] = {}
    ) -> None:
        """Write one request."""
        raw = b"" if body is None else body if isinstance(body, bytes) else orjson.dumps(body)
        lines = [f"{method} {path} HTTP/1.1", "host: test", f"content-length: {len(raw)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self.writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + raw)
        await self.writer.drain()

    async def read(self, *, head_only: bool = False) -> Reply:
        """Read one answer."""
        async with asyncio.timeout(GUARD_S):
            head = await self.reader.readuntil(b"\r\n\r\n")
            lines = head.decode("latin-1").split("\r\n")
            fields = (line.split(": ", 1) for line in lines[1:] if line)
            reply = Reply(int(lines[0].split()[1]), {k.lower(): v for k, v in fields}, b"", True)
            if head_only:
                return reply
            try:
                if "content-length" in reply.headers:
                    reply.body = await self.reader.readexactly(int(reply.headers["content-length"]))
                elif reply.headers.get("transfer-encoding") == "chunked":
                    while chunk := await self.chunk():
                        reply.body += chunk
            except (asyncio.IncompleteReadError, ConnectionError):
                reply.whole = False
            return reply

    async def chunk(self) -> bytes:
        """Read one chunk of a chunked body; empty at its end."""
        async with asyncio.timeout(GUARD_S):
            size = int((await self.reader.readuntil(b"\r\n")).strip(), 16)
            data = await self.reader.readexactly(size + 2)
            return data[:-2]

    async def ask(self, path: str, body: Any = None, **more: Any) -> Reply:
        """Write one request and read its answer."""
        await self.send(path, body, **more)
        return await self.read()

    def close(self) -> None:
        """Go away at once."""
        self.writer.transport.abort()


@dataclass
class Rig:
    """Engines, router and clients, wired; see `build`."""

    app: RouterApp
    server: Server
    pool: Pool
    fleet: Fleet
    scheduler: Told
    metrics: Counted
    engines: dict[str, Engine]
    adapter: Adapter
    plan: Plan
    clients: list[Client] = field(default_factory=list)

    async def client(self) -> Client:
        """A new connection."""
        client = Client(*await asyncio.open_connection("127.0.0.1", self.server.port, limit=2**26))
        self.clients.append(client)
        return client

    async def ask(self, path: str, body: Any = None, **more: Any) -> Reply:
        """One request on a connection of its own."""
        client = await self.client()
        try:
            return await client.ask(path, body, **more)
        finally:
            client.close()

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until a condition holds."""
        async with asyncio.timeout(GUARD_S):
            while not condition():  # noqa: ASYNC110  what is waited for tells nobody
                await asyncio.sleep(0.002)

    async def at_rest(self) -> None:
        """Nothing is left of any request anywhere."""
        await self.until(lambda: not self.app.inflight)
        assert not self.scheduler.open, "a request was never finished"
        assert not len(self.app.rooms), "a room was never freed"
        assert not self.app.units, "a unit was left behind"
        await self.until(lambda: not sum(engine.open for engine in self.engines.values()))
        await self.until(lambda: self.pool.stats.open == self.pool.stats.idle)

    async def close(self) -> None:
        """Take everything down."""
        for client in self.clients:
            client.close()
        await self.server.drained(0.0)
        await self.app.close()
        self.pool.close()
        for engine in self.engines.values():
            await engine.stop()


PROBE = HttpCall("GET", "/health")


def router_plan(**changes: Any) -> RouterPlan:
    """A router plan with short but safe deadlines."""
    plan = RouterPlan(
        kind="pdctl",
        host="127.0.0.1",
        port=0,
        admin_host="127.0.0.1",
        admin_port=0,
        url="",
        admin_url="",
        argv=(),
        env={},
        probes=Probes(ready=(PROBE,), live=PROBE),
        timeouts=Timeouts(),
        limits=Limits(),
        credentials=Credentials(),
    )
    return replace(plan, **changes)


async def build(
    *,
    adapter: Adapter | None = None,
    roles: str = "pd",
    wire: WireLimits | None = None,
    heeds: frozenset[str] = PROGRESS,
    retries: float = 16.0,
    **router: Any,
) -> Rig:
    """A rig with one engine per letter of `roles`: p, d or u, named p0, d0, u0, p1, ...; `router` changes the
    plan's router, and `heeds` is what its scheduler wants to be told. `retries` may be made at once; 0: none
    ever. Requests go to p0 and d0, or to u0."""
    adapter = adapter or Adapter()
    engines: dict[str, Engine] = {}
    kinds = {"p": Role.PREFILL, "d": Role.DECODE, "u": Role.UNIFIED}
    for letter in roles:
        name = f"{letter}{sum(one.startswith(letter) for one in engines)}"
        engines[name] = Engine(name, kinds[letter])
        await engines[name].start()
    plan = Plan(
        name="t",
        file="t.yaml",
        base_dir=".",
        state_dir=".",
        seed=7,
        instances=(),
        router=router_plan(**router),
    )
    route = Route(decode="d0", prefill="p0") if "p0" in engines else Route(decode="u0")
    fleet, scheduler, metrics = Fleet(adapter, list(engines.values())), Told(route, heeds), Counted()
    assert plan.router is not None
    pool = Pool(connect_timeout_s=plan.router.timeouts.connect_s)
    budget = RetryBudget(0.2 if retries else 0.0, retries)
    app = RouterApp(plan, fleet, scheduler, pool, metrics, SystemClock(), Random(1), budget=budget)
    server = await serve(app.handle, host="127.0.0.1", port=0, limits=wire or WireLimits(), on_bad=app.refuse)
    return Rig(app, server, pool, fleet, scheduler, metrics, engines, adapter, plan)
