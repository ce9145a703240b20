"""The controller: the one process that holds a state directory's lock and runs its supervisor."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, aclosing, asynccontextmanager, closing, contextmanager, suppress
from functools import partial
from random import Random
from typing import TextIO

from orchestrator.clock import SystemClock
from orchestrator.errors import LaunchError
from orchestrator.launch import logs
from orchestrator.launch.control_server import Server
from orchestrator.launch.identity import Identities
from orchestrator.launch.launchers import Launchers
from orchestrator.launch.paths import Lock, StateDir, writing
from orchestrator.launch.probe import HttpProber
from orchestrator.launch.routerlink import SocketRouterLink, link_of
from orchestrator.launch.shell import Shell, Tuning
from orchestrator.launch.state import Store, put_aside
from orchestrator.launch.supervisor import Supervisor

log = logging.getLogger(__name__)

IDLE_S = 10.0
"""A controller without a plan and without anything to look after ends after this long."""


class _Handler(logging.StreamHandler[TextIO]):
    """Where logging would show a traceback that a line could not be written: on a full disk there is
    nowhere to show it, and the deployment goes on."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Lose the line."""


@contextmanager
def _logging(state: StateDir) -> Iterator[None]:
    """While open, what the launcher logs goes to `logs/controller.log`."""
    logger = logging.getLogger("orchestrator.launch")
    before = logger.level, logger.propagate
    path = state.log("controller")
    with writing(path):
        fd = logs.open_append(path)
    with os.fdopen(fd, "a") as file:
        handler = _Handler(file)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
        try:
            yield
        finally:
            logger.removeHandler(handler)
            logger.level, logger.propagate = before
            with suppress(OSError):
                # Of a full disk: what is still buffered is lost, as were the lines before it.
                file.close()


def _store(state: StateDir, *, stopping: bool) -> Store:
    """The state database. One that is damaged is put aside, and where all is to be stopped, one that cannot
    be used is done without: processes are found by their marker, and nothing must keep them from that."""
    try:
        return Store(state.db)
    except LaunchError as error:
        log.error("%s", error.message)
        if error.reason == "state-damaged":
            log.error("it is %s now", put_aside(state.db))
            return Store(state.db)
        if stopping and error.reason in ("state-unusable", "state-dir"):
            return Store(None)
        raise


@asynccontextmanager
async def controller(
    state: StateDir, lock: Lock, tuning: Tuning | None = None, *, stopping: bool = False
) -> AsyncIterator[Supervisor]:
    """Be the controller of `state`, whose `lock` the caller holds: adopt what runs, answer on the control
    socket. On leaving, everything is let go of, not stopped. `stopping`: only to stop everything."""
    with ExitStack() as stack:
        stack.callback(lock.release)
        stack.enter_context(_logging(state))
        store = stack.enter_context(closing(_store(state, stopping=stopping)))
        async with HttpProber() as prober:
            shell = Shell(
                state=state,
                store=store,
                launcher=Launchers(state),
                prober=prober,
                router=SocketRouterLink(state.router),
                clock=SystemClock(),
                rng=Random(),
                tuning=tuning or Tuning(),
                check=lock.check,
                link=partial(link_of, state.router),
                told=Identities(state.id),
            )
            supervisor = Supervisor(shell)
            server = Server(supervisor, state)
            try:
                await supervisor.recover()
                await server.start()
                yield supervisor
            finally:
                await server.close()
                await supervisor.close()


@asynccontextmanager
async def signals_stop(supervisor: Supervisor) -> AsyncIterator[None]:
    """While open, the first SIGINT or SIGTERM drains and stops everything, the second one kills."""
    loop = asyncio.get_running_loop()
    asked = False

    def on_signal() -> None:
        nonlocal asked
        supervisor.begin_stop(force=asked)
        asked = True

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


async def until_stopped(supervisor: Supervisor, idle_s: float) -> None:
    """Return when everything is stopped, or nothing has been there to look after for `idle_s`. Raises what
    broke the supervisor."""
    loop = asyncio.get_running_loop()
    busy_s = loop.time()
    async with aclosing(supervisor.watch()) as statuses:
        async for _ in statuses:
            if not supervisor.idle:
                busy_s = loop.time()
            elif loop.time() - busy_s > idle_s:
                return


async def serve(state: StateDir, *, resume: bool) -> None:
    """The detached controller's life. `resume`: begin with the plan that was last asked for; else wait for
    one over the control socket. Raises LaunchError (`controller-runs`) when there is a controller already."""
    state.create()
    lock = Lock(state)
    if not lock.acquire():
        raise LaunchError(f"another controller looks after {state.root}", reason="controller-runs")
    async with controller(state, lock) as supervisor, signals_stop(supervisor):
        if resume:
            await supervisor.resume()
        await until_stopped(supervisor, IDLE_S)
