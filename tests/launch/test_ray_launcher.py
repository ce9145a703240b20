"""The Ray launcher, and `launchers` with it, on a cluster that is made up and real agents.

The one of Ray itself (`ray_cluster`) is tested in tests/real.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.types import Role
from orchestrator.errors import LaunchError
from orchestrator.launch import testing
from orchestrator.launch.agent import Agent
from orchestrator.launch.base import Found
from orchestrator.launch.launchers import Launchers
from orchestrator.launch.paths import StateDir
from orchestrator.launch.process import Identity, Mark
from orchestrator.launch.ray_cluster import Lost, RayNode
from orchestrator.launch.ray_launcher import RayLauncher
from orchestrator.launch.unit import Unit, of_instance
from orchestrator.topology.plan import RAY, InstancePlan, Plan


@dataclass
class FakeCluster:
    """Nodes by what Ray would say of them; `taken` are GPUs that others hold, by resource."""

    there: list[RayNode]
    taken: dict[str, set[int]] = field(default_factory=dict)
    agents: dict[str, Agent] = field(default_factory=dict)
    dead: set[str] = field(default_factory=set)
    held: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def connect(self, address: str) -> None:
        if not address:
            raise LaunchError("nobody there", reason="ray-unreachable")

    def nodes(self) -> Sequence[RayNode]:
        return self.there

    def agent(self, name: str, node: RayNode, root: str) -> str:
        if name not in self.agents:
            self.agents[name] = Agent(root)
        return name

    def _method(self, agent: str, method: str) -> Any:
        if agent not in self.agents:
            raise Lost("the actor died")
        return getattr(self.agents[agent], method)

    def ask(self, agent: str, method: str, *args: Any) -> Any:
        return self._method(agent, method)(*args)

    async def call(self, agent: str, method: str, *args: Any) -> Any:
        told = self._method(agent, method)(*args)
        return await told if inspect.isawaitable(told) else told

    def tell(self, agent: str, method: str, *args: Any) -> None:
        self._method(agent, method)(*args)

    def dismiss(self, agent: str) -> None:
        del self.agents[agent]

    def reservations(self, prefix: str) -> Sequence[str]:
        return [name for name in self.held if name.startswith(prefix)]

    def reserve(self, name: str, resource: str, gpus: int) -> tuple[int, ...] | None:
        used = self.taken.setdefault(resource, set())
        free = [gpu for gpu in range(8) if gpu not in used]
        if len(free) < gpus:
            return None
        given = tuple(free[:gpus])
        used.update(given)
        self.held[name] = given
        return given

    def release(self, name: str) -> None:
        for used in self.taken.values():
            used.difference_update(self.held[name])
        del self.held[name]


def cluster() -> FakeCluster:
    return FakeCluster(
        [
            RayNode("1", "127.0.0.1", {"here": 1, "GPU": 8, "node:127.0.0.1": 1}),
            RayNode("2", "10.0.0.2", {"GPU": 8, "node:10.0.0.2": 1}),
        ]
    )


def instance(name: str, code: str, node: str = "here", gpus: tuple[int, ...] = ()) -> InstancePlan:
    argv = [sys.executable, "-I", "-S", "-c", code]
    return testing.instance(name, Role.UNIFIED, 1, argv, node=node, devices=gpus)


def plan(root: Path, *instances: InstancePlan) -> Plan:
    made = testing.plan(root, *instances)
    return replace(made, launcher=RAY, ray_address="head:1")


async def seen(launcher: RayLauncher | Launchers, count: int) -> Sequence[Found]:
    """What it finds, once there are so many: for a moment after `exec` an environment is empty."""
    async with asyncio.timeout(20):
        while len(found := launcher.find()) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return found


def unit(made: InstancePlan) -> Unit:
    return of_instance(made, None)


def state(tmp_path: Path) -> StateDir:
    made = StateDir(tmp_path / "state")
    made.create()
    return made


async def test_a_unit_is_started_watched_and_swept_on_its_node_and_its_log_comes_here(tmp_path: Path) -> None:
    there = state(tmp_path)
    code = "import os, sys; print('hello from', os.getcwd()); sys.exit(7)"
    made = instance("u-0", code)
    launcher = RayLauncher(there, "head:1", fake := cluster())
    await launcher.follow(plan(there.root, made), ())
    process = launcher.start(unit(made), 1)
    assert await process.exited() == 7
    assert await process.exited() == 7
    log = there.log("u-0").read_text()
    assert f"hello from {there.root / 'nodes' / 'here'}" in log
    assert "u-0 incarnation 1" in log
    assert list(process.pids()) == []
    assert await process.sweep(0.0) == []
    assert await launcher.sweep_strays(()) == []
    assert (fake.agents, fake.held, list(there.root.glob("ray.json"))) == ({}, {}, [])


async def test_what_runs_is_found_again_without_a_plan_also_when_its_agent_has_died(tmp_path: Path) -> None:
    there, fake = state(tmp_path), cluster()
    made = instance("u-0", "import time; print('up', flush=True); time.sleep(600)")
    launcher = RayLauncher(there, "head:1", fake)
    await launcher.follow(plan(there.root, made), ())
    started = launcher.start(unit(made), 3)
    fake.agents.clear()

    again = RayLauncher.reopen(there, fake)
    assert again is not None
    found = await seen(again, 1)
    assert [(f.mark, f.identity, f.digest) for f in found] == [
        (Mark(there.id, "u-0", 3), started.identity, unit(made).digest)
    ]
    process = again.adopt(found[0].identity, found[0].mark)
    # An agent that dies is followed by another one.
    fake.agents.clear()
    process.terminate()
    await process.exited()
    assert await process.sweep(0.0) == []
    assert await again.sweep_strays(()) == []
    assert RayLauncher.reopen(there, fake) is None


async def test_strays_are_ended_and_what_is_kept_lives(tmp_path: Path) -> None:
    there, fake = state(tmp_path), cluster()
    code = "import time; time.sleep(600)"
    kept, stray = instance("u-0", code), instance("u-1", code)
    launcher = RayLauncher(there, "head:1", fake)
    await launcher.follow(plan(there.root, kept, stray), ())
    one, other = launcher.start(unit(kept), 1), launcher.start(unit(stray), 1)
    await seen(launcher, 2)
    assert await launcher.sweep_strays([Mark(there.id, "u-0", 1)]) == []
    assert [f.identity for f in launcher.find()] == [one.identity]
    assert await other.exited() == -9
    assert (there.root / "ray.json").exists()
    await launcher.sweep_strays(())
    assert await launcher.sweep_strays(()) == []


async def test_gpus_are_set_aside_all_or_none_and_only_those_that_are_new(tmp_path: Path) -> None:
    there, fake = state(tmp_path), cluster()
    launcher = RayLauncher(there, "head:1", fake)
    first = instance("u-0", "", gpus=(0, 1))
    await launcher.follow(plan(there.root, first), ())
    await launcher.follow(plan(there.root, first, instance("u-1", "", gpus=(2, 3, 4))), ())
    prefix = f"{there.id}/here"
    assert fake.held == {f"{prefix}/0-1": (0, 1), f"{prefix}/2-3-4": (2, 3, 4)}
    before = dict(fake.held)
    fake.taken["here"].add(5)
    with pytest.raises(LaunchError, match=r"the plan has the GPUs 5, 6, Ray gives 6, 7.*`gpus: \[6, 7\]`"):
        await launcher.follow(plan(there.root, instance("u-2", "", gpus=(5, 6))), ())
    with pytest.raises(LaunchError, match="needs 4 GPUs more, and Ray has not as many free") as refused:
        await launcher.follow(plan(there.root, instance("u-2", "", gpus=(4, 5, 6, 7, 8))), ())
    assert refused.value.reason == "ray-resources"
    assert fake.held == before


async def test_a_node_is_found_by_a_resource_of_its_name_or_by_its_address(tmp_path: Path) -> None:
    there = state(tmp_path)
    launcher = RayLauncher(there, "head:1", cluster())
    lost = plan(there.root, _at(instance("u-0", "", node="gamma"), "127.0.0.9"))
    with pytest.raises(LaunchError, match=r"node gamma \(127\.0\.0\.9\) is not in the Ray cluster at head:1"):
        await launcher.follow(lost, ())
    await launcher.follow(plan(there.root, _at(instance("u-0", "", node="b"), "10.0.0.2")), ())
    assert (there.root / "nodes" / "b").is_dir()


def _at(made: InstancePlan, host: str) -> InstancePlan:
    return replace(made, url=f"http://{host}:1")


async def test_a_start_that_fails_says_on_which_node_and_why(tmp_path: Path) -> None:
    there, fake = state(tmp_path), cluster()
    launcher = RayLauncher(there, "head:1", fake)
    made = testing.instance("u-0", Role.UNIFIED, 1, ["no-such-program"], node="here")
    await launcher.follow(plan(there.root, made), ())
    (refusal,) = launcher.refusals([unit(made)], ())
    assert refusal.startswith("on node here: u-0: no program 'no-such-program'")
    with pytest.raises(OSError, match="no-such-program: No such file") as failed:
        launcher.start(unit(made), 1)
    assert failed.value.filename == "node here"
    process = launcher.adopt(Identity(2**22 + 1, 1), Mark(there.id, "u-0", 1))
    fake.there.clear()
    fake.agents.clear()
    with pytest.raises(OSError, match="node here has left the Ray cluster at head:1"):
        launcher.start(unit(made), 1)
    # What a node that is gone had cannot be ended, and its end is not known.
    assert await process.exited() is None
    assert await process.sweep(0.0) == []


async def test_engines_of_one_launcher_are_not_taken_over_by_another(tmp_path: Path) -> None:
    there, fake = state(tmp_path), cluster()
    made = instance("u-0", "import time; time.sleep(600)")
    through = plan(there.root, made)
    here = testing.plan(there.root, made)
    launchers = Launchers(
        there,
        ray=lambda state, address: RayLauncher(state, address, fake),
        reopen=lambda state: RayLauncher.reopen(state, fake),
    )
    await launchers.follow(here, ())
    local = launchers.start(unit(made), 1)
    with pytest.raises(LaunchError, match=r"another `launcher`, on this host; `pdctl down` first"):
        await launchers.follow(through, [local])
    await local.sweep(0.0)

    await launchers.follow(through, ())
    far = launchers.start(unit(made), 2)
    assert (there.root / "nodes" / "here" / "logs" / "u-0.log").exists()
    with pytest.raises(LaunchError, match="on the Ray cluster at head:1; `pdctl down` first"):
        await launchers.follow(here, [far])
    assert launchers.refusals([unit(made)], [far]) == []
    launchers.remember([far])
    await seen(launchers, 1)
    assert await launchers.sweep_strays(()) == []
    await launchers.follow(here, ())
    assert launchers.find() == []
