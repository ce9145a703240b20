"""What `pdctl up`, `down` and `restart` do, told to a view; no terminal in here."""

from __future__ import annotations

import asyncio
import math
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import aclosing
from typing import Protocol

from orchestrator.core.lifecycle import State
from orchestrator.errors import LaunchError
from orchestrator.launch import control, logs
from orchestrator.launch.controller import controller, signals_stop
from orchestrator.launch.local import LocalLauncher
from orchestrator.launch.paths import Lock, StateDir, controller_pid, reaching
from orchestrator.launch.process import MARK, MARK_DIGEST, Identity, alive, identify
from orchestrator.launch.status import Phase, Status
from orchestrator.launch.supervisor import Supervisor
from orchestrator.launch.unit import ROUTER
from orchestrator.topology.plan import Plan, dump, parse

START_S = 20.0
"""How long a detached controller may take to take its lock; a cold interpreter takes a second or two."""
GONE_S = 10.0
POLL_S = 0.05
_DONE = frozenset({Phase.READY, Phase.FAILED, Phase.STOPPED})


class View(Protocol):
    """Where progress is shown."""

    def show(self, status: Status) -> None:
        """How things stand now."""
        ...

    def say(self, text: str) -> None:
        """One sentence for the operator."""
        ...


async def up_detached(plan: Plan, view: View, timeout_s: float | None) -> Status:
    """Have a controller of its own make `plan` run, and return how things stand once they are settled or
    after `timeout_s`. Raises LaunchError when nothing could be begun."""
    state = StateDir(plan.state_dir)
    _tell_other_file(plan, state, view)
    if controller_pid(state) is None:
        await _start_controller(state)
    return await _hand_over(plan, state, view, timeout_s)


async def up_foreground(plan: Plan, view: View, timeout_s: float | None) -> Status:
    """Be the controller for `plan` until it is stopped by SIGINT, SIGTERM or `down`, and return how things
    stood when they were first settled (or at the end, if they never were).

    When nothing serves by then, or after `timeout_s` without being settled, all is stopped. If another
    process is the controller already, the plan is handed over to it as by `up_detached`.
    """
    state = StateDir(plan.state_dir)
    _tell_other_file(plan, state, view)
    state.create()
    lock = Lock(state)
    if not lock.acquire():
        view.say(f"pid {controller_pid(state)} looks after this deployment; it takes over the plan")
        return await _hand_over(plan, state, view, timeout_s)
    async with controller(state, lock) as supervisor, signals_stop(supervisor):
        supervisor.apply(plan)
        return await _stay(supervisor, view, timeout_s)


def _tell_other_file(plan: Plan, state: StateDir, view: View) -> None:
    """Say so when what runs here was described by another file: two topologies may bear one name."""
    try:
        with reaching(state.plan):
            before = parse(state.plan.read_bytes()).file
    except (FileNotFoundError, ValueError):
        return
    if before != plan.file:
        view.say(f"{state.root} was last run from {before}; it is made to follow {plan.file} now")


async def _stay(supervisor: Supervisor, view: View, timeout_s: float | None) -> Status:
    settled: Status | None = None
    give_up_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
    async for status in supervisor.watch():
        view.show(status)
        last = status
        if settled is not None:
            continue
        if status.phase in _DONE:
            settled = status
            if status.phase is Phase.FAILED and not _serves(status):
                view.say("nothing can be served; stopping all")
                supervisor.begin_stop()
        elif time.monotonic() > give_up_s and status.phase is Phase.WORKING:
            settled = status
            view.say(f"not ready within {timeout_s:g} s; stopping all")
            supervisor.begin_stop()
    return settled or last


def _serves(status: Status) -> bool:
    """Whether any engine is ready."""
    return bool(status.external) or any(i.state is State.READY for i in status.instances if i.role != ROUTER)


async def _hand_over(plan: Plan, state: StateDir, view: View, timeout_s: float | None) -> Status:
    await control.call(state, "apply", plan=dump(plan).decode())
    return await _until_settled(state, view, timeout_s)


async def _until_settled(state: StateDir, view: View, timeout_s: float | None) -> Status:
    last: Status | None = None
    try:
        async with asyncio.timeout(timeout_s), aclosing(control.follow(state)) as statuses:
            async for status in statuses:
                last = status
                view.show(status)
                if status.phase in _DONE:
                    return status
    except TimeoutError:
        if last is not None:
            return last
    if last is None:
        raise LaunchError("the controller went away; see its log", reason="controller-gone")
    return last


async def _start_controller(state: StateDir) -> None:
    """Start a detached controller and return once it holds the lock. Raises LaunchError with its words."""
    state.create()
    path = state.log("controller")
    child, begin = _spawn_controller(state)
    give_up_s = time.monotonic() + START_S
    while controller_pid(state) is None:
        code = child.poll()
        if code is not None or time.monotonic() > give_up_s:
            with path.open(errors="replace") as file:
                file.seek(begin)
                words = file.read().strip()
            why = f"ended with code {code}" if code is not None else f"took no lock within {START_S:g} s"
            raise LaunchError(f"the controller {why}: {words or f'see {path}'}", reason="controller-failed")
        await asyncio.sleep(POLL_S)


def _spawn_controller(state: StateDir) -> tuple[subprocess.Popen[bytes], int]:
    """A detached controller, and where in its log its words begin."""
    path = state.log("controller")
    with reaching(path):
        log = logs.open_append(path)
    try:
        begin = os.fstat(log).st_size
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "orchestrator.launch", "--state", str(state.root), "--await-plan"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=state.root,
            env={k: v for k, v in os.environ.items() if k not in (MARK, MARK_DIGEST)},
            start_new_session=True,
        )
    finally:
        os.close(log)
    return child, begin


async def down(state: StateDir, view: View, *, force: bool = False) -> bool:
    """Stop everything and return when no process is left; False if there was none. With a controller or
    without: what a dead one left is found by record and marker."""
    pid = controller_pid(state)
    if pid is not None:
        process = identify(pid)
        await control.call(state, "stop", force=force)
        await _see_off(state, view, process)
        return True
    if not state.root.exists() and not LocalLauncher(state).find():
        return False
    state.create()
    lock = Lock(state)
    if not lock.acquire():
        return await down(state, view, force=force)
    async with controller(state, lock) as supervisor, signals_stop(supervisor):
        found = not supervisor.idle
        if found:
            view.say("no controller runs; stopping what the last one left")
        supervisor.begin_stop(force=force)
        async for status in supervisor.watch():
            if found:
                view.show(status)
    return found


async def _see_off(state: StateDir, view: View, process: Identity | None) -> None:
    """Show how the controller stops everything, until it (`process`) has ended itself."""
    async with aclosing(control.follow(state)) as statuses:
        async for status in statuses:
            view.show(status)
    give_up_s = time.monotonic() + GONE_S
    while controller_pid(state) is not None or (process is not None and alive(process)):
        if time.monotonic() > give_up_s:
            raise LaunchError(
                f"all is stopped, but the controller does not end; see {state.log('controller')}",
                reason="controller-mute",
            )
        await asyncio.sleep(POLL_S)


async def restart(state: StateDir, names: Sequence[str], view: View, timeout_s: float | None) -> Status:
    """Replace the units `names` (all if empty) one by one, and return how things stand then."""
    await control.call(state, "restart", instances=list(names))
    return await _until_settled(state, view, timeout_s)
