"""The prober and its module ask against real servers: joining, dying, slowness, garbage, keys."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from random import Random
from typing import Any

import pytest

from orchestrator.clock import SystemClock
from orchestrator.core.types import Inflight, Role
from orchestrator.engines.base import HttpCall, Probes
from orchestrator.router import ask
from orchestrator.router.endpoints import Registry
from orchestrator.router.scrape import Cadence, Prober
from orchestrator.topology.plan import InstancePlan, Plan
from orchestrator.wire.client import Pool

FAST = Cadence(out_s=0.01, ready_s=0.02, floor_s=0.001)

MakePlan = Callable[..., Plan]
StartStub = Callable[[str], Awaitable[Any]]
Until = Callable[[Callable[[], object]], Awaitable[None]]


class Counts:
    """Remembers what was counted."""

    def __init__(self) -> None:
        self.errors: list[tuple[str, str, str]] = []
        self.changes: list[tuple[str, str, str]] = []

    def probe_error(self, endpoint: str, call: str, why: str) -> None:
        self.errors.append((endpoint, call, why))

    def endpoint_changed(self, endpoint: str, to: str, why: str) -> None:
        self.changes.append((endpoint, to, why))

    def alarm(self, endpoint: str, alarm: str, times: float) -> None:
        self.alarms = [*getattr(self, "alarms", ()), (endpoint, alarm, times)]

    def incarnation(self, endpoint: str) -> None:
        self.changes.append((endpoint, "incarnation", ""))


class Watching:
    """A registry and its prober over real servers."""

    def __init__(self, plan: Plan, cadence: Cadence = FAST, key: str | None = None) -> None:
        self.counts = Counts()
        self.inflight = Inflight()
        clock = SystemClock()
        self.registry = Registry(plan, clock, self.counts, inflight=lambda _: self.inflight)
        self.pool = Pool(connect_timeout_s=2.0)
        self.prober = Prober(self.registry, self.pool, self.counts, clock, Random(1), key, cadence)
        self.prober.sync()

    def ready(self, name: str) -> bool:
        endpoint = self.registry.get(name)
        return endpoint is not None and endpoint.ready

    def why(self, name: str) -> str:
        state = self.registry.state(name)
        assert state is not None
        return state.why

    async def close(self) -> None:
        await self.prober.close()
        self.pool.close()


@pytest.fixture
async def watch() -> AsyncIterator[Callable[..., Watching]]:
    made: list[Watching] = []

    def make(plan: Plan, **options: Any) -> Watching:
        made.append(Watching(plan, **options))
        return made[-1]

    yield make
    for watching in made:
        await watching.close()


async def test_it_joins_when_it_answers_and_leaves_when_it_dies(
    stub: StartStub, make_plan: MakePlan, watch: Callable[..., Watching], until: Until
) -> None:
    engine = await stub("p0")
    world = watch(make_plan(engine.plan()))
    await until(lambda: world.ready("p0"))
    endpoint = world.registry.get("p0")
    assert endpoint is not None
    assert endpoint.incarnation == "p0-1"
    assert endpoint.block_size == 64
    await engine.stop()
    await until(lambda: not world.ready("p0"))
    assert "connection refused" in world.why("p0")
    engine.answers["/info"] = (200, {"incarnation": "p0-2"})
    await engine.start()
    await until(lambda: world.ready("p0"))
    assert ("p0", "incarnation", "") in world.counts.changes
    assert ("p0", "out", "refused") in world.counts.changes


async def test_case_41_one_that_never_comes_keeps_nobody_waiting(
    stub: StartStub, make_plan: MakePlan, watch: Callable[..., Watching], until: Until
) -> None:
    good, dead = await stub("p0"), await stub("p1")
    await dead.stop()
    world = watch(make_plan(dead.plan(), good.plan()))
    await until(lambda: world.ready("p0"))
    assert not world.ready("p1")


async def test_case_20_an_endpoint_that_does_not_answer_delays_no_other(
    stub: StartStub, make_plan: MakePlan, watch: Callable[..., Watching], until: Until
) -> None:
    good, stuck = await stub("p0"), await stub("p1")
    stuck.hang |= {"/ready", "/info", "/load"}
    forever = Probes(ready=(HttpCall("GET", "/ready", timeout_s=3600.0),), live=HttpCall("GET", "/ready"))
    world = watch(make_plan(stuck.plan(probes=forever), good.plan()))
    await until(lambda: world.ready("p0"))
    loads = good.seen.count("/load")
    await until(lambda: good.seen.count("/load") > loads + 3)
    assert stuck.seen == ["/ready"]


async def test_discovery_that_is_not_satisfied_keeps_it_out_and_says_why(
    stub: StartStub, make_plan: MakePlan, watch: Callable[..., Watching], until: Until
) -> None:
    engine = await stub("p0")
    engine.answers["/info"] = (200, {"not_yet": "2 of 4 ranks registered"})
    world = watch(make_plan(engine.plan()))
    await until(lambda: "2 of 4 ranks registered" in world.why("p0"))
    assert not world.ready("p0")
    engine.answers["/info"] = (200, {"incarnation": "x"})
    await until(lambda: world.ready("p0"))


@pytest.mark.parametrize(
    ("answer", "why", "slug"),
    [
        ((503, "loading weights"), 'status 503: "loading weights"', "http-503"),
        ((500, b"\x00\xff boom"), "status 500", "http-500"),
        ((404, "no"), "status 404", "http-404"),
        ((401, "no"), "engine key", "http-401"),
    ],
)
async def test_what_keeps_it_out_is_told_in_words(
    stub: StartStub,
    make_plan: MakePlan,
    watch: Callable[..., Watching],
    until: Until,
    answer: tuple[int, object],
    why: str,
    slug: str,
) -> None:
    engine = await stub("p0")
    engine.answers["/ready"] = answer
    world = watch(make_plan(engine.plan()))
    await until(lambda: why in world.why("p0"))
    assert world.why("p0").startswith("GET /ready: ")
    assert world.why("p0").isprintable()
    assert ("p0", "ready", slug) in world.counts.errors
    assert not world.ready("p0")


async def test_case_29_the_engine_key_is_sent_and_a_4xx_is_not_unhealthy(
    stub: StartStub, make_plan: MakePlan, watch: Callable[..., Watching], until: Until
) -> None:
    engine = await stub("p0")
    engine.key = "engine-secret"
    world = watch(make_plan(engine.plan()), key="engine-secret")
    await until(lambda: world.ready("p0"))
    engine.key = "changed-behind-us"
    asked = engine.seen.count("/ready")
    await until(lambda: engine.seen.count("/ready") > asked + 6)
    assert world.ready("p0")
    assert ("p0", "ready", "http-401") in world.counts.errors


async def test_loads_are_read_and_garbage_is_counted_and_logged_once(
    stub: StartStub,
    make_plan: MakePlan,
    watch: Callable[..., Watching],
    until: Until,
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = await stub("p0")
    engine.answers["/load"] = (200, {"running": 7})
    world = watch(make_plan(engine.plan()))

    def running() -> int | None:
        endpoint = world.registry.get("p0")
        return endpoint.load.running if endpoint is not None and endpoint.load is not None else None

    await until(lambda: running() == 7)
    engine.answers["/load"] = (200, b"<html>not a load</html>")
    await until(lambda: world.counts.errors.count(("p0", "load", "garbage")) > 3)
    assert world.ready("p0"), "an unreadable load is no reason to leave"
    assert running() == 7, "the last good one stays, with its time"
    told = [r for r in caplog.records if getattr(r, "call", "") == "load"]
    assert len(told) == 1
    assert vars(told[0])["endpoint"] == "p0"
    engine.answers["/load"] = (200, {"running": 8})
    await until(lambda: running() == 8)


async def test_a_bug_in_an_adapter_is_counted_and_ends_no_watch(
    stub: StartStub, make_plan: MakePlan, watch: Callable[..., Watching], until: Until
) -> None:
    engine = await stub("p0")
    engine.answers["/load"] = (200, {"no-such-field": 1})
    world = watch(make_plan(engine.plan()))
    await until(lambda: world.counts.errors.count(("p0", "adapter", "bug")) > 2)
    assert world.ready("p0")
    engine.answers["/load"] = (200, {"running": 1})
    asked = engine.seen.count("/ready")
    await until(lambda: engine.seen.count("/ready") > asked + 2)


async def test_garbage_in_discovery_keeps_it_out(
    stub: StartStub, make_plan: MakePlan, watch: Callable[..., Watching], until: Until
) -> None:
    engine = await stub("p0")
    engine.answers["/info"] = (200, b"not json")
    world = watch(make_plan(engine.plan()))
    await until(lambda: ("p0", "info", "garbage") in world.counts.errors)
    assert not world.ready("p0")
    assert "cannot be read" in world.why("p0")


async def test_a_server_that_speaks_no_http_keeps_itself_out(
    stub: StartStub, make_plan: MakePlan, watch: Callable[..., Watching], until: Until
) -> None:
    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
        await reader.read()
        writer.close()

    listener = await asyncio.start_server(babble, "127.0.0.1", 0)
    async with listener:
        engine = await stub("p0")
        port = listener.sockets[0].getsockname()[1]
        world = watch(make_plan(engine.plan(url=f"http://127.0.0.1:{port}")))
        await until(lambda: ("p0", "ready", "garbage") in world.counts.errors)
        assert not world.ready("p0")


async def test_an_answer_without_end_is_cut(
    stub: StartStub, make_plan: MakePlan, watch: Callable[..., Watching], until: Until
) -> None:
    engine = await stub("p0")
    engine.answers["/ready"] = (200, b"x" * (ask.MAX_ANSWER_BYTES + 1))
    world = watch(make_plan(engine.plan()))
    await until(lambda: ("p0", "ready", "too-large") in world.counts.errors)
    assert not world.ready("p0")


async def test_case_39_a_slow_engine_with_work_stays_in(
    stub: StartStub, make_plan: MakePlan, watch: Callable[..., Watching], until: Until
) -> None:
    engine = await stub("p0")
    hasty = Probes(ready=(HttpCall("GET", "/ready", timeout_s=0.05),), live=HttpCall("GET", "/ready"))
    world = watch(make_plan(engine.plan(probes=hasty)))
    await until(lambda: world.ready("p0"))
    world.inflight = Inflight(requests=1)
    engine.hang.add("/ready")
    await until(lambda: world.counts.errors.count(("p0", "ready", "slow")) > 5)
    assert world.ready("p0")
    world.inflight = Inflight()
    await until(lambda: not world.ready("p0"))
    assert ("p0", "out", "slow") in world.counts.changes


async def test_a_hint_is_followed_by_a_probe_at_once(
    stub: StartStub, make_plan: MakePlan, watch: Callable[..., Watching], until: Until
) -> None:
    engine = await stub("p0")
    rare = Cadence(out_s=0.01, ready_s=3600.0, floor_s=0.001)
    world = watch(make_plan(engine.plan()), cadence=rare)
    await until(lambda: world.ready("p0"))
    await engine.stop()
    assert world.ready("p0"), "the next probe is an hour away"
    world.registry.leg_failed("p0", TimeoutError())
    await until(lambda: not world.ready("p0"))


async def test_several_ready_calls_must_all_answer_and_one_may_be_on_another_port(
    stub: StartStub, make_plan: MakePlan, watch: Callable[..., Watching], until: Until
) -> None:
    engine, bootstrap = await stub("p0"), await stub("bootstrap")
    bootstrap.answers["/route"] = (503, "not fully registered yet")
    both = Probes(
        ready=(HttpCall("GET", "/ready"), HttpCall("GET", "/route?rank=-1", port=bootstrap.port)),
        live=HttpCall("GET", "/ready"),
    )
    world = watch(make_plan(engine.plan(probes=both)))
    await until(lambda: "not fully registered" in world.why("p0"))
    assert world.why("p0").startswith(f"GET /route on port {bootstrap.port}: ")
    bootstrap.answers["/route"] = (200, {})
    await until(lambda: world.ready("p0"))


async def test_a_reload_starts_and_stops_watching(
    stub: StartStub, make_plan: MakePlan, watch: Callable[..., Watching], until: Until
) -> None:
    one, two = await stub("p0"), await stub("d0")
    world = watch(make_plan(one.plan()))
    await until(lambda: world.ready("p0"))
    world.registry.apply(make_plan(two.plan(Role.DECODE)))
    world.prober.sync()
    await until(lambda: world.ready("d0"))
    asked = len(one.seen)
    more = len(two.seen)
    await until(lambda: len(two.seen) > more + 10)
    assert len(one.seen) == asked


async def test_an_instance_that_moved_is_probed_where_it_is_now(
    stub: StartStub, make_plan: MakePlan, watch: Callable[..., Watching], until: Until
) -> None:
    old, new = await stub("p0"), await stub("p0")
    old.hang.add("/ready")
    world = watch(make_plan(old.plan()))
    await until(lambda: old.seen)
    world.registry.apply(make_plan(new.plan()))
    world.prober.sync()
    await until(lambda: world.ready("p0"))


def instance_at(port: int) -> InstancePlan:
    return InstancePlan(
        name="x", pool="p", role=Role.PREFILL, engine="./stub.py:Stub", model="m", node="local",
        url=f"http://127.0.0.1:{port}", argv=(), env={}, ports={},
        probes=Probes(ready=(HttpCall("GET", "/ready"),), live=HttpCall("GET", "/ready")),
    )  # fmt: skip


async def test_ask_gives_up_after_its_time(stub: StartStub) -> None:
    engine = await stub("p0")
    engine.hang.add("/ready")
    pool = Pool()
    with pytest.raises(TimeoutError):
        await ask.ask(pool, instance_at(engine.port).url, HttpCall("GET", "/ready", timeout_s=0.05), None)
    pool.close()


async def test_ask_asks_again_when_a_kept_connection_was_closed(stub: StartStub) -> None:
    engine = await stub("p0")
    pool, url, call = Pool(), instance_at(engine.port).url, HttpCall("GET", "/ready")
    assert (await ask.ask(pool, url, call, None)).status == 200
    await engine.stop()
    await engine.start()
    assert (await ask.ask(pool, url, call, None)).status == 200
    pool.close()
