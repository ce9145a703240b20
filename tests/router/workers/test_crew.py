"""Relay processes (crew, hub, relay, __main__): killed ones are replaced, streams outlive their scheduler."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest
from routerprocess import GUARD_S, Process

from orchestrator.core.types import Role
from orchestrator.topology.plan import Limits, Plan, dump

MakePlan = Callable[..., Plan]
StartStub = Callable[[str], Awaitable[Any]]
Until = Callable[[Callable[[], object]], Awaitable[None]]
Start = Callable[..., Awaitable[Process]]

DONE = b"data: [DONE]\n\n"


class Reading:
    """A client that reads a stream; `text` is what has come, `cut` whether it broke off."""

    def __init__(self, url: str) -> None:
        self.text = ""
        self.status = 0
        self.cut = False
        self.task = asyncio.create_task(self._read(url))

    async def _read(self, url: str) -> None:
        body = {"model": "m", "prompt": "x", "stream": True}
        async with httpx.AsyncClient(trust_env=False, timeout=None) as client:
            try:
                async with client.stream("POST", f"{url}/v1/completions", json=body) as answer:
                    self.status = answer.status_code
                    async for piece in answer.aiter_text():
                        self.text += piece
            except httpx.TransportError:
                self.cut = True

    async def ends(self) -> str:
        async with asyncio.timeout(GUARD_S):
            await self.task
        return self.text


class Site:
    """A router with two workers before one engine."""

    def __init__(self, router: Process, engine: Any, url: str, admin: str, until: Until) -> None:
        self.router, self.engine, self.url, self.admin, self.until = router, engine, url, admin, until

    async def stream(self) -> Reading:
        reading = Reading(self.url)
        await self.until(lambda: "Hello" in reading.text or reading.task.done())
        assert "Hello" in reading.text
        return reading

    def finish(self) -> None:
        for stream in self.engine.streams:
            stream.write(DONE)
            stream.end()

    def workers(self) -> list[int]:
        """The router's children."""
        pid = self.router.process.pid
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [int(word) for word in file.read().split()]

    async def metrics(self) -> dict[str, float]:
        async with httpx.AsyncClient(trust_env=False) as client:
            text = (await client.get(f"{self.admin}/metrics")).text
        rows = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, _, value in rows}

    async def metric(self, pattern: str) -> float:
        return sum(v for name, v in (await self.metrics()).items() if re.match(pattern, name))

    async def becomes(self, pattern: str, value: float) -> None:
        async with asyncio.timeout(GUARD_S):
            while await self.metric(pattern) != value:  # noqa: ASYNC110  (it is another process's)
                await asyncio.sleep(0.02)


@pytest.fixture
async def site(
    stub: StartStub, make_plan: MakePlan, run: Start, until: Until
) -> Callable[..., Awaitable[Site]]:
    async def start(**router: Any) -> Site:
        engine = await stub("u0")
        whole = engine.plan(Role.UNIFIED, engine="./stub.py:Whole", disaggregated=False)
        process = await run(make_plan(whole, workers=2, **router))
        url, admin = await process.urls()
        await process.says('msg="endpoint ready" endpoint=u0')
        return Site(process, engine, url, admin, until)

    return start


Sites = Callable[..., Awaitable[Site]]


async def test_streams_over_two_workers_are_counted_as_one_routers(site: Sites) -> None:
    here = await site()
    assert await here.metric("pdctl_workers") == 2
    readings = [await here.stream() for _ in range(4)]
    assert await here.metric("pdctl_inflight_requests") == 4
    assert await here.metric("pdctl_endpoint_inflight_requests") == 4
    here.finish()
    for reading in readings:
        assert (await reading.ends()).endswith("data: [DONE]\n\n")
    await here.becomes("pdctl_inflight_requests", 0)
    assert await here.metric(r'pdctl_requests_total\{end="completed"') == 4
    assert await here.metric("pdctl_endpoint_inflight_") == 0
    here.router.signal(signal.SIGTERM)
    assert await here.router.ends() == 0
    assert not (here.router.state / "workers.sock").exists()


async def test_a_stop_lets_a_stream_end(site: Sites) -> None:
    here = await site(drain_s=3600.0)
    reading = await here.stream()
    here.router.signal(signal.SIGTERM)
    await here.router.says("msg=draining inflight=1")
    here.finish()
    assert (await reading.ends()).endswith("data: [DONE]\n\n")
    assert await here.router.ends() == 0
    await here.router.says("msg=stopped all_finished=true")


async def test_a_stream_that_is_cut_at_the_deadline_is_told_so(site: Sites) -> None:
    here = await site(drain_s=0.1)
    reading = await here.stream()
    here.router.signal(signal.SIGTERM)
    assert '"code":"draining"' in (await reading.ends()).splitlines()[-2]
    assert await here.router.ends() == 0


async def test_a_killed_worker_costs_its_own_streams_and_is_replaced(site: Sites) -> None:
    here = await site()
    readings: list[Reading] = []
    # The kernel spreads connections by their ports: by and by both workers have some.
    first, second = sorted(here.workers())
    while streams_of(first) == 0 or streams_of(second) == 0:
        readings.append(await here.stream())
        assert len(readings) < 64
    lost = streams_of(first)
    os.kill(first, signal.SIGKILL)
    await here.router.says(rf'msg="a worker is gone, with its requests" pid={first} lost={lost}$')
    await here.until(lambda: sum(reading.cut for reading in readings) == lost)
    left = len(readings) - lost
    assert await here.metric("pdctl_endpoint_inflight_requests") == left
    assert await here.metric(r'pdctl_requests_total\{.*reason="worker-lost"') == lost
    await here.becomes("pdctl_workers", 2)
    assert await here.metric(r'pdctl_worker_exits_total\{how="sigkill"\}') == 1
    await here.stream()
    here.finish()
    await asyncio.gather(*(reading.ends() for reading in readings))
    assert sum("[DONE]" in reading.text for reading in readings) == left
    await here.becomes("pdctl_endpoint_inflight_", 0)


def streams_of(pid: int) -> int:
    """Connections of clients that a worker has accepted."""
    with open(f"/proc/{pid}/net/tcp") as file:
        rows = [line.split() for line in list(file)[1:]]
    own = {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
    listening = {row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in own}
    return sum(row[1] in listening and row[3] == "01" and f"socket:[{row[9]}]" in own for row in rows)


async def test_streams_outlive_their_scheduler_and_the_next_one_counts_them(site: Sites, run: Start) -> None:
    here = await site(drain_s=60.0)
    readings = [await here.stream() for _ in range(3)]
    here.router.signal(signal.SIGKILL)
    await here.router.says("the scheduler is gone; what runs goes on")
    await asyncio.wait_for(here.router.process.wait(), GUARD_S)
    router = await run(None, "--state", str(here.router.state), "--take-over")
    url, admin = await router.urls()
    there = Site(router, here.engine, url, admin, here.until)
    await there.becomes("pdctl_endpoint_inflight_requests", 3)
    readings.append(await there.stream())
    assert not any(reading.task.done() for reading in readings)
    here.finish()
    for reading in readings:
        assert (await reading.ends()).endswith("data: [DONE]\n\n")
    await there.becomes("pdctl_endpoint_inflight_", 0)


async def test_another_router_takes_over_from_workers_and_a_stream_goes_on(site: Sites, run: Start) -> None:
    here = await site(drain_s=60.0)
    reading = await here.stream()
    router = await run(None, "--state", str(here.router.state), "--take-over")
    await router.says("took over from the router before")
    url, admin = await router.urls()
    assert url == here.url
    there = Site(router, here.engine, url, admin, here.until)
    next_ = await there.stream()
    assert not reading.task.done()
    here.finish()
    for one in (reading, next_):
        assert (await one.ends()).endswith("data: [DONE]\n\n")
    assert await here.router.ends() == 0
    assert (router.state / "workers.sock").exists(), "it is the new one's"


async def test_bounds_hold_over_all_workers_together(site: Sites) -> None:
    here = await site(limits=Limits(max_inflight=3), tenants={})
    readings = [await here.stream() for _ in range(3)]
    more = Reading(here.url)
    assert "too-many-requests" in await more.ends()
    assert more.status == 429
    here.finish()
    for reading in readings:
        await reading.ends()
    await here.becomes("pdctl_inflight_requests", 0)
    await here.stream()


async def test_a_reload_reaches_the_workers(site: Sites, stub: StartStub, make_plan: MakePlan) -> None:
    here = await site()
    old = await here.stream()
    other = await stub("u1")
    plan = make_plan(
        replace(other.plan(Role.UNIFIED, engine="./stub.py:Whole", disaggregated=False), model="m2"),
        workers=2,
    )
    (here.router.state / "plan.json").write_bytes(dump(plan))
    here.router.signal(signal.SIGHUP)
    await here.router.says('msg="endpoint ready" endpoint=u1')
    async with httpx.AsyncClient(trust_env=False) as client:
        served, asked = 0, 0
        # Several in a row, each over a connection of its own: some of them reach the other worker.
        while served < 6:
            told = (await client.get(f"{here.url}/v1/models", headers={"connection": "close"})).json()
            served = served + 1 if [one["id"] for one in told["data"]] == ["m2"] else 0
            asked += 1
            assert asked < 500
    here.finish()
    assert (await old.ends()).endswith("data: [DONE]\n\n")


async def test_a_taken_port_is_exit_3_and_names_the_holder(
    stub: StartStub, make_plan: MakePlan, run: Start
) -> None:
    engine = await stub("p0")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        router = await run(make_plan(engine.plan(), port=port, workers=2))
        assert await router.ends() == 3
    assert f"the client address 127.0.0.1:{port} is taken by pid {os.getpid()} (" in router.lines[-1]
