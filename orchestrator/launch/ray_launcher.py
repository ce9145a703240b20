"""The Ray launcher: units on the nodes of a Ray cluster, each kept by a detached agent that outlives us."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from orchestrator.core.address import split_http_url
from orchestrator.errors import LaunchError
from orchestrator.launch import logs
from orchestrator.launch.agent import Born, Life, News
from orchestrator.launch.base import Found, Process
from orchestrator.launch.paths import StateDir, write_private
from orchestrator.launch.process import Identity, Mark
from orchestrator.launch.ray_cluster import Cluster, Lost, RayCluster, RayNode
from orchestrator.launch.unit import Unit
from orchestrator.topology.plan import Plan

log = logging.getLogger(__name__)

NEWS_S = 1.0
"""How long an agent waits for the end of a unit before it hands on what came of the log."""
RETRY_S = 1.0
MOST_AT_ONCE = 16
"""Nodes on which a process is made at the same time."""


class RayProcess:
    """A process tree on a node of the cluster. Its log is copied to ours as it is written."""

    def __init__(self, launcher: RayLauncher, node: str, identity: Identity, mark: Mark) -> None:
        self.identity = identity
        self.node = node
        self.life: Life = (mark.name, mark.incarnation)
        self._launcher = launcher
        self._watch: asyncio.Task[int | None] | None = None

    async def exited(self) -> int | None:
        """See `Process`."""
        if self._watch is None:
            self._watch = asyncio.create_task(
                self._launcher.watch(self), name=f"watch {self.life[0]} on {self.node}"
            )
        return await asyncio.shield(self._watch)

    def pids(self) -> Collection[int]:
        """None: they are another host's."""
        return ()

    def terminate(self) -> None:
        """See `Process`."""
        self._launcher.terminate(self)

    async def sweep(self, grace_s: float) -> Sequence[str]:
        """See `Process`."""
        return await self._launcher.sweep(self, grace_s)


class RayLauncher:
    """Starts units on the nodes of a Ray cluster that a plan names.

    `ray.json` in the state directory says from before the first start until all is swept which cluster and
    nodes to look at, so that what runs there is found again without a plan.
    """

    def __init__(self, state: StateDir, address: str, cluster: Cluster | None = None) -> None:
        self.address = address
        self._state = state
        self._cluster = RayCluster() if cluster is None else cluster
        self._addresses: dict[str, str] = {}
        self._agents: dict[str, Any] = {}
        self._where: dict[Life, str] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @classmethod
    def reopen(cls, state: StateDir, cluster: Cluster | None = None) -> RayLauncher | None:
        """The launcher of what was started here and may live; None if nothing was. Raises LaunchError when
        its cluster cannot be reached."""
        try:
            told = json.loads(_file(state).read_bytes())
        except FileNotFoundError:
            return None
        launcher = cls(state, told["address"], cluster)
        launcher._addresses = dict(told["nodes"])
        launcher._cluster.connect(launcher.address)
        return launcher

    # -- the launcher

    async def follow(self, plan: Plan, ours: Sequence[Process]) -> None:
        """See `Launcher`: reach the cluster, find the plan's nodes in it, set their GPUs aside, and have an
        agent on each."""
        await asyncio.to_thread(self._follow, dict(_wanted(plan)))

    def _follow(self, wanted: Mapping[str, tuple[str, set[int]]]) -> None:
        self._cluster.connect(self.address)
        there = self._cluster.nodes()
        found = {name: _match(name, address, there) for name, (address, _) in wanted.items()}
        missing = [
            f"node {name} ({wanted[name][0]}) is not in the Ray cluster at {self.address}: start Ray there, "
            f"with `--resources '{{\"{name}\": 1}}'` if Ray knows it by another address; it has "
            f"{', '.join(sorted({n.address for n in there})) or 'no node'}"
            for name, match in found.items()
            if match is None
        ]
        if missing:
            raise LaunchError("\n".join(missing), reason="ray-node")
        self._reserve({name: gpus for name, (_, gpus) in wanted.items()}, found)
        self._addresses |= {name: address for name, (address, _) in wanted.items()}
        told = {"address": self.address, "nodes": self._addresses}
        write_private(_file(self._state), json.dumps(told).encode())
        try:
            self._each_agent()
        except Lost as lost:
            raise LaunchError(str(lost), reason="ray-node") from lost

    def _each_agent(self) -> None:
        """An agent on every node, made side by side. Raises Lost."""
        with ThreadPoolExecutor(MOST_AT_ONCE) as pool:
            list(pool.map(self._agent, self._addresses))

    def refusals(self, units: Sequence[Unit], ours: Sequence[Process]) -> Sequence[str]:
        """See `Launcher`. Each node's agent looks there."""
        by_node: dict[str, list[Unit]] = {}
        for unit in units:
            by_node.setdefault(unit.node, []).append(unit)
        found: list[str] = []
        for node, there in by_node.items():
            try:
                told = self._ask(node, "refusals", there, bool(ours))
            except Lost as lost:
                told = [f"{', '.join(u.name for u in there)}: {lost}"]
            found += [f"on node {node}: {line}" for line in told]
        return found

    def start(self, unit: Unit, incarnation: int) -> RayProcess:
        """See `Launcher`."""
        try:
            born: Born = self._ask(unit.node, "start", unit, incarnation)
        except Lost as lost:
            raise OSError(errno.EAGAIN, str(lost), f"node {unit.node}") from lost
        if born.identity is None:
            raise OSError(born.number, born.text, f"node {unit.node}")
        return RayProcess(self, unit.node, born.identity, Mark(self._state.id, unit.name, incarnation))

    def adopt(self, identity: Identity, mark: Mark) -> RayProcess:
        """See `Launcher`."""
        node = self._where.get((mark.name, mark.incarnation), "")
        return RayProcess(self, node, identity, mark)

    def find(self) -> Sequence[Found]:
        """See `Launcher`. What a node has that is not in the cluster cannot be found."""
        found: list[Found] = []
        with suppress(Lost):
            self._each_agent()
        for node in self._addresses:
            try:
                told: list[tuple[Life, Identity, str]] = self._ask(node, "find")
            except Lost as lost:
                log.warning("node %s is not looked at: %s", node, lost)
                continue
            for life, identity, digest in told:
                self._where[life] = node
                found.append(Found(Mark(self._state.id, *life), identity, digest))
        return found

    def remember(self, processes: Sequence[Process]) -> None:
        """See `Launcher`."""
        for agent in self._agents.values():
            self._cluster.tell(agent, "keep_house", logs.MAX_BYTES)

    async def sweep_strays(self, keep: Collection[Mark]) -> Sequence[str]:
        """See `Launcher`. Where nothing is kept, agents and reservations go as well."""
        lives = [(mark.name, mark.incarnation) for mark in keep]
        stuck: list[str] = []
        for node in list(self._addresses):
            try:
                agent = await asyncio.to_thread(self._agent, node)
                told = await self._cluster.call(agent, "sweep_strays", lives)
                stuck += [f"{line} on node {node}" for line in told]
            except Lost as lost:
                log.warning("node %s is not swept: %s", node, lost)
        if not lives and not stuck:
            self._leave()
        return stuck

    # -- what its processes ask for

    async def watch(self, process: RayProcess) -> int | None:
        """Copy a process's log until its leader has ended, and return the exit code; None also when its node
        has left the cluster."""
        while True:
            try:
                news: News = await self._call(process, "news", NEWS_S)
            except Lost as lost:
                if self._node(process.node) is None:
                    self._write(process.life[0], f"pdctl: {lost}\n".encode())
                    return None
                await asyncio.sleep(RETRY_S)
                continue
            self._write(process.life[0], news.text)
            if news.over:
                return news.code

    def terminate(self, process: RayProcess) -> None:
        """Send TERM to a leader, if its node can be reached."""
        task = asyncio.create_task(self._terminate(process), name=f"TERM to {process.life[0]}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _terminate(self, process: RayProcess) -> None:
        try:
            await self._call(process, "terminate")
        except Lost:
            # Of an agent that has died: another one takes its place.
            with suppress(Lost):
                await self._call(process, "terminate")

    async def sweep(self, process: RayProcess, grace_s: float) -> Sequence[str]:
        """End a process tree; of a node that has left the cluster, nothing can be ended."""
        try:
            told: Sequence[str] = await self._call(process, "sweep", grace_s)
        except Lost as lost:
            if self._node(process.node) is not None:
                return [f"{process.life[0]}: {lost}"]
            log.warning("%s: %s; what it left there may live", process.life[0], lost)
            return []
        return told

    # -- agents

    async def _call(self, process: RayProcess, method: str, *args: Any) -> Any:
        agent = await asyncio.to_thread(self._agent, process.node)
        try:
            return await self._cluster.call(agent, method, process.life, process.identity, *args)
        except Lost:
            self._agents.pop(process.node, None)
            raise

    def _ask(self, node: str, method: str, *args: Any) -> Any:
        """An agent's answer; that of a new one, if the old one has died."""
        with suppress(Lost):
            return self._cluster.ask(self._agent(node), method, *args)
        self._agents.pop(node, None)
        return self._cluster.ask(self._agent(node), method, *args)

    def _agent(self, node: str) -> Any:
        if node not in self._agents:
            there = self._node(node)
            if there is None:
                raise Lost(f"node {node} has left the Ray cluster at {self.address}")
            root = str(self._state.root / "nodes" / node)
            self._agents[node] = self._cluster.agent(f"{self._prefix}{node}", there, root)
        return self._agents[node]

    def _node(self, name: str) -> RayNode | None:
        return _match(name, self._addresses.get(name, ""), self._cluster.nodes())

    @property
    def _prefix(self) -> str:
        """How the names of all that is ours in the cluster begin."""
        return f"{self._state.id}/"

    def _reservation(self, node: str, gpus: Sequence[int]) -> str:
        return f"{self._prefix}{node}/{'-'.join(map(str, gpus))}"

    def _leave(self) -> None:
        """Nothing of ours runs any more: give all back to the cluster."""
        for agent in self._agents.values():
            self._cluster.dismiss(agent)
        for name in self._cluster.reservations(self._prefix):
            self._cluster.release(name)
        self._agents, self._addresses = {}, {}
        _file(self._state).unlink(missing_ok=True)

    def _write(self, name: str, text: bytes) -> None:
        if not text:
            return
        with suppress(OSError):
            # Of a full disk: an engine goes on without its log here, and has it there.
            fd = logs.open_append(self._state.log(name))
            try:
                os.write(fd, text)
            finally:
                os.close(fd)

    def _reserve(self, wanted: Mapping[str, set[int]], nodes: Mapping[str, RayNode | None]) -> None:
        """Set aside what is not yet; all of it or nothing. Raises LaunchError."""
        held: dict[str, set[int]] = {}
        for name in self._cluster.reservations(self._prefix):
            _, on, listed = name.split("/")
            held.setdefault(on, set()).update(map(int, listed.split("-")))
        new = {node: sorted(gpus - held.get(node, set())) for node, gpus in wanted.items()}
        new = {node: gpus for node, gpus in new.items() if gpus}

        def reserve(node: str) -> tuple[int, ...] | None:
            there = nodes[node]
            if there is None or len(new[node]) > _total(there) - len(held.get(node, ())):
                return None
            resource = node if node in there.resources else f"node:{there.address}"
            return self._cluster.reserve(self._reservation(node, new[node]), resource, len(new[node]))

        with ThreadPoolExecutor(MOST_AT_ONCE) as pool:
            given = dict(zip(new, pool.map(reserve, new), strict=True))
        problems = [
            f"node {node}: the plan needs {len(gpus)} GPUs more, and Ray has not as many free "
            f"({_total(nodes[node])} in all); other work of the cluster may hold them (`ray status`)"
            for node, gpus in new.items()
            if given[node] is None
        ]
        problems += [
            f"node {node}: the plan has the GPUs {_numbers(new[node])}, Ray gives {_numbers(gpus)}, as "
            f"others are taken; write `gpus: [{_numbers(gpus)}]` at nodes, or free them"
            for node, gpus in given.items()
            if gpus is not None and list(gpus) != new[node]
        ]
        made = [self._reservation(node, new[node]) for node, gpus in given.items() if gpus is not None]
        if problems:
            for name in made:
                self._cluster.release(name)
            raise LaunchError("\n".join(problems), reason="ray-resources")


def _total(node: RayNode | None) -> int:
    return 0 if node is None else int(node.resources.get("GPU", 0))


def _wanted(plan: Plan) -> Iterator[tuple[str, tuple[str, set[int]]]]:
    """Every node that engines run on, with its address and their GPUs there."""
    found: dict[str, tuple[str, set[int]]] = {}
    for instance in plan.instances:
        if instance.external:
            continue
        places = [(instance.node, split_http_url(instance.url)[0], instance.devices)]
        places += [(f.node, f.address, f.devices) for f in instance.followers]
        for node, address, gpus in places:
            found.setdefault(node, (address, set()))[1].update(gpus)
    yield from found.items()


def _match(name: str, address: str, nodes: Sequence[RayNode]) -> RayNode | None:
    """The node of the cluster that a topology's node is: with a resource of its name, else at its address."""
    named = [n for n in nodes if name in n.resources]
    return next(iter([*named, *(n for n in nodes if n.address == address)]), None)


def _file(state: StateDir) -> Path:
    return state.root / "ray.json"


def _numbers(gpus: Sequence[int]) -> str:
    return ", ".join(map(str, gpus))
