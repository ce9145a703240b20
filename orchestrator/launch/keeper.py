"""The keeper of one unit: performs what its life asks for, and tells the life what came of it."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.core.lifecycle import Effect, Event, State, resumed, takes
from orchestrator.launch import logs
from orchestrator.launch.base import Process
from orchestrator.launch.failure import SEARCHED_LINES, Failure, exit_text, explain
from orchestrator.launch.identity import Wrong
from orchestrator.launch.life import Effects, Life
from orchestrator.launch.oom import Oom
from orchestrator.launch.postmortem import going_on
from orchestrator.launch.process import boot_id
from orchestrator.launch.shell import Shell
from orchestrator.launch.state import Record
from orchestrator.launch.status import InstanceStatus
from orchestrator.launch.unit import Unit

log = logging.getLogger(__name__)

ROUTER_MARGIN_S = 3.0
_PASSING = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE})
"""What may keep a process from being started now, and not a minute later."""


@dataclass(frozen=True, slots=True)
class Failed:
    """What an effect found instead of an event: the incarnation failed. If its leader has `exited`, `code` is
    what `Process.exited` tells."""

    text: str
    code: int | None = None
    exited: bool = False
    hopeless: bool = False


def _ended(code: int | None, when: str) -> Failed:
    return Failed(f"{exit_text(code)} {when}", code, exited=True)


class Keeper:
    """One unit from its first start, or its adoption, until it is stopped for good.

    One task (`run`) makes all changes of state; `ask` only puts a wish into its box. For an adopted unit
    `process` is given, and `record` says where it stood; else `record` only hands on the numbering, and how
    the last one ended if it was found dead. `before` is the process that this unit's takes over from.

    `superseded`: another keeper has the unit's name now, and this one's process only finishes what it has.
    """

    def __init__(
        self,
        unit: Unit,
        shell: Shell,
        record: Record | None = None,
        process: Process | None = None,
        before: Process | None = None,
    ) -> None:
        self.unit = unit
        self.process = process
        self.superseded = False
        self._before = before
        self.failure: Failure | None = None
        self.detail = ""
        self._shell = shell
        self._effects: Effects = ()
        self._box: asyncio.Queue[Event] = asyncio.Queue()
        self._useless: asyncio.Future[str] | None = None
        self._since_s = shell.clock.now_s()
        policy = shell.tuning.restart.for_start(unit.max_restarts, unit.probes.ready_timeout_s)
        self.life = Life(policy, incarnation=record.incarnation if record else 0)
        if process is not None and record is not None:
            self.record = record
            ready_at_s = self._since_s if record.state is State.READY else None
            self.life = replace(
                self.life, state=record.state, restarts=record.restarts, ready_at_s=ready_at_s
            )
            self._effects = resumed(record.state)
        else:
            self.record = Record(
                name=unit.name,
                pool=unit.pool,
                role=unit.role,
                url=unit.url,
                ports=unit.ports,
                digest=unit.digest,
                drain_s=unit.drain_s,
                incarnation=self.life.incarnation,
                **going_on(record),
            )

    @property
    def state(self) -> State:
        """Where the unit is now."""
        return self.life.state

    def ask(self, event: Event) -> None:
        """Wish for LAUNCH, STOP or KILL; a wish that has no place in the state it meets is dropped."""
        self._box.put_nowait(event)

    def fail(self, why: str) -> None:
        """Its process lives and is of no use: this incarnation has failed, if it is READY."""
        if self._useless is not None and not self._useless.done():
            self._useless.set_result(why)

    def take_back(self) -> None:
        """The unit's name is this keeper's again: whoever was to take over did not come so far."""
        self.superseded = False
        self._note()

    async def run(self) -> None:
        """Live until STOPPED. Raises LaunchError when the state directory has become unusable."""
        while self.state is not State.STOPPED:
            work = asyncio.create_task(self._perform(self._effects))
            try:
                happened = await self._first(work)
            finally:
                await _cancelled(work)
            now_s = self._shell.clock.now_s()
            if isinstance(happened, Failed):
                hopeless = self._explain(happened).hopeless or happened.hopeless
                self._enter(*self.life.failed(now_s, self._shell.rng, hopeless=hopeless))
            else:
                self._enter(*self.life.on(happened, now_s))

    async def _first(self, work: asyncio.Task[Event | Failed]) -> Event | Failed:
        """The first wish that has a place, or what the work found. A wish goes before: what the work has
        found, it will find again."""
        while True:
            wish = asyncio.create_task(self._box.get())
            try:
                await asyncio.wait({work, wish}, return_when=asyncio.FIRST_COMPLETED)
                if work.done():
                    work.result()
                if not wish.done():
                    return work.result()
                if takes(self.state, wish.result()):
                    return wish.result()
            finally:
                await _cancelled(wish)

    def _enter(self, life: Life, effects: Effects) -> None:
        log.info("%s: %s -> %s", self.unit.name, self.state, life.state)
        self.life, self._effects, self.detail = life, effects, ""
        if life.state is not State.READY:
            self._shell.told.forget(self.unit)
        self._since_s = self._shell.clock.now_s()
        if life.state in (State.STARTING, State.READY):
            self.failure = None
        self._note(state=life.state, incarnation=life.incarnation, restarts=life.restarts)

    def _note(self, **changes: Any) -> None:
        """Change the record, on disk too."""
        self.record = replace(self.record, **changes, changed_s=self._shell.clock.wall_s())
        if not self.superseded:
            self._shell.store.put(self.record)
        self._shell.changed()

    def _explain(self, failed: Failed) -> Failure:
        unit = self.unit
        lines = logs.last_words(self._shell.state.log(unit.name), SEARCHED_LINES)
        # Only an exit proves anything: one that is merely late may have done without the module.
        died = self.state is State.STARTING and failed.code not in (None, 0)
        starting = [word.text for word in unit.argv] if died else []
        failure = explain(
            failed.text,
            failed.code,
            lines,
            unit.hints,
            self._shell.secrets,
            starting,
            exited=failed.exited,
            oom=self._oom(),
        )
        self.failure = failure
        log.warning("%s: %s", unit.name, failure.full)
        self._note(last_error=failure.full, exit_code=failed.code)
        return failure

    def _oom(self) -> Oom:
        """Whether the kernel killed a process of this incarnation for want of memory."""
        if self.process is None:
            return Oom.UNKNOWN
        return self._shell.oom.verdict(self.process.pids(), self.process.identity.ticks)

    async def _perform(self, effects: Effects) -> Event | Failed:
        """Do what entering a state asks for, in order, until one of it tells what happened."""
        for effect in effects:
            happened = await _DO[effect](self)
            if happened is not None:
                return happened
        # Nothing more happens by itself in this state.
        nothing: asyncio.Future[Event] = asyncio.get_running_loop().create_future()
        return await nothing

    async def _spawn(self) -> Failed | None:
        self._shell.check()
        held = [] if self._before is None else [self._before]
        refused = self._shell.launcher.refusals([self.unit], held)
        if refused:
            return Failed("; ".join(refused))
        wall_s = self._shell.clock.wall_s()
        # Before the fork, so that a controller killed right after it leaves word of what to look for.
        self._note(digest=self.unit.digest, pid=None, ticks=None, boot=boot_id(), started_s=wall_s)
        try:
            self.process = self._shell.launcher.start(self.unit, self.life.incarnation)
        except OSError as error:
            what = error.filename or self.unit.argv[0].text
            hopeless = error.errno not in _PASSING
            return Failed(f"cannot be started: {what}: {error.strerror or error}", hopeless=hopeless)
        self._note(pid=self.process.identity.pid, ticks=self.process.identity.ticks)
        return None

    async def _probe(self) -> Event | Failed:
        process = self._running()
        limit_s = self.unit.probes.ready_timeout_s
        spent_s = self._shell.clock.wall_s() - (self.record.started_s or 0.0)
        # One adopted after its deadline gets time to answer: it may have become ready meanwhile.
        left_s = min(limit_s, max(limit_s - spent_s, 5 * self._shell.tuning.probe_most_s))
        ending = asyncio.create_task(process.exited())
        asking = asyncio.create_task(self._ask_until_ready())
        try:
            await asyncio.wait({ending, asking}, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            if ending.done():
                return _ended(ending.result(), "before it was ready")
            if asking.done():
                if (wrong := asking.result()) is not None:
                    return Failed(wrong.text, hopeless=wrong.hopeless)
                if not self.unit.is_router and not self.unit.follows:
                    # Before it counts as ready, for it may have been gated when its predecessor was drained.
                    await self._shell.router.ungate(self.unit.name, self.life.incarnation)
                return Event.PROBED
            return Failed(f"not ready within {limit_s:g} s; {self.detail or 'never answered'}")
        finally:
            await _cancelled(ending)
            await _cancelled(asking)

    async def _ask_until_ready(self) -> Wrong | None:
        """Return once it is ready; with what is wrong, if it never will be."""
        pause_s = self._shell.tuning.probe_first_s
        while True:
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 1.5, self._shell.tuning.probe_most_s)
            said = await self._shell.prober.ask(self.unit, self.unit.probes.ready)
            if said is None and self._before is not None:
                # Until then it is the one before that has answered.
                serving, ours = await self._shell.router.pid(), self._running().identity.pid
                said = None if serving == ours else "has not taken over yet"
            if said is None:
                wrong = await self._shell.told.check(
                    self.unit, self._running().pids(), self._shell.prober.tell
                )
                if wrong is None or wrong.hopeless:
                    return wrong
                said = wrong.text
            if said != self.detail:
                self.detail = said
                self._shell.changed()

    async def _watch(self) -> Event | Failed:
        if self.unit.is_router:
            await self._shell.router_ready()
        await self._shell.told.hear(self.unit, self._shell.prober.tell)
        ending = asyncio.create_task(self._running().exited())
        self._useless = useless = asyncio.get_running_loop().create_future()
        try:
            await asyncio.wait({ending, useless}, return_when=asyncio.FIRST_COMPLETED)
            if ending.done():
                if self.superseded:
                    return Event.STOP
                return _ended(ending.result(), "while it was serving")
            return Failed(useless.result())
        finally:
            self._useless = None
            await _cancelled(ending)

    async def _drain(self) -> Event:
        if self.unit.is_router:
            # It drains by itself on TERM.
            return Event.DRAINED
        unit = self.unit
        self.detail = f"waiting up to {unit.drain_s:g} s for requests in flight"
        ending = asyncio.create_task(self._running().exited())
        if unit.follows:
            # Process 0 drains, and ends it; TERM before that would take ranks away from running requests.
            self.detail = f"waiting up to {unit.drain_s:g} s for {unit.follows} to end it"
            draining = asyncio.create_task(asyncio.sleep(unit.drain_s))
        else:
            draining = asyncio.create_task(self._shell.router.drain(unit.name, unit.drain_s))
        try:
            await asyncio.wait({ending, draining}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _cancelled(ending)
            await _cancelled(draining)
        return Event.DRAINED

    async def _term(self) -> Event:
        if self.process is not None:
            self.process.terminate()
            # The router counts the same seconds itself and then ends its streams in an orderly way.
            limit_s = self.unit.drain_s + (ROUTER_MARGIN_S if self.unit.is_router else 0.0)
            self.detail = f"TERM sent; KILL follows after {limit_s:g} s"
            try:
                async with asyncio.timeout(limit_s):
                    await self.process.exited()
            except TimeoutError:
                log.warning("%s: still there %g s after TERM", self.unit.name, limit_s)
                return Event.KILL
        await self._sweep_away(self._shell.tuning.leave_s)
        return Event.GONE

    async def _kill(self) -> Event:
        await self._sweep_away(0.0)
        return Event.GONE

    async def _sweep(self) -> None:
        if self.process is not None:
            self.process.terminate()
        await self._sweep_away(self._shell.tuning.failed_leave_s)

    async def _sweep_away(self, grace_s: float) -> None:
        """See to it that no process is left, however long that takes."""
        while self.process is not None:
            stuck = await self.process.sweep(grace_s)
            if not stuck:
                code = await self.process.exited()
                self.process = None
                self._note(pid=None, ticks=None, exit_code=code)
                return
            self._note(last_error=f"cannot be killed: {', '.join(stuck)}")

    async def _retry(self) -> Event:
        self.detail = f"next try after {self.life.retry_s:.1f} s"
        await asyncio.sleep(self.life.retry_s)
        return Event.LAUNCH

    async def _report(self) -> None:
        log.error("%s: given up after %d failures", self.unit.name, len(self.life.failures))

    def _running(self) -> Process:
        """The process that the present state cannot be without."""
        if self.process is None:
            raise AssertionError(f"{self.unit.name} is {self.state} without a process")
        return self.process

    def status(self) -> InstanceStatus:
        """How the unit stands now."""
        shell, record = self._shell, self.record
        path = shell.state.log(self.unit.name)
        lines = logs.last_words(path, 1)
        uptime_s = None
        if self.process is not None and record.started_s is not None:
            uptime_s = max(0.0, shell.clock.wall_s() - record.started_s)
        return InstanceStatus(
            name=self.unit.name,
            pool=self.unit.pool,
            role=self.unit.role,
            state=self.state,
            url=self.unit.url,
            ports=dict(self.unit.ports),
            log=str(path),
            pid=self.process.identity.pid if self.process else None,
            uptime_s=uptime_s,
            since_s=shell.clock.now_s() - self._since_s,
            restarts=self.life.restarts,
            incarnation=self.life.incarnation,
            exit_code=record.exit_code,
            last_error=record.last_error,
            detail=self.detail or "; ".join(map(str, shell.told.about(self.unit.name))),
            last_line=logs.strike(lines[-1], shell.secrets) if lines else "",
            failure=self.failure.lines if self.failure else (),
            hint=self.failure.hint if self.failure else "",
        )


_Do = Callable[[Keeper], Awaitable[Event | Failed | None]]
_DO: Mapping[Effect, _Do] = {
    Effect.SPAWN: Keeper._spawn,
    Effect.PROBE: Keeper._probe,
    Effect.WATCH: Keeper._watch,
    Effect.DRAIN: Keeper._drain,
    Effect.TERM: Keeper._term,
    Effect.KILL: Keeper._kill,
    Effect.SWEEP: Keeper._sweep,
    Effect.RETRY: Keeper._retry,
    Effect.REPORT: Keeper._report,
}


async def _cancelled(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait for its end; what it found, or what went wrong in it, was taken before."""
    task.cancel()
    await asyncio.wait({task})
