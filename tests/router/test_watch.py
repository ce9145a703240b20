"""Engines that hang behind good probes, and single legs that are lost in them (watch, stages, attempt)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from datapath import DONE, Adapter, Rig, answers, build, event, hangs, streams

from orchestrator.clock import SystemClock
from orchestrator.core.types import End, Route
from orchestrator.router import watch
from orchestrator.topology.plan import Timeouts
from orchestrator.wire.server import Exchange

Make = Callable[..., Awaitable[Rig]]
CLOCK = SystemClock()
ASK = {"model": "m", "prompt": "hi"}
STREAM = {**ASK, "stream": True}
PATH = "/v1/completions"
PREFILLED = answers(200, b'{"kv":[1],"cached":3}')


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    """Builds rigs; each is checked to be at rest at the end, and taken down."""
    rigs: list[Rig] = []

    async def build_one(**options: Any) -> Rig:
        rig = await build(timeouts=Timeouts(hang_s=0.2), **{"retries": 0.0, **options})
        rigs.append(rig)
        if "p0" in rig.engines:
            rig.engines["p0"].script = PREFILLED
        return rig

    yield build_one
    for rig in rigs:
        await rig.at_rest()
        await rig.close()


def known(rig: Rig, *names: str) -> None:
    """These engines have answered before, so that they are not taken to compile."""
    for name in names:
        rig.app.shared.heard(name, 0.0, 0.0)


async def test_case_20_an_engine_that_takes_requests_and_never_answers_is_found(make: Make) -> None:
    rig = await make(roles="u")
    known(rig, "u0")
    rig.engines["u0"].script = hangs
    reply = await rig.ask(PATH, STREAM)
    assert (reply.status, reply.error["code"]) == (502, "engine-hung")
    assert rig.fleet.hung == ["u0"]
    await rig.until(lambda: rig.engines["u0"].aborted)


async def test_case_20_a_decode_that_hangs_ends_its_streams(make: Make) -> None:
    rig = await make()
    known(rig, "p0", "d0")
    rig.engines["d0"].script = streams(event("a"), gap_s=30.0)
    replies = await asyncio.gather(*(rig.ask(PATH, STREAM) for _ in range(5)))
    assert {r.error["code"] for r in replies} == {"engine-hung"}
    assert all(r.whole and r.body.startswith(event("a")) for r in replies)
    assert rig.fleet.hung == ["d0"]
    await rig.at_rest()
    assert {done.end for done, _, _ in rig.metrics.done} == {End.BROKEN}


async def test_an_engine_that_answers_others_does_not_hang(make: Make) -> None:
    """The leg sent before them is lost, and it alone."""
    rig = await make(roles="u")
    known(rig, "u0")
    rig.engines["u0"].script = hangs
    client = await rig.client()
    await client.send(PATH, STREAM)
    await rig.until(lambda: rig.engines["u0"].exchanges)
    rig.engines["u0"].script = streams(event("a"), DONE)
    going = asyncio.Event()

    async def others() -> None:
        while not going.is_set():
            assert (await rig.ask(PATH, STREAM)).status == 200
            await asyncio.sleep(0.02)

    task = asyncio.create_task(others())
    reply = await client.read()
    going.set()
    await task
    assert (reply.status, reply.error["code"]) == (504, "first-token-deadline")
    assert "sent after it is answered" in reply.error["message"]
    assert rig.fleet.hung == []


async def test_case_39_an_engine_that_has_answered_nothing_yet_is_given_time(make: Make) -> None:
    rig = await make(roles="u")
    go = asyncio.Event()

    async def compiles(exchange: Exchange) -> None:
        await go.wait()
        await streams(event("a"), DONE)(exchange)

    rig.engines["u0"].script = compiles
    client = await rig.client()
    await client.send(PATH, STREAM)
    await rig.until(lambda: rig.engines["u0"].exchanges)
    watch.look(rig.app.shared, rig.fleet, CLOCK.now_s() + 1.0)
    assert rig.fleet.hung == []
    go.set()
    assert (await client.read()).status == 200


async def test_counters_that_move_are_a_sign_of_life(make: Make) -> None:
    rig = await make(roles="u")
    known(rig, "u0")
    rig.engines["u0"].script = hangs
    client = await rig.client()
    await client.send(PATH, ASK)
    await rig.until(lambda: rig.engines["u0"].exchanges)
    late_s = CLOCK.now_s() + 100.0
    rig.fleet.moved["u0"] = late_s
    watch.look(rig.app.shared, rig.fleet, late_s)
    assert rig.fleet.hung == []
    client.close()


async def test_counters_that_stand_still_end_what_runs_there(make: Make) -> None:
    rig = await make(roles="pd")
    rig.engines["d0"].script = hangs
    client = await rig.client()
    await client.send(PATH, ASK)
    await rig.until(lambda: rig.engines["d0"].exchanges)
    [told] = rig.fleet.on_hung_told
    told("d0", "has work, but none got done for 120 s")
    reply = await client.read()
    assert (reply.status, reply.error["code"]) == (502, "engine-hung")


async def test_of_a_pair_only_the_silent_side_hangs(make: Make) -> None:
    """Prefill waits for decode to fetch, and answers others meanwhile."""
    rig = await make(adapter=Adapter(), roles="pdd")
    known(rig, "p0", "d0", "d1")
    rig.engines["p0"].script = rig.engines["d0"].script = hangs
    client = await rig.client()
    await client.send(PATH, STREAM)
    await rig.until(lambda: rig.engines["d0"].exchanges)
    rig.engines["p0"].script, rig.engines["d1"].script = PREFILLED, streams(event("a"), DONE)
    rig.scheduler.route = Route(decode="d1", prefill="p0")
    assert (await rig.ask(PATH, STREAM)).status == 200
    reply = await client.read()
    assert reply.error["code"] in ("engine-hung", "prefill-deadline")
    assert "p0" not in rig.fleet.hung or rig.fleet.hung == ["d0"]
