"""Histories of an instance on several nodes: its processes go together, and process 0 ends the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from random import Random

from orchestrator.clock import SystemClock
from orchestrator.core.lifecycle import State
from orchestrator.core.restart import RestartPolicy
from orchestrator.core.types import Role
from orchestrator.engines.base import HttpCall, Probes
from orchestrator.launch.paths import StateDir
from orchestrator.launch.shell import Shell, Tuning
from orchestrator.launch.state import Store
from orchestrator.launch.status import Phase
from orchestrator.launch.supervisor import Supervisor
from orchestrator.launch.testing import (
    FakeLauncher,
    FakeProber,
    FakeProcess,
    FakeRouterLink,
    instance,
    plan,
    word,
)
from orchestrator.topology.plan import FollowerPlan, InstancePlan, Plan

GUARD_S = 20.0
FAST = Tuning(
    restart=RestartPolicy(base_s=0.001, cap_s=0.001),
    probe_first_s=0.0,
    probe_most_s=0.001,
    leave_s=0.0,
    failed_leave_s=0.0,
    housekeeping_s=3600.0,
)


def spanning(name: str, digest: str = "a", *, drain_s: float = 60.0) -> InstancePlan:
    port = 9000 + 10 * int(name[1:])
    head = instance(name, Role.PREFILL, port, ["engine"], digest=digest, node="a", drain_s=drain_s)
    follower = FollowerPlan(
        name=f"{name}.1",
        rank=1,
        node="b",
        address="127.0.0.2",
        url="",
        argv=(word("engine"),),
        env={},
        ports={"events": port + 5},
        probes=Probes(ready=(), live=HttpCall("GET", "/health")),
        digest=f"{digest}.1",
    )
    return replace(head, followers=(follower,))


class Stage:
    """A supervisor over fakes whose engines end their followers as they end themselves."""

    def __init__(self, root: Path) -> None:
        self.state = StateDir(root)
        self.state.create()
        self.story: list[str] = []
        self.launcher = FakeLauncher(story=self.story)
        self.link = FakeRouterLink(story=self.story)
        self.store = Store(self.state.db)
        shell = Shell(
            *(self.state, self.store, self.launcher, FakeProber(), self.link, SystemClock(), Random(1)),
            tuning=FAST,
        )
        self.supervisor = Supervisor(shell)

    def plan(self, *instances: InstancePlan, node: str | None = None) -> Plan:
        return replace(plan(self.state.root, *instances), node=node)

    async def until(self, phase: Phase) -> None:
        async with asyncio.timeout(GUARD_S), aclosing(self.supervisor.watch(0.05)) as statuses:
            async for status in statuses:
                if status.phase is phase:
                    return

    async def eventually(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(GUARD_S):
            while not holds():  # noqa: ASYNC110
                await asyncio.sleep(0)

    def process(self, name: str) -> FakeProcess:
        return self.launcher.running[name]

    async def close(self) -> None:
        await self.supervisor.close()
        self.store.close()


def told(stage: Stage, *words: str) -> list[str]:
    return [line for line in stage.story if line.startswith(words)]


async def test_term_goes_to_rank_0_and_the_others_end_with_it(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    await stage.supervisor.recover()
    stage.supervisor.apply(stage.plan(spanning("p0")))
    await stage.until(Phase.READY)
    assert told(stage, "start", "ungate") == ["start p0#1", "start p0.1#1", "ungate p0#1"]
    stage.supervisor.begin_stop()
    await stage.eventually(lambda: not stage.process("p0").lives)
    assert stage.process("p0.1").lives
    stage.process("p0.1").end(0)
    await stage.until(Phase.STOPPED)
    assert told(stage, "TERM", "KILL") == ["TERM p0#1"]
    await stage.close()


async def test_one_that_nobody_ends_gets_term_in_the_end(tmp_path: Path) -> None:
    """Process 0 may run on another node, where nobody has asked it to stop."""
    stage = Stage(tmp_path)
    await stage.supervisor.recover()
    stage.supervisor.apply(stage.plan(spanning("p0", drain_s=0.05), node="b"))
    await stage.until(Phase.READY)
    assert told(stage, "start") == ["start p0.1#1"]
    stage.supervisor.begin_stop()
    await stage.until(Phase.STOPPED)
    assert told(stage, "TERM", "KILL", "drain") == ["TERM p0.1#1"]
    await stage.close()


async def test_all_processes_of_an_instance_are_replaced_in_one_wave(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    await stage.supervisor.recover()
    stage.supervisor.apply(stage.plan(spanning("p0"), spanning("p1")))
    await stage.until(Phase.READY)
    old = {name: stage.process(name) for name in stage.launcher.running}
    stage.story.clear()
    stage.supervisor.apply(stage.plan(spanning("p0", "b"), spanning("p1", "b")))
    for name in ("p0", "p1"):
        await stage.eventually(lambda name=name: not old[name].lives)  # type: ignore[misc]
        old[f"{name}.1"].end(0)
        await stage.eventually(lambda name=name: f"start {name}.1#2" in stage.story)  # type: ignore[misc]
    await stage.until(Phase.READY)
    starts = told(stage, "start")
    assert starts == ["start p0#2", "start p0.1#2", "start p1#2", "start p1.1#2"]
    assert stage.story.index("TERM p1#1") > stage.story.index("start p0.1#2")
    await stage.close()


async def test_restart_of_any_process_restarts_the_instance(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    await stage.supervisor.recover()
    stage.supervisor.apply(stage.plan(spanning("p0"), spanning("p1")))
    await stage.until(Phase.READY)
    follower = stage.process("p0.1")
    stage.supervisor.restart(["p0.1"])
    await stage.eventually(lambda: "TERM p0#1" in stage.story)
    follower.end(0)
    await stage.eventually(lambda: stage.process("p0.1").incarnation == 2)
    await stage.until(Phase.READY)
    assert told(stage, "start")[-2:] == ["start p0#2", "start p0.1#2"]
    assert {i.name: i.state for i in stage.supervisor.status().instances} == dict.fromkeys(
        ("p0", "p0.1", "p1", "p1.1"), State.READY
    )
    stage.supervisor.begin_stop(force=True)
    await stage.until(Phase.STOPPED)
    await stage.close()
