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
from typing import TYPE_CHECKING, Protocol, TextIO

from orchestrator.core.lifecycle import State
from orchestrator.core.types import Role
from orchestrator.errors import LaunchError
from orchestrator.fabric import unix
from orchestrator.launch import control, logs
from orchestrator.launch.local import LocalLauncher
from orchestrator.launch.paths import Lock, StateDir, controller_pid, reaching, writing
from orchestrator.launch.process import MARK, MARK_DIGEST, Identity, alive, identify
from orchestrator.launch.state import read_records
from orchestrator.launch.status import Phase, Status
from orchestrator.launch.unit import ROUTER
from orchestrator.topology.plan import Plan, dump, parse

if TYPE_CHECKING:
    from orchestrator.launch.supervisor import Supervisor

START_S = 60.0
"""How long a detached controller may take to listen: a second or two, and through a cluster some more."""
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
        _tell_damaged(state, view)
        await _start_controller(state)
    return await _hand_over(plan, state, view, timeout_s)


async def up_foreground(plan: Plan, view: View, timeout_s: float | None) -> Status:
    """Be the controller for `plan` until it is stopped by SIGINT, SIGTERM or `down`, and return how things
    stood when they were first settled (or at the end, if they never were).

    When nothing serves by then, or after `timeout_s` without being settled, all is stopped. If another
    process is the controller already, the plan is handed over to it as by `up_detached`.
    """
    # Here and not above: it loads an HTTP client, which those who only speak with a controller do without.
    from orchestrator.launch.controller import controller, signals_stop

    state = StateDir(plan.state_dir)
    _tell_other_file(plan, state, view)
    state.create()
    lock = Lock(state)
    if not lock.acquire():
        view.say(f"pid {controller_pid(state)} looks after this deployment; it takes over the plan")
        return await _hand_over(plan, state, view, timeout_s)
    _tell_damaged(state, view)
    async with controller(state, lock) as supervisor, signals_stop(supervisor):
        await supervisor.prepare(plan)
        supervisor.apply(plan)
        return await _stay(supervisor, view, timeout_s)


def _tell_other_file(plan: Plan, state: StateDir, view: View) -> None:
    """Say so when what runs here was described by another file: two topologies may bear one name."""
    try:
        before = parse(state.plan.read_bytes()).file
    except (OSError, ValueError):
        # There is none, or whoever runs it next will say what is wrong with it.
        return
    if before != plan.file:
        view.say(f"{state.root} was last run from {before}; it is made to follow {plan.file} now")


def _tell_damaged(state: StateDir, view: View) -> None:
    """Say so when the controller that is to come will put its database aside."""
    try:
        read_records(state.db)
    except LaunchError as error:
        if error.reason == "state-damaged":
            view.say(error.message)


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
    """Start a detached controller and return once it listens, or another one is found to hold the lock.
    Raises LaunchError with its words."""
    state.create()
    child, words = _spawn_controller(state)
    give_up_s = time.monotonic() + START_S
    with words:
        while not _listens(state, child.pid):
            code = child.poll()
            if code == LaunchError.exit_code and controller_pid(state) is not None:
                # Somebody else's was quicker.
                return
            if code is not None or time.monotonic() > give_up_s:
                see = f"see {state.log('controller')}"
                why = f"does not listen after {START_S:g} s; {see}"
                if code is not None:
                    why = f"ended with code {code}: {words.read() or see}"
                raise LaunchError(f"the controller {why}", reason="controller-failed")
            await asyncio.sleep(POLL_S)


def _listens(state: StateDir, pid: int) -> bool:
    """Whether the process `pid` is the controller, and can be spoken to."""
    with reaching(state.control):
        return controller_pid(state) == pid and unix.answers(state.control)


def _spawn_controller(state: StateDir) -> tuple[subprocess.Popen[bytes], TextIO]:
    """A detached controller, and the end of a pipe in which it says why it ends, should it. Not read from
    its log: that may lie on a full disk."""
    path = state.log("controller")
    with writing(path):
        log = logs.open_append(path)
    words, tell = os.pipe()
    try:
        module = [sys.executable, "-P", "-m", "orchestrator.launch"]
        child = subprocess.Popen(
            [*module, "--state", str(state.root), "--await-plan", "--tell", str(tell)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=state.root,
            env={k: v for k, v in os.environ.items() if k not in (MARK, MARK_DIGEST)},
            start_new_session=True,
            pass_fds=(tell,),
        )
    except BaseException:
        os.close(words)
        raise
    finally:
        os.close(log)
        os.close(tell)
    return child, os.fdopen(words, errors="replace")


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
    from orchestrator.launch.controller import controller, signals_stop

    state.create()
    lock = Lock(state)
    if not lock.acquire():
        return await down(state, view, force=force)
    _tell_damaged(state, view)
    async with controller(state, lock, stopping=True) as supervisor, signals_stop(supervisor):
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


async def switch(state: StateDir, name: str, to: Role, view: View, timeout_s: float | None) -> Status:
    """Switch the role of the instance `name`, and return how things stand then. Raises LaunchError if it
    cannot be switched."""
    await control.call(state, "switch", instance=name, to=to.value)
    return await _until_settled(state, view, timeout_s)


async def rollout(
    plan: Plan, pool: str | None, watch_s: float, view: View, timeout_s: float | None
) -> Status:
    """Replace what differs from `plan` (in `pool` alone, if it is given) one by one, and return how things
    stand then. Raises LaunchError when that cannot be begun."""
    from orchestrator.launch.reload import running_plan
    from orchestrator.launch.rollout import narrowed

    state = StateDir(plan.state_dir)
    target = plan if pool is None else narrowed(plan, running_plan(state), pool)
    await control.call(state, "rollout", plan=dump(target).decode(), watch_s=watch_s)
    return await _until_settled(state, view, timeout_s)
