"""Legs of units that are given up: let end where a peer needs it, and freed where they were never sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from datapath import Adapter, Rig, answers, build, hangs

from orchestrator.core.contracts import Bind, Spent
from orchestrator.core.types import End, Route
from orchestrator.topology.plan import Timeouts
from orchestrator.wire.server import Exchange

Make = Callable[..., Awaitable[Rig]]
ASK = {"model": "m", "prompt": "hi"}
PATH = "/v1/completions"


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    """Builds rigs; each is checked to be at rest at the end, and taken down."""
    rigs: list[Rig] = []

    async def build_one(**options: Any) -> Rig:
        rig = await build(**options)
        rigs.append(rig)
        return rig

    yield build_one
    for rig in rigs:
        await rig.at_rest()
        await rig.close()


class Slow:
    """A prefill engine that answers when told."""

    def __init__(self) -> None:
        self.go = asyncio.Event()

    async def __call__(self, exchange: Exchange) -> None:
        await self.go.wait()
        exchange.respond(200, b'{"kv":[1]}')


async def leave(rig: Rig, body: Any, when: Callable[[], object]) -> None:
    """A client that goes once `when` holds; until its request is over."""
    client = await rig.client()
    await client.send(PATH, body)
    await rig.until(when)
    client.close()
    await rig.until(lambda: not rig.app.inflight)
    assert rig.metrics.done[-1][0].end is End.CANCELLED


def both(rig: Rig) -> Callable[[], object]:
    """Both legs are there."""
    return lambda: all(engine.exchanges for engine in rig.engines.values())


# -- owed to a peer


async def test_prefill_that_decode_waits_for_is_let_end(make: Make) -> None:
    rig = await make(adapter=Adapter(owed=True))
    prefill = rig.engines["p0"].script = Slow()
    rig.engines["d0"].script = hangs
    await leave(rig, ASK, both(rig))
    await rig.until(lambda: rig.engines["d0"].left)
    assert len(rig.app.orphans) == 1
    assert not rig.engines["p0"].left
    assert not rig.engines["p0"].aborted
    prefill.go.set()
    await rig.until(lambda: not len(rig.app.orphans))
    assert not rig.engines["p0"].left
    assert sorted(rig.metrics.legs) == [("decode", "d0", "aborted"), ("prefill", "p0", "unwanted")]


async def test_prefill_is_closed_when_decode_has_failed(make: Make) -> None:
    rig = await make(adapter=Adapter(owed=True))
    rig.engines["p0"].script = hangs
    rig.engines["d0"].script = answers(500, b'{"error":{"message":"no"}}')
    assert (await rig.ask(PATH, ASK)).status == 502
    await rig.until(lambda: rig.engines["p0"].left)
    assert not len(rig.app.orphans)


@pytest.mark.parametrize("how", ["late", "dropped", "stopped"])
async def test_prefill_that_does_not_end_is_closed_in_the_end(make: Make, how: str) -> None:
    rig = await make(adapter=Adapter(owed=True), timeouts=Timeouts(prefill_s=100.0))
    drop = asyncio.Event()

    async def never(exchange: Exchange) -> None:
        await drop.wait()
        exchange.abort()

    rig.engines["p0"].script = never
    rig.engines["d0"].script = hangs
    await leave(rig, ASK, both(rig))
    if how == "late":
        rig.app.orphans.check(1e12)
    elif how == "dropped":
        drop.set()
    else:
        await rig.app.close()
    await rig.until(lambda: not len(rig.app.orphans))
    result = "connection-dropped" if how == "dropped" else "aborted"
    assert ("prefill", "p0", result) in rig.metrics.legs


async def test_prefill_past_its_deadline_is_not_let_go_on(make: Make) -> None:
    rig = await make(adapter=Adapter(owed=True), timeouts=Timeouts(prefill_s=0.05), retries=0.0)
    rig.engines["p0"].script = rig.engines["d0"].script = hangs
    assert (await rig.ask(PATH, ASK)).error["code"] == "prefill-deadline"
    assert not len(rig.app.orphans)
    await rig.until(lambda: rig.engines["p0"].left)


# -- never sent


async def test_what_a_leg_that_was_never_sent_would_have_fetched_is_freed(make: Make) -> None:
    """Nobody was named to decode when the client left."""
    rig = await make(adapter=Adapter(chained=True))
    rig.scheduler.provisional = True
    rig.engines["p0"].script = answers(200, b'{"kv":[7]}')
    await leave(rig, ASK, lambda: any(e.what == "done" for e in rig.scheduler.events))
    await rig.until(lambda: rig.engines["d0"].released)
    assert rig.engines["d0"].released == [b"[7]"]
    assert not rig.engines["d0"].exchanges


async def test_a_hand_off_that_expires_is_freed_and_tried_again(make: Make) -> None:
    rig = await make(adapter=Adapter(chained=True))
    rig.scheduler.provisional = True
    rig.engines["p0"].script = answers(200, b'{"kv":[7]}')
    rig.engines["d0"].script = answers(200, b'{"choices":[],"text":"x"}')
    client = await rig.client()
    await client.send(PATH, ASK)
    await rig.until(lambda: any(e.what == "done" for e in rig.scheduler.events))
    name = rig.scheduler.submitted[0].id
    rig.scheduler.provisional = False
    rig.scheduler.next = [Spent(name)]
    rig.fleet.change()
    assert (await client.read()).status == 200
    await rig.at_rest()
    assert rig.engines["d0"].released == [b"[7]"]
    assert [done.end for done in rig.scheduler.finished] == [End.FAILED, End.COMPLETED]


async def test_what_was_named_and_sent_is_not_freed(make: Make) -> None:
    rig = await make(adapter=Adapter(chained=True), roles="pdd")
    rig.scheduler.provisional = True
    rig.engines["p0"].script = answers(200, b'{"kv":[7]}')
    rig.engines["d1"].script = hangs
    client = await rig.client()
    await client.send(PATH, ASK)
    await rig.until(lambda: any(e.what == "done" for e in rig.scheduler.events))
    rig.scheduler.next = [Bind(rig.scheduler.submitted[0].id, Route(decode="d1", prefill="p0"))]
    rig.fleet.change()
    await rig.until(lambda: rig.engines["d1"].exchanges)
    client.close()
    await rig.at_rest()
    assert not rig.engines["d0"].released
    assert not rig.engines["d1"].released


async def test_a_finished_sibling_of_a_part_that_fails_is_freed(make: Make) -> None:
    rig = await make(adapter=Adapter(chained=True, splits=True), retries=0.0)
    rig.scheduler.provisional = True

    async def prefill(exchange: Exchange) -> None:
        if b'"b"' not in exchange.body:
            exchange.respond(200, b'{"kv":[1]}')
            return
        await rig.until(lambda: ("prefill", "p0", "ok") in rig.metrics.legs)
        exchange.respond(500, b"{}")

    rig.engines["p0"].script = prefill
    reply = await rig.ask(PATH, {"model": "m", "prompt": ["a", "b"]})
    assert (reply.status, reply.error["code"]) == (502, "prefill-failed")
    await rig.until(lambda: rig.engines["d0"].released)
    assert rig.engines["d0"].released == [b"[1]"]
    assert not rig.engines["d0"].exchanges


# -- reached nobody


async def unreachable(make: Make, **options: Any) -> Rig:
    """Prefill answers, and nobody listens where decode was to go."""
    rig = await make(adapter=Adapter(chained=True), roles="pdd", **options)
    rig.engines["p0"].script = answers(200, b'{"kv":[7]}')
    rig.engines["d1"].script = answers(200, b'{"choices":[],"text":"x"}')
    await rig.engines["d0"].stop()
    rig.scheduler.holds = True
    return rig


async def test_a_hand_off_that_decode_was_never_sent_goes_to_another(make: Make) -> None:
    """What prefill told is as good as before: it need not compute the prompt again."""
    rig = await unreachable(make)
    client = await rig.client()
    await client.send(PATH, ASK)
    await rig.until(lambda: rig.scheduler.rebound)
    [again] = rig.scheduler.rebound
    assert again.avoid == ("d0",)
    rig.scheduler.next = [Bind(again.id, Route(decode="d1", prefill="p0"))]
    rig.fleet.change()
    assert (await client.read()).status == 200
    await rig.at_rest()
    assert len(rig.engines["p0"].exchanges) == 1
    assert rig.engines["d1"].bodies[0]["kv"] == [7]
    assert [done.route for done in rig.scheduler.finished] == [Route(decode="d1", prefill="p0")]
    assert rig.metrics.retries == [("rebind", "again")]


async def test_a_client_that_leaves_while_another_is_looked_for(make: Make) -> None:
    rig = await unreachable(make)
    await leave(rig, ASK, lambda: rig.scheduler.rebound)


async def test_where_there_is_no_other_prefill_computes_it_again(make: Make) -> None:
    rig = await unreachable(make)
    client = await rig.client()
    await client.send(PATH, ASK)
    await rig.until(lambda: rig.scheduler.rebound)
    rig.scheduler.routes = [Route(decode="d1", prefill="p0")]
    rig.scheduler.next = [Spent(rig.scheduler.rebound[0].id)]
    rig.fleet.change()
    assert (await client.read()).status == 200
    await rig.at_rest()
    assert len(rig.engines["p0"].exchanges) == 2
    assert [done.end for done in rig.scheduler.finished] == [End.FAILED, End.COMPLETED]


async def test_parameters_that_may_have_been_used_are_not_sent_again(make: Make) -> None:
    """Decode has read the request: what prefill told may lead to another prompt's KV by now."""
    rig = await make(adapter=Adapter(chained=True), roles="pdd")
    kv = iter((b'{"kv":[1]}', b'{"kv":[2]}'))

    async def prefill(exchange: Exchange) -> None:
        exchange.respond(200, next(kv))

    async def drop(exchange: Exchange) -> None:
        exchange.abort()

    rig.engines["p0"].script, rig.engines["d0"].script = prefill, drop
    rig.engines["d1"].script = answers(200, b'{"choices":[],"text":"x"}')
    rig.scheduler.routes = [Route(decode="d0", prefill="p0"), Route(decode="d1", prefill="p0")]
    assert (await rig.ask(PATH, ASK)).status == 200
    assert rig.engines["d0"].bodies[0]["kv"] == [1]
    assert rig.engines["d1"].bodies[0]["kv"] == [2]
    assert not rig.scheduler.rebound
    assert rig.scheduler.submitted[1].avoid == ("d0",)
