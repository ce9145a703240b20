"""The fleet: all keepers of a deployment, and the moves that take it from one plan to the next."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from orchestrator.core.lifecycle import Event, State
from orchestrator.launch.base import Process
from orchestrator.launch.keeper import Keeper
from orchestrator.launch.paths import write_private
from orchestrator.launch.reconcile import Changes
from orchestrator.launch.rollout import Lookout
from orchestrator.launch.shell import Shell
from orchestrator.launch.state import Record
from orchestrator.launch.status import InstanceStatus
from orchestrator.launch.unit import ROUTER, Unit, units_of
from orchestrator.topology import lockfile
from orchestrator.topology.plan import InstancePlan, Plan, dump

SETTLED = frozenset({State.READY, State.FATAL, State.STOPPED})
"""States in which a unit that was started stays unless something happens."""

ASKED = 3
"""How often a router that does not answer is asked who it is before it counts as gone."""


class Fleet:
    """Keepers by unit name, in the plan's order, each with the task it lives in.

    `plan` is the plan last begun, `instances` those of its (or the last plan's) instances that are meant to
    run at this moment; `records` tell of units that have no keeper yet. `broken` gets the exception of a
    keeper that cannot go on. `unserved` says why the router does not serve what was published last. `leaving`
    are routers that another one has taken over from.
    """

    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        shell.changed = self.pulse
        shell.router_ready = self._brief_router
        loop = asyncio.get_running_loop()
        self.broken: asyncio.Future[None] = loop.create_future()
        self.keepers: dict[str, Keeper] = {}
        self.plan: Plan | None = None
        self.instances: dict[str, InstancePlan] = {}
        self.records: dict[str, Record] = {}
        self.unserved = ""
        self.leaving: list[Keeper] = []
        self._lives: set[asyncio.Task[None]] = set()
        self._beat: asyncio.Future[None] = loop.create_future()

    # -- looking and waiting

    def alive(self) -> list[Keeper]:
        """The keepers that are not through yet."""
        return [k for k in self.keepers.values() if k.state is not State.STOPPED]

    def processes(self) -> list[Process]:
        """The process trees that live."""
        self.leaving = [k for k in self.leaving if k.state is not State.STOPPED]
        return [k.process for k in (*self.keepers.values(), *self.leaving) if k.process is not None]

    def routed(self) -> bool:
        """Whether there is a router that can tell of instances: one of ours that is up, or one elsewhere."""
        router = self.keepers.get(ROUTER)
        return self.plan is not None if router is None else router.state is State.READY

    def pulse(self) -> None:
        """Wake everybody who waits for a change."""
        beat, self._beat = self._beat, asyncio.get_running_loop().create_future()
        if not beat.done():
            beat.set_result(None)

    async def change(self, timeout_s: float | None = None) -> None:
        """Return at the next change, or after `timeout_s`."""
        await asyncio.wait({self._beat}, timeout=timeout_s)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Return once `holds` is true."""
        while not holds():
            await self.change()

    async def until_all(self, keepers: Collection[Keeper], states: Collection[State]) -> None:
        """Return once each of `keepers` is in one of `states`."""
        await self.until(lambda: all(k.state in states for k in keepers))

    # -- the moves

    def keep(self, keeper: Keeper) -> None:
        """Set a keeper to work."""
        self.keepers[keeper.unit.name] = keeper
        self._live(keeper)

    def see_off(self, keeper: Keeper) -> None:
        """Set the keeper of a router to work that another one takes over from."""
        self.leaving.append(keeper)
        self._live(keeper)

    def _live(self, keeper: Keeper) -> None:
        task = asyncio.create_task(keeper.run(), name=f"keeper of {keeper.unit.name}")
        self._lives.add(task)
        task.add_done_callback(self._lived)

    def _lived(self, task: asyncio.Task[None]) -> None:
        self._lives.discard(task)
        self.note_failure(task)

    def note_failure(self, task: asyncio.Task[None]) -> None:
        """As a task's callback: an exception in it breaks the fleet."""
        if not task.cancelled() and (error := task.exception()) is not None and not self.broken.done():
            self.broken.set_exception(error)
        self.pulse()

    async def start(self, unit: Unit) -> None:
        """Give `unit` a new life, once its old one is over and its ports are free of our own units."""
        old = self.keepers.get(unit.name)
        if old is not None:
            old.ask(Event.STOP)
            await self.until_all([old], {State.STOPPED})
        # A new life that was asked for begins with a clean slate.
        record = replace(old.record, last_error="") if old is not None else self.records.get(unit.name)
        # A router of which another one was to take over may be there still, and hold what it listens on.
        serving = [k.process for k in self.leaving if k.process is not None] if unit.takes_over else []
        keeper = Keeper(unit, self.shell, record, before=serving[0] if serving else None)
        self.keep(keeper)
        ports = set(unit.ports.values())

        def held() -> bool:
            others = (k for k in self.keepers.values() if k.process is not None and k is not keeper)
            return any(ports & set(k.record.ports.values()) for k in others)

        await self.until(lambda: not held())
        keeper.ask(Event.LAUNCH)

    async def remove(self, name: str) -> None:
        """Stop a unit for good and take it out of the plan that is run."""
        keeper = self.keepers[name]
        keeper.ask(Event.STOP)
        await self.until_all([keeper], {State.STOPPED})
        del self.keepers[name]
        if self.instances.pop(name, None) is not None:
            await self.publish()

    async def roll(
        self, plan: Plan, units: Mapping[str, Unit], changes: Changes, lookout: Lookout | None = None
    ) -> str:
        """Carry out `changes`; what did not work out as planned, in a sentence, else an empty string.

        `plan.json` tells at every moment what is meant to run then, so that a router that starts in the
        middle of it sees the truth.
        """
        self.plan = plan
        later = {name for wave in changes.waves for name in wave}
        new = {i.name: i for i in plan.instances}
        leaving = {n: self.instances[n] for n in changes.remove if n in self.instances}
        now = {n: self.instances.get(n, i) if n in later else i for n, i in new.items()}
        self.instances = now | leaving
        await self.publish()
        async with asyncio.TaskGroup() as group:
            starts = [group.create_task(self.start(units[n])) for n in changes.start]
            removals = [group.create_task(self.remove(n)) for n in changes.remove]
            problem = await self.replace(changes.waves, units, new, lookout) or self.unserved
            if removals:
                await asyncio.wait(removals)
            if problem:
                # What waits for a port of an instance that now stays as it is would wait for ever.
                for task in starts:
                    task.cancel()
        return problem

    async def replace(
        self,
        waves: Iterable[Collection[str]],
        units: Mapping[str, Unit],
        new: Mapping[str, InstancePlan],
        lookout: Lookout | None = None,
    ) -> str:
        """Replace wave after wave of units by their form in `units` (and in the published plan by `new`).

        When one does not become ready, or `lookout` wants a pause, the rest is left as it is, and a sentence
        says so.
        """
        left = list(waves)
        if lookout is not None:
            await lookout.begin()
        while left:
            wave = left.pop(0)
            if [units[name].takes_over for name in wave] == [True]:
                problems = [await self._succeed(units[name]) for name in wave]
                if any(problems):
                    return "; ".join(problems)
                continue
            for name in wave:
                self.keepers[name].ask(Event.STOP)
            await self.until_all([self.keepers[name] for name in wave], {State.STOPPED})
            if changed := {n: new[n] for n in wave if n in new}:
                self.instances |= changed
                await self.publish()
            async with asyncio.TaskGroup() as group:
                for name in wave:
                    group.create_task(self.start(units[name]))
            keepers = [self.keepers[name] for name in wave]
            await self.until_all(keepers, SETTLED)
            failed = [f"{k.unit.name} did not become ready" for k in keepers if k.state is not State.READY]
            if left:
                # One that goes only with what the other side is about to become has to wait for that.
                both = {units[n].role for wave in left for n in wave} - {k.unit.role for k in keepers}
                failed = failed or await self.not_joined(keepers, apart_too=bool(lookout and both))
                if lookout is not None and not failed and (why := await lookout.look()):
                    failed = [f"paused after {' and '.join(wave)}: {why}"]
            if failed and left:
                rest = ", ".join(name for wave in left for name in wave)
                return f"{'; '.join(failed)}; left as they were: {rest}"
        return ""

    async def _succeed(self, unit: Unit) -> str:
        """Start a process of `unit` beside the one that runs, which hands over what it listens on, and see
        that one off. If the new one does not come so far, the old one goes on, and a sentence says so."""
        old = self.keepers[unit.name]
        if old.state is not State.READY:
            await self.start(unit)
            await self.until_all([self.keepers[unit.name]], SETTLED)
            return ""
        old.superseded = True
        new = Keeper(unit, self.shell, replace(old.record, last_error=""), before=old.process)
        self.leaving.append(old)
        self.keep(new)
        new.ask(Event.LAUNCH)
        await self.until_all([new], (*SETTLED, State.BACKOFF))
        if new.state is not State.READY and await self._serves(old):
            why = new.record.last_error
            new.ask(Event.STOP)
            await self.until_all([new], {State.STOPPED})
            self.leaving.remove(old)
            self.keepers[unit.name] = old
            old.take_back()
            return f"the new {unit.name} did not take over, the one before serves on: {why}"
        old.ask(Event.STOP)
        await self.until_all([new], SETTLED)
        # What it still has runs on engines of which the next one in turn might be stopped.
        await self.until_all([old], {State.STOPPED})
        # The one before may have refused what only the new one can serve.
        await self._reload()
        return ""

    async def _serves(self, keeper: Keeper) -> bool:
        """Whether the router that answers is this keeper's; one under load may answer late."""
        if keeper.process is None:
            return False
        for _ in range(ASKED):
            pid = await self.shell.router.pid()
            if pid is not None:
                return pid == keeper.process.identity.pid
        return False

    async def not_joined(self, keepers: Iterable[Keeper], *, apart_too: bool = False) -> list[str]:
        """Which of these ready units the router does not give work within a while, and why: until it does,
        the next one of their pool may not be taken away."""
        loop = asyncio.get_running_loop()
        give_up_s = loop.time() + self.shell.tuning.join_s
        found = []
        for keeper in keepers:
            if keeper.unit.is_router or keeper.unit.follows:
                continue
            while (why := await self.shell.router.joined(keeper.unit.name, apart_too=apart_too)) is not None:
                if loop.time() > give_up_s:
                    found.append(f"{keeper.unit.name} is up, but the router does not use it ({why})")
                    break
                await asyncio.sleep(self.shell.tuning.door_s)
        return found

    def unit_of(self, instance: InstancePlan) -> Unit:
        """The unit of an instance of the plan that is run."""
        plan = self.plan
        assert plan is not None, "instances come from a plan"
        return units_of(replace(plan, instances=(instance,)))[instance.name]

    def shown(self, keeper: Keeper) -> InstanceStatus:
        """A keeper's status, with a word if its role is not the topology's."""
        shown, instance = keeper.status(), self.instances.get(keeper.unit.name)
        if instance is None or not instance.switched or instance.other is None:
            return shown
        word = f"switched from {instance.other.role}, which a new process of it is again"
        return replace(shown, detail="; ".join(filter(None, (word, shown.detail))))

    def as_started(self, keeper: Keeper) -> Unit:
        """A keeper's unit in the role that a new process of it has."""
        instance = self.instances.get(keeper.unit.name)
        if instance is None or not instance.switched or self.plan is None:
            return keeper.unit
        return self.unit_of(instance.in_other_role())

    async def forget_switches(self) -> None:
        """What is not the process that was switched is in the role of the topology again."""
        back = {
            name: instance.in_other_role()
            for name, instance in self.instances.items()
            if instance.switched and (name not in self.keepers or self.keepers[name].state is not State.READY)
        }
        if back and self.plan is not None:
            self.instances |= back
            for name, instance in back.items():
                if name in self.keepers:
                    self.keepers[name].unit = self.unit_of(instance)
            await self.publish()

    async def publish(self) -> None:
        """Write the plan as it is to run now, and tell the router."""
        if self.plan is not None:
            plan = replace(self.plan, instances=tuple(self.instances.values()))
            write_private(self.shell.state.plan, dump(plan))
            lock = lockfile.locked(plan, self.shell.clock.wall_s())
            write_private(self.shell.state.lockfile, lockfile.dump(lock))
            await self._reload()

    async def _reload(self) -> None:
        why = await self.shell.router.reload()
        self.unserved = f"the router goes on by the plan before: {why}" if why else ""

    async def _brief_router(self) -> None:
        """Tell a router that has just started what was hinted before it could listen."""
        link = self.shell.router
        await self._reload()
        for keeper in list(self.keepers.values()):
            if keeper.unit.is_router or keeper.unit.follows:
                continue
            if keeper.state is State.READY:
                await link.ungate(keeper.unit.name, keeper.life.incarnation)
            elif keeper.state in (State.DRAINING, State.STOPPING):
                await link.gate(keeper.unit.name)

    async def close(self) -> None:
        """Let go of every unit without stopping it."""
        for task in self._lives:
            task.cancel()
        if self._lives:
            await asyncio.wait(self._lives)
