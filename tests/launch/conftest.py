"""Real processes for the launcher tests: stand-in engines and router, and no orphan after any test."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest
from portshare import free_ports

from orchestrator.core.lifecycle import State
from orchestrator.core.restart import RestartPolicy
from orchestrator.core.types import Role
from orchestrator.launch import testing
from orchestrator.launch.base import Process
from orchestrator.launch.controller import controller
from orchestrator.launch.paths import Lock, StateDir
from orchestrator.launch.process import Identity, Table, environment, identify, send
from orchestrator.launch.shell import Tuning
from orchestrator.launch.status import InstanceStatus, Phase, Status
from orchestrator.launch.supervisor import Supervisor
from orchestrator.topology.plan import InstancePlan, Plan, RouterPlan

DATA = Path(__file__).parents[1] / "data" / "launch"
GUARD_S = 20.0
"""A guard against a hang, not a measure of anything."""
TUNING = Tuning(
    restart=RestartPolicy(base_s=0.01, cap_s=0.02),
    probe_first_s=0.02,
    probe_most_s=0.1,
    door_s=0.02,
    leave_s=0.2,
    failed_leave_s=0.2,
    housekeeping_s=0.1,
)


class Bench:
    """One deployment in a folder of its own, and what tests do with it."""

    def __init__(self, root: Path) -> None:
        self.state = StateDir(root)
        self.tuning = TUNING

    def engine(self, name: str, *flags: object, port: int | None = None, **changes: object) -> InstancePlan:
        """An instance that runs the stand-in engine; the name's first letter tells its role."""
        role = {"p": Role.PREFILL, "d": Role.DECODE, "u": Role.UNIFIED}[name[0]]
        port = port or free_ports(1)
        argv = [sys.executable, "-I", "-S", str(DATA / "engine.py"), "--port", port, *flags]
        return testing.instance(name, role, port, [str(word) for word in argv], **changes)

    def router(self, port: int | None = None, **changes: object) -> RouterPlan:
        port = port or free_ports(1)
        argv = [
            sys.executable,
            "-I",
            "-S",
            str(DATA / "router.py"),
            "--state",
            self.state.root,
            "--port",
            port,
        ]
        return testing.router(port, free_ports(1), [str(word) for word in argv], **changes)

    def plan(self, *instances: InstancePlan, router: RouterPlan | None = None) -> Plan:
        return testing.plan(self.state.root, *instances, router=router)

    @asynccontextmanager
    async def controller(self) -> AsyncIterator[Supervisor]:
        """Be the controller; what runs is let go of at the end, as if it had died."""
        self.state.create()
        lock = Lock(self.state)
        assert lock.acquire()
        async with controller(self.state, lock, self.tuning) as supervisor:
            yield supervisor

    async def stop(self, supervisor: Supervisor) -> None:
        supervisor.begin_stop()
        await self.until(supervisor, Phase.STOPPED)

    async def until(self, supervisor: Supervisor, *phases: Phase) -> Status:
        return await self.first(supervisor, lambda status: status.phase in phases)

    async def until_state(self, supervisor: Supervisor, name: str, *states: State) -> InstanceStatus:
        def there(status: Status) -> bool:
            return any(i.name == name and i.state in states for i in status.instances)

        status = await self.first(supervisor, there)
        return next(i for i in status.instances if i.name == name)

    async def first(self, supervisor: Supervisor, holds: Callable[[Status], bool]) -> Status:
        status: Status | None = None
        try:
            async with asyncio.timeout(GUARD_S), aclosing(supervisor.watch(0.05)) as statuses:
                async for status in statuses:
                    if holds(status):
                        return status
        except TimeoutError:
            raise AssertionError(f"still {status}; {self.log('controller')}") from None
        raise AssertionError(f"ended with {status}")

    def kill9(self, pid: int) -> None:
        """Kill a process of ours and see it off, as init would for a controller that is gone."""
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    async def eventually(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(GUARD_S):
            while not holds():  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def shows(self, process: Process) -> None:
        """Wait until its environment can be read: for a moment after `exec` it is empty."""
        await self.eventually(lambda: environment(process.identity.pid))

    def marked(self) -> set[Identity]:
        """The living processes of this deployment."""
        return set(Table.take().marked(self.state.id))

    def log(self, name: str) -> str:
        return self.state.log(name).read_text()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A bench whose processes have all ended when the test is over: none may be left to clean up."""
    bench = Bench(tmp_path / "state")
    yield bench
    left = bench.marked()
    for identity in left:
        send(identity, signal.SIGKILL)
    assert not left, "the test left orphans"


@pytest.fixture
def loose(bench: Bench) -> Iterator[list[int]]:
    """Pids without a marker that must be gone as well."""
    pids: list[int] = []
    yield pids
    left = [pid for pid in pids if identify(pid) is not None]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left, "the test left orphans without a marker"
