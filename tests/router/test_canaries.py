"""Known questions through real sockets: both hand-offs, what each outcome means, and what is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from random import Random
from typing import Any, cast

import pytest
from datapath import Adapter, Engine, Fleet, answers, completion, hangs

from orchestrator.clock import SystemClock
from orchestrator.core.pairs import Pairs, Standing
from orchestrator.core.types import Role
from orchestrator.router.canaries import QUESTION, TOKENS, Canaries
from orchestrator.router.endpoints import Registry
from orchestrator.router.rooms import Rooms
from orchestrator.wire.client import Pool

BOTH = pytest.mark.parametrize("chained", [False, True], ids=["at once", "chained"])
PREFILLED = answers(200, b'{"kv":[1],"cached":0}')


class Apart(Fleet):
    """Keeps who is kept apart."""

    apart: Mapping[str, frozenset[str]] = {}

    def keep_apart(self, apart: Mapping[str, frozenset[str]]) -> None:
        self.apart = apart

    def on_alarm(self, callback: Callable[[str, str], None]) -> None:
        self.alarm = callback

    def on_join(self, callback: Callable[[], None]) -> None:
        """Endpoints are all there from the start."""


class Bench:
    """Two prefill and two decode engines and the canaries between them, looked after by hand."""

    def __init__(self, adapter: Adapter, engines: list[Engine]) -> None:
        self.engines = {engine.name: engine for engine in engines}
        self.fleet = Apart(adapter, engines)
        self.pairs, self.rooms, self.results = Pairs(), Rooms(Random(1)), []
        self.pool = Pool(connect_timeout_s=5.0)
        registry = cast(Registry, self.fleet)
        self._ids = iter(f"{n:032x}" for n in range(10_000))
        self.canaries = Canaries(registry, self, self.pool, self, SystemClock(), lambda: None)

    def new_id(self) -> str:
        """The next."""
        return next(self._ids)

    def canary(self, prefill: str, decode: str, result: str) -> None:
        """Keep it."""
        self.results.append((prefill, decode, result))

    async def settled(self) -> None:
        """Nothing is due any more."""
        async with asyncio.timeout(20.0):
            while True:
                self.canaries.look()
                if not self.canaries._tries:
                    return
                await asyncio.wait(tuple(self.canaries._tries))
                await asyncio.sleep(0)

    def standing(self, prefill: str, decode: str) -> Standing:
        return self.pairs.pairs[prefill, decode].standing

    async def close(self) -> None:
        await self.canaries.close()
        assert not len(self.rooms)
        self.pool.close()
        for engine in self.engines.values():
            await engine.stop()


@pytest.fixture
async def bench() -> AsyncIterator[Callable[..., Awaitable[Bench]]]:
    made: list[Bench] = []

    async def build(chained: bool = False, names: str = "p0 p1 d0 d1") -> Bench:
        engines = []
        for name in names.split():
            engine = Engine(name, {"p": Role.PREFILL, "d": Role.DECODE, "u": Role.UNIFIED}[name[0]])
            await engine.start()
            engine.script = PREFILLED if name[0] == "p" else answers(200, completion(" 10 11"))
            engines.append(engine)
        made.append(Bench(Adapter(chained=chained), engines))
        return made[-1]

    yield build
    for one in made:
        await one.close()


@BOTH
async def test_case_17_garbage_through_one_pair_keeps_it_apart(bench: Any, chained: bool) -> None:
    rig = await bench(chained, "p0 p1 d0 d1 u0")
    rig.engines["d1"].script = answers(200, completion(" of the"))
    await rig.settled()
    assert rig.fleet.apart == {"p0": frozenset({"d1"}), "p1": frozenset({"d1"})}
    assert rig.canaries.shown()["restart"] == ["d1"]
    assert rig.canaries.counts()["bad",] == 2
    assert {one["decode"] for one in rig.canaries.shown()["doubtful"]} == {"d1"}
    body = rig.engines["d0"].bodies[0]
    assert (body["prompt"], body["max_tokens"], body["temperature"]) == (QUESTION, TOKENS, 0)
    rooms = [body["room"] for body in rig.engines["d0"].bodies]
    assert len(rooms) == len(set(rooms))
    assert ("p0", "d0", "good") in rig.results
    assert "d0" in rig.fleet.wells


@BOTH
async def test_case_16_a_pair_whose_transfers_fail_is_kept_apart(bench: Any, chained: bool) -> None:
    rig = await bench(chained, "p0 d0 d1 u0")
    rig.engines["d1"].script = answers(500, b'{"error":{"message":"Decode transfer failed"}}')
    await rig.settled()
    assert rig.standing("p0", "d1") is Standing.BAD
    assert rig.standing("p0", "d0") is Standing.GOOD
    assert rig.fleet.apart == {"p0": frozenset({"d1"})}


@BOTH
async def test_a_prefill_that_fails_ends_the_try_and_decodes_leg(bench: Any, chained: bool) -> None:
    rig = await bench(chained, "p0 d0 u0")
    rig.engines["p0"].script = answers(500, b"{}")
    rig.engines["d0"].script = hangs
    await rig.settled()
    assert rig.standing("p0", "d0") is Standing.BAD
    async with asyncio.timeout(20.0):
        while rig.engines["d0"].open:  # noqa: ASYNC110  what is waited for tells nobody
            await asyncio.sleep(0.002)


@pytest.mark.parametrize("status", [400, 429, 503])
async def test_a_refusal_tells_nothing(bench: Any, status: int) -> None:
    rig = await bench(False, "u0 u1")
    rig.engines["u1"].script = answers(status, b'{"error":{"message":"no"}}')
    await rig.settled()
    assert rig.standing("", "u1") is Standing.UNTRIED


async def test_an_engine_that_is_gone_tells_nothing(bench: Any) -> None:
    rig = await bench(False, "u0 u1")
    await rig.engines["u1"].stop()
    await rig.settled()
    assert rig.standing("", "u1") is Standing.UNTRIED


async def test_an_alarm_keeps_its_pairs_apart_until_they_have_answered(bench: Any) -> None:
    rig = await bench()
    await rig.settled()
    rig.fleet.alarm("p1", "after-expiry")
    assert rig.fleet.apart == {"p1": frozenset({"d0", "d1"})}
    await rig.settled()
    assert rig.fleet.apart == {}


async def test_it_looks_by_itself(bench: Any) -> None:
    rig = await bench(False, "p0 d0")
    rig.canaries.start()
    async with asyncio.timeout(20.0):
        while ("p0", "d0", "good") not in rig.results:  # noqa: ASYNC110  as above
            await asyncio.sleep(0.01)
