"""What a controller makes of what an earlier one left: two routers of which one takes over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from orchestrator.clock import SystemClock
from orchestrator.core.lifecycle import Event, State
from orchestrator.launch.base import Found
from orchestrator.launch.fleet import Fleet
from orchestrator.launch.paths import StateDir
from orchestrator.launch.process import Identity, Mark
from orchestrator.launch.recovery import recover
from orchestrator.launch.shell import Shell
from orchestrator.launch.state import Record, Store
from orchestrator.launch.testing import FakeLauncher, FakeProber, FakeProcess, FakeRouterLink
from orchestrator.launch.unit import ROUTER

GUARD_S = 20.0


@dataclass
class Scene:
    """A fleet over fakes, in a state directory of its own."""

    state: StateDir
    store: Store
    launcher: FakeLauncher
    link: FakeRouterLink
    fleet: Fleet

    def found(self, incarnation: int, pid: int) -> Found:
        """A living router."""
        return Found(Mark(self.state.id, ROUTER, incarnation), Identity(pid, 1), "d")


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    state = StateDir(tmp_path / "state")
    state.create()
    launcher, link = FakeLauncher(), FakeRouterLink()
    with closing(Store(state.db)) as store:
        shell = Shell(state, store, launcher, FakeProber(), link, SystemClock(), Random(1))
        fleet = Fleet(shell)
        yield Scene(state, store, launcher, link, fleet)
        await fleet.close()


def unrecorded(incarnation: int) -> Record:
    """The record of a router whose controller died before it could write its pid down."""
    return Record(ROUTER, digest="d", incarnation=incarnation, state=State.STARTING)


async def test_case_43_of_two_routers_the_older_one_serves_until_the_newer_has_taken_over(
    scene: Scene,
) -> None:
    scene.store.put(unrecorded(2))
    scene.launcher.orphans = [scene.found(1, 101), scene.found(2, 102)]
    scene.link.serving = 101
    await recover(scene.fleet)
    keeper, [older] = scene.fleet.keepers[ROUTER], scene.fleet.leaving
    assert (keeper.state, older.state, older.superseded) == (State.STARTING, State.READY, True)
    assert scene.launcher.swept == [{Mark(scene.state.id, ROUTER, n) for n in (1, 2)}]
    await asyncio.sleep(0.2)
    assert keeper.state is State.STARTING, "the other one answers still"
    scene.link.serving = 102
    async with asyncio.timeout(GUARD_S):
        await scene.fleet.until_all([keeper], {State.READY})
        assert isinstance(older.process, FakeProcess)
        older.process.end(0)
        await scene.fleet.until_all([older], {State.STOPPED})
    assert scene.store.records()[ROUTER].pid == 102


async def test_case_43_a_router_that_was_to_be_followed_goes_on_and_can_be_stopped(scene: Scene) -> None:
    scene.store.put(unrecorded(2))
    scene.launcher.orphans = [scene.found(1, 101)]
    scene.link.serving = 101
    await recover(scene.fleet)
    keeper = scene.fleet.keepers[ROUTER]
    assert (keeper.state, keeper.life.incarnation, scene.fleet.leaving) == (State.READY, 2, [])
    assert scene.launcher.swept == [{Mark(scene.state.id, ROUTER, 1)}]
    keeper.ask(Event.STOP)
    async with asyncio.timeout(GUARD_S):
        await scene.fleet.until_all([keeper], {State.STOPPED})
    assert "TERM router#1" in scene.launcher.story


async def test_a_router_that_hands_over_to_nobody_is_no_router(scene: Scene) -> None:
    scene.store.put(unrecorded(2))
    scene.launcher.orphans = [scene.found(1, 101)]
    await recover(scene.fleet)
    assert scene.fleet.keepers == {}
    assert [k.record.pid for k in scene.fleet.leaving] == [101]
    assert scene.fleet.records[ROUTER].state is State.STOPPED
