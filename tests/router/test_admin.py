"""The admin app over real sockets: what it shows, gates and drains, reload, flush, and who may ask."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from orchestrator.clock import SystemClock
from orchestrator.core.types import Inflight
from orchestrator.errors import Problem, TopologyError
from orchestrator.fabric import unix
from orchestrator.metrics import RouterMetrics
from orchestrator.router import local
from orchestrator.router.admin import Admin, Control, Reload
from orchestrator.router.endpoints import Registry
from orchestrator.router.scrape import Cadence, Prober
from orchestrator.topology.plan import Plan
from orchestrator.wire.client import Pool
from orchestrator.wire.server import Server, serve

MakePlan = Callable[..., Plan]
StartStub = Callable[[str], Awaitable[Any]]
Until = Callable[[Callable[[], object]], Awaitable[None]]


class Office:
    """An admin app on a TCP port and a Unix socket, over real stub engines."""

    def __init__(self, plan: Plan, key: str | None) -> None:
        clock = SystemClock()
        self.inflight: dict[str, Inflight] = {}
        self.metrics = RouterMetrics(["m"], clock, "1.2.3")
        self.registry = Registry(plan, clock, self.metrics, inflight=self.given)
        self.metrics.watch(lambda: self.registry.snapshot(clock.now_s()))
        self.pool = Pool()
        cadence = Cadence(out_s=0.01, ready_s=0.02)
        self.prober = Prober(self.registry, self.pool, self.metrics, clock, Random(1), None, cadence)
        self.prober.sync()
        self.forgotten: list[str] = []
        self.next_plan: Plan | None = None
        control = Control(
            kv=lambda name: None,
            registry=self.registry,
            asks=self.prober,
            clock=clock,
            render=self.metrics.render,
            inflight=self.given,
            requests=lambda: sum(i.requests for i in self.inflight.values()),
            forget=self.forgotten.append,
            ready=lambda: local.ready(["m"], self.registry.snapshot(clock.now_s()), draining=False),
            reload=self.reload,
            draining=lambda: False,
            version="1.2.3",
        )
        self.admin = Admin(control, key)
        self.servers: list[Server] = []

    def given(self, name: str) -> Inflight:
        return self.inflight.get(name, Inflight())

    def reload(self, asked: Reload) -> Mapping[str, Any]:
        self.asked = asked
        if self.next_plan is None:
            raise TopologyError([Problem("not a plan", file="plan.json")])
        self.registry.apply(self.next_plan)
        self.prober.sync()
        return {"endpoints": len(self.next_plan.instances)}

    async def open(self, folder: Path) -> None:
        tcp = await serve(self.admin.handle, host="127.0.0.1")
        self.socket = folder / "router.sock"
        local = await serve(self.admin.handle_trusted, sock=unix.bind(self.socket))
        self.servers = [tcp, local]
        self.client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{tcp.port}", trust_env=False)
        self.local = httpx.AsyncClient(
            base_url="http://router", transport=httpx.AsyncHTTPTransport(uds=str(self.socket))
        )

    async def close(self) -> None:
        await self.client.aclose()
        await self.local.aclose()
        for server in self.servers:
            await server.drained(1.0)
        await self.prober.close()
        self.pool.close()

    async def show(self, name: str) -> dict[str, Any]:
        body = (await self.client.get("/endpoints")).json()
        return next(e for e in body["endpoints"] if e["name"] == name)


@pytest.fixture
async def office(tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[Office]]]:
    made: list[Office] = []

    async def start(plan: Plan, key: str | None = None) -> Office:
        made.append(Office(plan, key))
        await made[-1].open(tmp_path)
        return made[-1]

    yield start
    for one in made:
        await one.close()


Start = Callable[..., Awaitable[Office]]


def ready(office: Office, name: str) -> bool:
    endpoint = office.registry.get(name)
    return endpoint is not None and endpoint.ready


async def test_health_counts_what_is_ready(
    stub: StartStub, make_plan: MakePlan, office: Start, until: Until
) -> None:
    engine, dead = await stub("p0"), await stub("p1")
    await dead.stop()
    desk = await office(make_plan(engine.plan(), dead.plan()))
    await until(lambda: ready(desk, "p0"))
    body = (await desk.client.get("/health")).json()
    told = {"status": "ok", "version": "1.2.3", "endpoints": 2, "ready": 1, "inflight": 0}
    assert body == told | {"pid": os.getpid()}


async def test_endpoints_shows_state_load_facts_and_why_not(
    stub: StartStub, make_plan: MakePlan, office: Start, until: Until
) -> None:
    engine, dead = await stub("p0"), await stub("p1")
    engine.answers["/load"] = (200, {"running": 3})
    engine.answers["/info"] = (200, {"incarnation": "a", "long": "x" * 500, "ranks": [1, 2]})
    await dead.stop()
    desk = await office(make_plan(engine.plan(labels={"rack": "r1"}), dead.plan()))
    desk.inflight["p0"] = Inflight(requests=2, prefill_tokens=100, kv_tokens=300)
    await until(lambda: ready(desk, "p0") and desk.registry.get("p0").load is not None)  # type: ignore[union-attr]
    shown = await desk.show("p0")
    assert shown["ready"] is True
    assert shown["why"] == ""
    assert shown["incarnation"] == "a"
    assert shown["inflight"] == {"requests": 2, "prefill_tokens": 100, "kv_tokens": 300}
    assert shown["load"]["running"] == 3
    assert shown["load"]["age_s"] >= 0
    assert shown["facts"]["bootstrap_port"] == 8998
    assert shown["facts"]["ranks"] == "[1, 2]"
    assert len(shown["facts"]["long"]) == 120
    assert shown["labels"] == {"rack": "r1"}
    out = await desk.show("p1")
    assert out["ready"] is False
    assert out["why"] == "GET /ready: connection refused"
    assert out["load"] is None


async def test_metrics_are_prometheus_text(
    stub: StartStub, make_plan: MakePlan, office: Start, until: Until
) -> None:
    engine = await stub("p0")
    desk = await office(make_plan(engine.plan()))
    await until(lambda: ready(desk, "p0"))
    answer = await desk.client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = {f.name: f for f in text_string_to_metric_families(answer.text)}
    assert [s.value for s in families["pdctl_endpoint_ready"].samples] == [1.0]


async def test_a_gate_closes_and_opens(
    stub: StartStub, make_plan: MakePlan, office: Start, until: Until
) -> None:
    engine = await stub("p0")
    desk = await office(make_plan(engine.plan()))
    await until(lambda: ready(desk, "p0"))
    answer = await desk.client.post("/gate", json={"instance": "p0"})
    assert answer.json() == {"instance": "p0", "gated": True, "inflight": 0, "kv_tokens": 0}
    assert not ready(desk, "p0")
    assert (await desk.show("p0"))["why"] == "gated by operator"
    await desk.client.post("/ungate", json={"instance": "p0"})
    assert ready(desk, "p0")


async def test_a_drain_answers_when_the_endpoint_is_empty(
    stub: StartStub, make_plan: MakePlan, office: Start, until: Until
) -> None:
    engine = await stub("p0")
    desk = await office(make_plan(engine.plan()))
    await until(lambda: ready(desk, "p0"))
    desk.inflight["p0"] = Inflight(requests=1, kv_tokens=10)
    answer = asyncio.create_task(desk.client.post("/drain", json={"instance": "p0", "deadline_s": 60}))
    await until(lambda: not ready(desk, "p0"))
    desk.inflight["p0"] = Inflight(kv_tokens=10)
    await asyncio.sleep(0.1)
    assert not answer.done(), "decode has not pulled the last KV"
    desk.inflight["p0"] = Inflight()
    body = (await answer).json()
    assert body == {"instance": "p0", "gated": True, "drained": True, "inflight": 0, "kv_tokens": 0}


async def test_a_drain_answers_at_its_deadline_with_what_is_left(
    stub: StartStub, make_plan: MakePlan, office: Start
) -> None:
    engine = await stub("p0")
    desk = await office(make_plan(engine.plan()))
    desk.inflight["p0"] = Inflight(requests=2)
    answer = await desk.client.post("/drain", json={"instance": "p0", "deadline_s": 0.05})
    assert answer.json()["drained"] is False
    assert answer.json()["inflight"] == 2


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("/gate", b"{", 400, "not JSON"),
        ("/gate", b"[]", 400, "JSON object"),
        ("/gate", b"{}", 400, "instance"),
        ("/gate", b'{"instance": 1}', 400, "instance"),
        ("/gate", b'{"instance": "p0", "by": "me"}', 400, "by is one of operator, controller"),
        ("/ungate", b'{"instance": "nobody"}', 404, "there are: p0"),
        ("/drain", b'{"instance": "p0", "deadline_s": "soon"}', 400, "number of seconds"),
        ("/drain", b'{"instance": "p0", "deadline_s": true}', 400, "number of seconds"),
        ("/drain", b'{"instance": "p0", "deadline_s": -1}', 400, "0 to 86400"),
        ("/nowhere", b"", 404, "POST /drain"),
        ("/v1/chat/completions", b"{}", 404, "admin routes"),
    ],
)
async def test_what_is_wrong_with_a_request_is_told(
    stub: StartStub, make_plan: MakePlan, office: Start, path: str, body: bytes, status: int, says: str
) -> None:
    engine = await stub("p0")
    desk = await office(make_plan(engine.plan()))
    answer = await desk.client.post(path, content=body)
    assert answer.status_code == status
    assert says in answer.json()["error"]["message"]
    assert answer.headers["x-pdctl-reason"] == answer.json()["error"]["code"]


async def test_the_admin_key_is_demanded_but_not_for_health_or_on_the_socket(
    stub: StartStub, make_plan: MakePlan, office: Start
) -> None:
    engine = await stub("p0")
    desk = await office(make_plan(engine.plan()), key="admin-secret")
    for path in ("/endpoints", "/metrics", "/nowhere"):
        assert (await desk.client.get(path)).status_code == 401
        wrong = {"authorization": "Bearer admin-secret2"}
        assert (await desk.client.get(path, headers=wrong)).status_code == 401
    assert (await desk.client.post("/gate", json={"instance": "p0"})).status_code == 401
    assert (await desk.client.get("/health")).status_code == 200
    right = {"authorization": "Bearer admin-secret"}
    assert (await desk.client.get("/endpoints", headers=right)).status_code == 200
    assert (await desk.local.get("/endpoints")).status_code == 200


async def test_a_web_page_cannot_act(stub: StartStub, make_plan: MakePlan, office: Start) -> None:
    engine = await stub("p0")
    desk = await office(make_plan(engine.plan()))
    answer = await desk.client.post(
        "/gate", json={"instance": "p0"}, headers={"origin": "https://example.com"}
    )
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "cross-origin"


async def test_a_reload_adds_and_removes(
    stub: StartStub, make_plan: MakePlan, office: Start, until: Until
) -> None:
    one, two = await stub("p0"), await stub("p1")
    desk = await office(make_plan(one.plan()))
    desk.next_plan = make_plan(two.plan())
    answer = await desk.client.post("/reload")
    assert answer.json() == {"reloaded": True, "endpoints": 1}
    await until(lambda: ready(desk, "p1"))
    assert desk.registry.get("p0") is None


async def test_case_44_a_bad_reload_keeps_the_plan_in_use(
    stub: StartStub, make_plan: MakePlan, office: Start, until: Until
) -> None:
    engine = await stub("p0")
    desk = await office(make_plan(engine.plan()))
    await until(lambda: ready(desk, "p0"))
    answer = await desk.client.post("/reload")
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "the plan in use stays: plan.json: not a plan"
    assert answer.json()["error"]["code"] == "bad-topology"
    assert ready(desk, "p0")


async def test_a_reload_may_be_asked_to_change_nothing_or_to_insist(
    stub: StartStub, make_plan: MakePlan, office: Start
) -> None:
    engine = await stub("p0")
    desk = await office(make_plan(engine.plan()))
    desk.next_plan = make_plan(engine.plan())
    assert (await desk.client.post("/reload")).json()["reloaded"] is True
    assert desk.asked == Reload()
    body = {"dry_run": True, "scheduling": {"mode": "immediate"}}
    assert (await desk.client.post("/reload", json=body)).json()["reloaded"] is False
    assert desk.asked == Reload(dry_run=True, scheduling={"mode": "immediate"})
    await desk.client.post("/reload", json={"force": True})
    assert desk.asked == Reload(force=True)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"dry_run": 1}, "dry_run"),
        ({"force": "yes"}, "force"),
        ({"scheduling": {}}, "scheduling"),
        ({"dry_run": True, "scheduling": "slo"}, "scheduling"),
    ],
)
async def test_a_reload_that_makes_no_sense_is_told_so(
    stub: StartStub, make_plan: MakePlan, office: Start, body: dict[str, Any], param: str
) -> None:
    engine = await stub("p0")
    desk = await office(make_plan(engine.plan()))
    answer = await desk.client.post("/reload", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


async def test_flush_empties_the_caches_and_forgets_what_was_believed(
    stub: StartStub, make_plan: MakePlan, office: Start, until: Until
) -> None:
    one, two = await stub("p0"), await stub("p1")
    desk = await office(make_plan(one.plan(), two.plan(engine="./stub.py:NoFlush")))
    await until(lambda: ready(desk, "p0") and ready(desk, "p1"))
    answer = await desk.client.post("/flush_cache")
    assert answer.status_code == 200
    assert answer.json() == {"success": False, "endpoints": {"p0": "flushed", "p1": "unsupported"}}
    assert one.seen.count("/flush") == 1
    assert desk.forgotten == ["p0"]


@pytest.mark.parametrize(
    ("told", "says"),
    [((400, "busy"), "status 400"), ((200, {"success": False}), "status 200"), ((200, b"\xff"), "flushed")],
)
async def test_a_flush_that_did_not_happen_is_told_and_forgotten_all_the_same(
    stub: StartStub,
    make_plan: MakePlan,
    office: Start,
    until: Until,
    told: tuple[int, object],
    says: str,
) -> None:
    engine = await stub("p0")
    engine.answers["/flush"] = told
    desk = await office(make_plan(engine.plan()))
    await until(lambda: ready(desk, "p0"))
    answer = await desk.client.post("/flush_cache")
    assert says in answer.json()["endpoints"]["p0"]
    assert answer.status_code == (200 if says == "flushed" else 502)
    assert desk.forgotten == ["p0"]


async def test_a_flush_of_an_engine_that_died_is_told(
    stub: StartStub, make_plan: MakePlan, office: Start, until: Until
) -> None:
    engine = await stub("p0")
    desk = await office(make_plan(engine.plan()))
    await until(lambda: ready(desk, "p0"))
    await desk.prober.close()
    await engine.stop()
    answer = await desk.client.post("/flush_cache")
    assert answer.status_code == 502
    assert answer.json()["endpoints"]["p0"].startswith("failed: ")


async def test_a_bug_in_an_adapter_is_an_answer_and_no_silence(
    stub: StartStub, make_plan: MakePlan, office: Start, until: Until
) -> None:
    engine = await stub("p0")
    desk = await office(make_plan(engine.plan(engine="./stub.py:BadFlush")))
    await until(lambda: ready(desk, "p0"))
    answer = await desk.client.post("/flush_cache")
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "internal"
