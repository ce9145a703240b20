"""Connections for legs: idle ones taken, missing ones made, and none lost on the way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from datapath import Rig, answers, build, completion

from orchestrator.core.types import LegKind
from orchestrator.engines.base import Leg
from orchestrator.errors import RequestError
from orchestrator.router import connects
from orchestrator.router.connects import Due, Ready
from orchestrator.router.road import Road


def leg(endpoint: str) -> Leg:
    return Leg(LegKind.DECODE, endpoint, "/v1/completions", (b"{}",), "id", relay=True)


DUE: Due = [(0, leg("u0")), (0, leg("u1"))]


class Told:
    """What came of making connections."""

    def __init__(self) -> None:
        self.ready: Ready | None = None
        self.failure: RequestError | None = None
        self.endpoint: str | None = None

    def __call__(self, due: Due, ready: Ready, failure: RequestError | None, endpoint: str | None) -> None:
        self.ready, self.failure, self.endpoint = ready, failure, endpoint


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    """Two engines; the router has a connection to the first."""
    made = await build(roles="uu")
    for engine in made.engines.values():
        engine.script = answers(200, completion("x"))
    assert (await made.ask("/v1/completions", {"model": "m", "prompt": "x"})).status == 200
    await made.at_rest()
    yield made
    await made.at_rest()
    await made.close()


@pytest.fixture
def road(rig: Rig) -> Road:
    return rig.app.shared


def test_idle_ones_up_to_the_first_that_is_missing(road: Road) -> None:
    ready = connects.idle(road, DUE)
    assert [place.endpoint for place, _ in ready] == ["u0"]
    assert not connects.idle(road, DUE)
    connects.unused(ready)
    assert len(connects.idle(road, list(reversed(DUE)))) == 0


async def test_missing_ones_are_made(rig: Rig, road: Road) -> None:
    told = Told()
    await connects.make(road, DUE, connects.idle(road, DUE), told)
    assert told.ready is not None
    assert [place.endpoint for place, _ in told.ready] == ["u0", "u1"]
    assert rig.pool.stats.made == 2
    connects.unused(told.ready)
    assert len(connects.idle(road, DUE)) == 2
    connects.unused(told.ready)


@pytest.mark.parametrize("turns", range(4))
async def test_cancelled_at_any_turn_it_loses_none(rig: Rig, road: Road, turns: int) -> None:
    told = Told()
    task = connects.make(road, DUE, connects.idle(road, DUE), told)
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    if told.ready is not None:
        connects.unused(told.ready)
    await rig.at_rest()
    assert not road.connects


async def test_who_cannot_be_reached_is_named(rig: Rig, road: Road) -> None:
    await rig.engines["u1"].stop()
    told = Told()
    await connects.make(road, DUE, connects.idle(road, DUE), told)
    assert told.failure is not None
    assert (told.endpoint, told.failure.reason) == ("u1", "connect-failed")
    assert [name for name, _ in rig.fleet.troubles] == ["u1"]
    assert rig.metrics.legs[-1] == ("decode", "u1", "connect-failed")
