"""What every launcher keeps (base), tried on the local one and on the fake of the test kit (testing)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.launch.base import Launcher, Process
from orchestrator.launch.local import LocalLauncher
from orchestrator.launch.process import Mark
from orchestrator.launch.testing import FakeLauncher, word
from orchestrator.launch.unit import Unit, units_of

pytestmark = pytest.mark.integration


@pytest.fixture(params=["local", "fake"])
def launcher(request: pytest.FixtureRequest, bench: Any) -> Launcher:
    bench.state.create()
    if request.param == "local":
        return LocalLauncher(bench.state)
    return FakeLauncher(crashing={"d0": 3}, missing={"u0"}, stubborn={"p1"})


@pytest.fixture
def units(bench: Any) -> dict[str, Unit]:
    """p0 obeys, p1 is stubborn, d0 crashes, u0 does not exist."""
    missing = replace(bench.engine("u0"), argv=(word("/no/such"),))
    engines = (
        bench.engine("p0"),
        bench.engine("p1", "--ignore-term"),
        bench.engine("d0", "--exit-after", 0, "--exit-code", 3),
        missing,
    )
    return units_of(bench.plan(*engines))


async def over(process: Process) -> int | None:
    async with asyncio.timeout(30):
        return await process.exited()


async def test_one_that_obeys_ends_on_term_and_the_end_may_be_awaited_again(
    bench: Any, launcher: Launcher, units: dict[str, Unit]
) -> None:
    process = launcher.start(units["p0"], 1)
    if isinstance(launcher, LocalLauncher):
        await bench.eventually(lambda: "loading" in bench.log("p0"))
    waiting = [asyncio.create_task(over(process)) for _ in range(2)]
    cancelled = asyncio.create_task(over(process))
    await asyncio.sleep(0)
    cancelled.cancel()
    process.terminate()
    codes = {await task for task in waiting}
    assert codes <= {0, -15}, "0, or killed by TERM before it could listen to it"
    assert await process.sweep(0.0) == []
    assert {await over(process)} == codes
    process.terminate()


async def test_one_that_is_stubborn_ends_when_it_is_swept(
    bench: Any, launcher: Launcher, units: dict[str, Unit]
) -> None:
    process = launcher.start(units["p1"], 1)
    if isinstance(launcher, LocalLauncher):
        await bench.eventually(lambda: launcher.refusals([units["p1"]], []))
    process.terminate()
    launcher.remember([process])
    assert await process.sweep(0.05) == []
    assert await over(process) == -9


async def test_a_crash_tells_its_code(launcher: Launcher, units: dict[str, Unit]) -> None:
    process = launcher.start(units["d0"], 1)
    assert await over(process) == 3
    assert await process.sweep(0.0) == []


async def test_what_does_not_exist_raises(launcher: Launcher, units: dict[str, Unit]) -> None:
    with pytest.raises(FileNotFoundError):
        launcher.start(units["u0"], 1)


async def test_an_adopted_process_can_be_ended(
    launcher: Launcher, units: dict[str, Unit], bench: Any
) -> None:
    started = launcher.start(units["p0"], 2)
    adopted = launcher.adopt(started.identity, Mark(bench.state.id, "p0", 2))
    assert adopted.identity == started.identity
    assert await adopted.sweep(0.0) == []
    await over(adopted)
    await started.sweep(0.0)
    await over(started)


async def test_nothing_is_left_to_find_or_to_sweep(launcher: Launcher) -> None:
    assert list(launcher.find()) == []
    assert list(await launcher.sweep_strays(())) == []
