"""Fakes for tests of the supervisor and of launchers: processes that end when told, scripted probes."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from orchestrator.core.types import Role
from orchestrator.engines.base import HttpCall, Probes, Word
from orchestrator.launch.base import Found, Process
from orchestrator.launch.process import Identity, Mark
from orchestrator.launch.routerlink import Figures, Sick
from orchestrator.launch.unit import Unit
from orchestrator.topology.plan import InstancePlan, Plan, RouterPlan


class FakeProcess:
    """A process that ends when `end` is called, and on TERM unless it is stubborn.

    What is done to it is written to the launcher's `story`.
    """

    def __init__(self, launcher: FakeLauncher, name: str, incarnation: int, identity: Identity) -> None:
        self.identity = identity
        self.name = name
        self.incarnation = incarnation
        self._launcher = launcher
        self._over: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    @property
    def lives(self) -> bool:
        """Whether it has not ended."""
        return not self._over.done()

    def end(self, code: int) -> None:
        """Exit with `code`; nothing if it has ended already."""
        if self.lives:
            self._launcher.story.append(f"{self.name}#{self.incarnation} ends {code}")
            self._over.set_result(code)

    async def exited(self) -> int | None:
        """See `Process`."""
        return await asyncio.shield(self._over)

    def pids(self) -> Collection[int]:
        """See `Process`."""
        return [self.identity.pid]

    def terminate(self) -> None:
        """See `Process`."""
        if self.lives:
            self._launcher.story.append(f"TERM {self.name}#{self.incarnation}")
            if self.name not in self._launcher.stubborn:
                self.end(0)

    async def sweep(self, grace_s: float) -> Sequence[str]:
        """See `Process`."""
        if self.lives:
            await asyncio.sleep(grace_s)
        if self.lives:
            self._launcher.story.append(f"KILL {self.name}#{self.incarnation}")
            self.end(-9)
        return []


@dataclass
class FakeLauncher:
    """A launcher without processes. `refused` are refusals by unit name; units in `crashing` exit with that
    code as soon as they are started; those in `missing` cannot be started at all; `stubborn` ones ignore
    TERM; `orphans` is what `find` finds. `story` tells what was done, in order."""

    refused: dict[str, str] = field(default_factory=dict)
    crashing: dict[str, int] = field(default_factory=dict)
    missing: set[str] = field(default_factory=set)
    stubborn: set[str] = field(default_factory=set)
    orphans: list[Found] = field(default_factory=list)
    story: list[str] = field(default_factory=list)
    running: dict[str, FakeProcess] = field(default_factory=dict)
    swept: list[Collection[Mark]] = field(default_factory=list)

    async def follow(self, plan: Plan, ours: Sequence[Process]) -> None:
        """See `Launcher`."""

    def refusals(self, units: Sequence[Unit], ours: Sequence[Process]) -> Sequence[str]:
        """See `Launcher`."""
        return [self.refused[u.name] for u in units if u.name in self.refused]

    def start(self, unit: Unit, incarnation: int) -> FakeProcess:
        """See `Launcher`."""
        if unit.name in self.missing:
            raise FileNotFoundError(2, "No such file or directory")
        self.story.append(f"start {unit.name}#{incarnation}")
        process = FakeProcess(self, unit.name, incarnation, Identity(10_000 + len(self.story), 1))
        self.running[unit.name] = process
        if unit.name in self.crashing:
            process.end(self.crashing[unit.name])
        return process

    def adopt(self, identity: Identity, mark: Mark) -> FakeProcess:
        """See `Launcher`."""
        self.story.append(f"adopt {mark.name}#{mark.incarnation}")
        process = FakeProcess(self, mark.name, mark.incarnation, identity)
        self.running[mark.name] = process
        return process

    def find(self) -> Sequence[Found]:
        """See `Launcher`."""
        return list(self.orphans)

    def remember(self, processes: Sequence[Process]) -> None:
        """See `Launcher`."""

    async def sweep_strays(self, keep: Collection[Mark]) -> Sequence[str]:
        """See `Launcher`."""
        self.swept.append(frozenset(keep))
        return []


@dataclass
class FakeProber:
    """Answers for every unit that it is ready, unless `said` has something else for its name; `tells` are the
    facts that units tell of themselves, `refuses` what they say to orders, which are written to `orders`."""

    said: dict[str, str] = field(default_factory=dict)
    asked: list[tuple[str, tuple[HttpCall, ...]]] = field(default_factory=list)

    tells: dict[str, Mapping[str, Any] | str] = field(default_factory=dict)
    refuses: dict[str, str] = field(default_factory=dict)
    orders: list[tuple[str, str]] = field(default_factory=list)

    async def order(self, unit: Unit, call: HttpCall) -> str | None:
        """See `Prober`."""
        self.orders.append((unit.name, call.path))
        return self.refuses.get(unit.name)

    async def tell(self, unit: Unit) -> Mapping[str, Any] | str:
        """See `Prober`."""
        return self.tells.get(unit.name, {})

    async def ask(self, unit: Unit, calls: Sequence[HttpCall]) -> str | None:
        """See `Prober`."""
        self.asked.append((unit.name, tuple(calls)))
        return self.said.get(unit.name)


@dataclass
class FakeRouterLink:
    """Writes every hint to `story`; a drain waits until `busy` no longer holds the instance. `missing` says
    why an instance is not given work, `stuck` why it is taken to hang, `mispaired` whose pairs are bad and
    why; `refused` is what comes of a reload, `serving` the pid of the router that answers, `counted`
    what it has counted."""

    story: list[str] = field(default_factory=list)
    busy: set[str] = field(default_factory=set)
    missing: dict[str, str] = field(default_factory=dict)
    stuck: dict[str, str] = field(default_factory=dict)
    mispaired: dict[str, str] = field(default_factory=dict)
    refused: str = ""
    serving: int | None = None
    counted: Figures | None = None

    async def drain(self, name: str, deadline_s: float) -> None:
        """See `RouterLink`."""
        self.story.append(f"drain {name}")
        while name in self.busy:  # noqa: ASYNC110
            await asyncio.sleep(0)

    async def ungate(self, name: str, incarnation: int) -> None:
        """See `RouterLink`."""
        self.story.append(f"ungate {name}#{incarnation}")

    async def gate(self, name: str) -> None:
        """See `RouterLink`."""
        self.story.append(f"gate {name}")

    async def reload(self) -> str:
        """See `RouterLink`."""
        self.story.append("reload")
        return self.refused

    async def figures(self) -> Figures | None:
        """See `RouterLink`."""
        return self.counted

    async def joined(self, name: str, *, apart_too: bool = False) -> str | None:
        """See `RouterLink`."""
        return self.missing.get(name)

    async def pid(self) -> int | None:
        """See `RouterLink`."""
        return self.serving

    async def sick(self) -> Sick:
        """See `RouterLink`."""
        return Sick(dict(self.stuck), dict(self.mispaired))


def word(text: str, *, secret: bool = False) -> Word:
    """A word of a command line made for a test."""
    return Word(text, "test", secret)


def instance(name: str, role: Role, port: int, argv: Sequence[str], **changes: Any) -> InstancePlan:
    """An instance of a plan made by hand: probed at `/ready` on `port` of loopback. `changes` are fields of
    InstancePlan."""
    probes = Probes(ready=(HttpCall("GET", "/ready"),), live=HttpCall("GET", "/health"), ready_timeout_s=30.0)
    plan = InstancePlan(
        name=name,
        pool=role.value,
        role=role,
        engine="test",
        model="m",
        node="local",
        url=f"http://127.0.0.1:{port}",
        argv=tuple(word(text) for text in argv),
        env={},
        ports={"http": port},
        probes=probes,
        drain_s=5.0,
    )
    return replace(plan, **changes)


def router(port: int, admin_port: int, argv: Sequence[str], **changes: Any) -> RouterPlan:
    """A router of a plan made by hand. `changes` are fields of RouterPlan."""
    probes = Probes(ready=(HttpCall("GET", "/ready"),), live=HttpCall("GET", "/health"), ready_timeout_s=30.0)
    plan = RouterPlan(
        kind="pdctl",
        host="127.0.0.1",
        port=port,
        admin_host="127.0.0.1",
        admin_port=admin_port,
        url=f"http://127.0.0.1:{port}",
        admin_url=f"http://127.0.0.1:{admin_port}",
        argv=tuple(word(text) for text in argv),
        env={},
        probes=probes,
        drain_s=5.0,
    )
    return replace(plan, **changes)


def plan(state_dir: Path, *instances: InstancePlan, router: RouterPlan | None = None) -> Plan:
    """A plan made by hand."""
    return Plan(
        name="test",
        file="test.yaml",
        base_dir=str(state_dir),
        state_dir=str(state_dir),
        seed=1,
        instances=instances,
        router=router,
    )
