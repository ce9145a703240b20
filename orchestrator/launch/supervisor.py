"""The supervisor: takes plans, adopts what runs, makes the fleet equal to the plan, says how it stands."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial

from orchestrator.core.lifecycle import Event, State
from orchestrator.core.types import Role
from orchestrator.errors import LaunchError
from orchestrator.launch import logs, recovery, switching
from orchestrator.launch.advice import Advice
from orchestrator.launch.fleet import Fleet
from orchestrator.launch.keeper import Keeper
from orchestrator.launch.reconcile import Current, Target, reconcile
from orchestrator.launch.rollout import Lookout
from orchestrator.launch.shell import Shell
from orchestrator.launch.status import Phase, Status, router_last
from orchestrator.launch.unit import ROUTER, secrets_of, units_of
from orchestrator.topology.plan import Plan, dump, parse

log = logging.getLogger(__name__)

_MOVING = frozenset({State.PENDING, State.STARTING, State.BACKOFF, State.DRAINING, State.STOPPING})


class Supervisor:
    """Owns the fleet. `recover` once, then `apply` plans; `begin_stop` ends it all.

    `broken` gets the exception if the supervisor cannot go on (the state directory is full, say): the
    caller should then end the controller; what runs serves on and is adopted by the next.
    """

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._fleet = Fleet(shell)
        self.broken = self._fleet.broken
        self._problem = self._door = self._switching = ""
        self._rollout: asyncio.Task[None] | None = None
        self._stop: asyncio.Task[None] | None = None
        self._stopping = self._forced = self._swept = False
        self._open_for: int | None = None
        self._preparing = 0
        self._chores: list[asyncio.Task[None]] = []

    # -- how it stands

    @property
    def idle(self) -> bool:
        """True when there is nothing to look after."""
        return self._fleet.plan is None and not self._fleet.alive() and not self._preparing

    @property
    def _rolling(self) -> bool:
        return self._rollout is not None and not self._rollout.done()

    def _moving(self) -> bool:
        """Whether any unit is on its way from one state to another."""
        return any(keeper.state in _MOVING for keeper in self._fleet.keepers.values())

    @property
    def phase(self) -> Phase:
        """How the whole stands."""
        if self._stopping:
            return Phase.STOPPED if self._swept else Phase.STOPPING
        if self._rolling or self._moving():
            return Phase.WORKING
        states = {keeper.state for keeper in self._fleet.keepers.values()}
        if self._problem or self._door or State.FATAL in states:
            return Phase.FAILED
        return Phase.WORKING if self._shut_door() else Phase.READY

    def status(self) -> Status:
        """How everything stands."""
        fleet = self._fleet
        plan = fleet.plan
        router = plan.router if plan and plan.router and plan.node in (None, plan.router.node) else None
        return Status(
            phase=self.phase,
            name=fleet.plan.name if fleet.plan else "",
            url=router.url if router else "",
            controller_pid=os.getpid(),
            problem="; ".join(filter(None, (self._problem, self._door, self._shell.store.problem))),
            instances=router_last(map(fleet.shown, self._in_order())),
            external=tuple(f"{i.name} {i.url}" for i in fleet.instances.values() if i.external),
        )

    def _in_order(self) -> list[Keeper]:
        """The keepers as the plan has them: what was adopted came before what is started."""
        place = {name: n for n, name in enumerate(self._fleet.instances)}
        return sorted(self._fleet.keepers.values(), key=lambda k: place.get(k.unit.instance, len(place)))

    async def watch(self, every_s: float = 1.0) -> AsyncGenerator[Status, None]:
        """The status now, after every change, and at least once in `every_s`; ends when all is stopped.
        Raises what broke the supervisor."""
        while True:
            if self.broken.done():
                self.broken.result()
            status = self.status()
            yield status
            if status.phase is Phase.STOPPED:
                return
            await self._fleet.change(every_s)

    # -- what is asked of it

    async def recover(self) -> None:
        """Adopt what an earlier controller left running, end what belongs to nobody, and begin the chores."""
        await recovery.recover(self._fleet)
        chores = (self._keep_house(), self._mind_door(), self._mind_router(), self._mind_roles())
        self._chores = [asyncio.create_task(chore) for chore in chores]
        for task in self._chores:
            task.add_done_callback(self._fleet.note_failure)

    async def prepare(self, plan: Plan) -> None:
        """Reach what `plan` is launched by. Raises LaunchError when it cannot be launched so."""
        self._preparing += 1
        try:
            await self._shell.launcher.follow(plan, self._fleet.processes())
        finally:
            self._preparing -= 1

    async def resume(self) -> None:
        """Apply the plan that was last asked for. Raises LaunchError as `apply`, or when there is none."""
        data = self._shell.store.plan()
        if data is None:
            raise LaunchError(
                f"no plan was ever run in {self._shell.state.root}; begin with `pdctl up`", reason="no-plan"
            )
        try:
            plan = parse(data)
        except ValueError:
            raise LaunchError(
                f"the plan last run in {self._shell.state.root} is of another pdctl version; run `pdctl up`",
                reason="no-plan",
            ) from None
        await self.prepare(plan)
        self.apply(plan)

    def apply(self, plan: Plan, watch_s: float | None = None) -> None:
        """Begin to make what runs equal to `plan`; `watch` tells how it goes. With `watch_s`, as a rollout:
        one by one, with a look for so long at how requests fare after each.

        Nothing is changed when it raises. Raises LaunchError: the plan cannot be started here (all
        reasons at once), or everything is being stopped.
        """
        if self._stopping:
            raise LaunchError("this deployment is being stopped; run it again when that is through")
        if self._switching and self._rolling:
            # What it is afterwards is not known yet.
            raise LaunchError(f"{self._switching} is being switched; try again when `pdctl ps` shows it done")
        fleet, units = self._fleet, units_of(plan)
        changes = reconcile(
            {n: Target(u.role, u.digest, frozenset(u.ports.values()), u.instance) for n, u in units.items()},
            {k.unit.name: _current(k) for k in fleet.alive()},
            one_by_one=watch_s is not None,
        )
        refused = self._shell.launcher.refusals([units[n] for n in changes.touched], fleet.processes())
        if refused:
            raise LaunchError("\n".join(refused), reason="cannot-start")
        self._shell.store.put_plan(dump(plan))
        kept = [
            i if i.name in changes.touched else i.as_running(fleet.instances.get(i.name))
            for i in plan.instances
        ]
        plan = replace(plan, instances=tuple(kept))
        units = units_of(plan)
        self._shell.router = self._shell.link(plan, self._shell.router)
        self._shell.secrets |= secrets_of(plan)
        for name in units.keys() & fleet.keepers.keys() - set(changes.touched):
            # The same process; what is not part of it (hints, limits) may have changed.
            fleet.keepers[name].unit = units[name]
        lookout = None if watch_s is None else Lookout(watch_s, self._shell.router)
        self._begin(partial(fleet.roll, plan, units, changes, lookout))

    def restart(self, names: Iterable[str]) -> None:
        """Begin to replace the units `names` one at a time by new incarnations; all engines if none are
        given, for they can be replaced without a gap, and the router cannot.

        Raises LaunchError for an unknown name, or while another change is under way.
        """
        keepers = self._fleet.keepers
        wanted = list(names) or [n for n in keepers if n != ROUTER]
        for name in wanted:
            if name not in keepers:
                known = ", ".join(keepers) or "none"
                raise LaunchError(f"no instance {name!r} here; there are: {known}", reason="no-instance")
        if self._stopping or self._rolling:
            raise LaunchError("another change is under way; try again when `pdctl ps` shows it done")
        wanted = [keepers[n].unit.instance for n in wanted]
        units = {n: self._fleet.as_started(k) for n, k in keepers.items() if k.unit.instance in wanted}
        waves = [tuple(n for n, u in units.items() if u.instance == i) for i in dict.fromkeys(wanted)]
        self._begin(partial(self._fleet.replace, waves, units, {}))

    def switch(self, name: str, to: Role) -> None:
        """Begin to switch the instance `name` to the role `to`, without starting it anew.

        Raises LaunchError: it cannot be, and why, or another change is under way.
        """
        if self._stopping or self._rolling or self._fleet.plan is None:
            raise LaunchError("another change is under way; try again when `pdctl ps` shows it done")
        switching.check(self._fleet, name, to)
        self._begin(partial(switching.switch, self._fleet, name))
        self._switching = name

    def begin_stop(self, *, force: bool = False) -> None:
        """Begin to stop everything; `watch` ends when nothing is left. `force`, now or in a later call: wait
        for nothing, kill all."""
        if force:
            self._forced = True
            for keeper in self._fleet.keepers.values():
                keeper.ask(Event.KILL)
        if self._stop is None:
            self._stopping = True
            self._stop = asyncio.create_task(self._stop_all(), name="stop")
            self._stop.add_done_callback(self._fleet.note_failure)
        self._fleet.pulse()

    async def _stop_all(self) -> None:
        """The router first: it finishes what it has in flight while all engines are still there."""
        fleet = self._fleet
        await _ended(self._rollout)
        router = fleet.keepers.get(ROUTER)
        for keepers in ([router] if router else [], fleet.alive()):
            for keeper in keepers:
                keeper.ask(Event.KILL if self._forced else Event.STOP)
            await fleet.until_all(keepers, {State.STOPPED})
        await self._shell.launcher.sweep_strays(())
        # Nothing is launched any more: the next plan need not leave anything where it was.
        with suppress(OSError):  # as good as gone: what it names is stopped, and whoever reads it finds that
            self._shell.state.lockfile.unlink()
        self._swept = True

    def _begin(self, work: Callable[[], Awaitable[str]]) -> None:
        """Begin a change; one that is under way is left where it is, for this one starts from there."""
        before, self._problem, self._door, self._open_for = self._rollout, "", "", None
        self._switching = ""
        if before is not None:
            # At once, so that it takes no further step between the decision and its carrying out.
            before.cancel()

        async def go() -> None:
            await _ended(before)
            try:
                self._problem = await work()
            except* LaunchError as failed:
                # The plan cannot be written down, say: what runs is looked after all the same.
                self._problem = "; ".join(dict.fromkeys(_messages(failed)))

        self._rollout = asyncio.create_task(go(), name="rollout")
        self._rollout.add_done_callback(self._fleet.note_failure)
        self._fleet.pulse()

    # -- what goes on beside

    async def _keep_house(self) -> None:
        """Keep logs small and family trees known."""
        tuning = self._shell.tuning
        while True:
            self._shell.check()
            self._shell.oom.look()
            self._shell.store.flush()
            await asyncio.sleep(tuning.housekeeping_s)
            self._shell.launcher.remember(self._fleet.processes())
            for path in list(self._shell.state.logs.glob("*.log")):
                try:
                    await asyncio.to_thread(logs.rotate, path, tuning.log_max_bytes)
                except OSError as error:
                    # A full disk, most likely: no reason to stop looking after engines.
                    log.warning("%s cannot be kept small: %s", path, error)

    def _shut_door(self) -> Keeper | None:
        """The router, if it has not yet said that it can serve; None if it has, or there is none."""
        router = self._fleet.keepers.get(ROUTER)
        if router is None or not router.unit.serving or router.life.incarnation == self._open_for:
            return None
        return router

    def _door_limit_s(self, router: Keeper) -> float:
        """How long a router that is up may find no engine: those of other nodes may still be loading."""
        plan, limit_s = self._fleet.plan, router.unit.probes.ready_timeout_s
        if plan is None or plan.node is None:
            return limit_s
        return max([limit_s, *(i.probes.ready_timeout_s for i in plan.instances)])

    async def _mind_door(self) -> None:
        """Ask each new router whether it can serve: a deployment whose instances are all ready is only
        useful once the router's own probes have found that out."""
        fleet, now_s = self._fleet, self._shell.clock.now_s
        since_s = now_s()
        while True:
            router = self._shut_door()
            if router is None or router.state is not State.READY:
                await fleet.change()
                since_s = now_s()
                continue
            said = await self._shell.prober.ask(router.unit, router.unit.serving)
            if said is None:
                self._open_for, self._door = router.life.incarnation, ""
                router.detail = ""
            else:
                router.detail = f"finds no engine to serve with: {said}"
                if self._rolling or any(k.state is not State.READY for k in fleet.keepers.values()):
                    since_s = now_s()
                elif now_s() - since_s > self._door_limit_s(router):
                    self._door = f"all is up, but the router {router.detail}; see {router.status().log}"
            fleet.pulse()
            await asyncio.sleep(self._shell.tuning.door_s)

    async def _mind_roles(self) -> None:
        """Take back what a new process is not any more."""
        while True:
            await self._fleet.forget_switches()
            await self._fleet.change()

    async def _mind_router(self) -> None:
        """Do what follows from what the router sees of instances: whether work gets done, and done right."""
        advice = Advice(self._fleet)
        while True:
            await asyncio.sleep(self._shell.tuning.advice_s)
            if self._fleet.routed():
                sick = await self._shell.router.sick()
                advice.heed(sick, settled=not (self._stopping or self._rolling or self._moving()))

    async def close(self) -> None:
        """Let go of everything without stopping it."""
        for task in (self._rollout, self._stop, *self._chores):
            await _ended(task)
        await self._fleet.close()


def _messages(group: BaseExceptionGroup[LaunchError]) -> Iterator[str]:
    """What the errors in a group say."""
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _messages(error)
        else:
            yield error.message


async def _ended(task: asyncio.Task[None] | None) -> None:
    """Cancel a task and return when it has ended."""
    if task is not None:
        task.cancel()
        await asyncio.wait({task})


def _current(keeper: Keeper) -> Current:
    ports = frozenset(keeper.record.ports.values())
    return Current(keeper.unit.role, keeper.record.digest or keeper.unit.digest, keeper.state, ports)
