"""Runs one router until it is told to stop or another has taken over: its loop, its signals, its drain."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import uvloop

from orchestrator.errors import PdctlError
from orchestrator.router import logs
from orchestrator.router.hung import Watchdog
from orchestrator.router.openfiles import raise_fd_limit
from orchestrator.router.serve import Router, own_plan
from orchestrator.topology.plan import Plan

log = logging.getLogger(__name__)

GC_THRESHOLD = 20_000
"""Containers allocated and not freed before the collector looks; the default, 700, is passed by a burst."""


def run_router(
    plan: Plan,
    *,
    reread: Callable[[], Plan] | None = None,
    socket: Path | None = None,
    follow: bool = False,
    on_ready: Callable[[str], None] | None = None,
) -> int:
    """Serve `plan` until SIGTERM or SIGINT, or until another router has taken over, then drain; 0. A second
    signal stops at once; SIGHUP reloads.

    `on_ready` is told the URL for clients once it listens. Raises what `Router` and its `start` raise.
    """
    router = own_plan(plan)
    credentials = router.credentials
    keys = [*credentials.client_keys, credentials.engine_key or "", credentials.admin_key or ""]
    for tenant in router.tenants.values():
        keys.extend(tenant.get("keys", ()) if isinstance(tenant, Mapping) else ())
    logs.set_up(keys, level=logs.level_of(os.environ))
    streams = raise_fd_limit()
    enough = streams >= router.limits.max_inflight
    fields = {"streams": streams, "max_inflight": router.limits.max_inflight}
    log.log(logging.INFO if enough else logging.WARNING, "open files allow this many streams", extra=fields)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        make = partial(Router, plan, reread=reread, socket=socket, follow=follow)
        return runner.run(_run(make, on_ready))


async def _run(make: Callable[[], Router], on_ready: Callable[[str], None] | None) -> int:
    router = make()
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()

    def hang_up() -> None:
        try:
            router.reload()
        except PdctlError:
            return  # logged and counted there

    loop.add_signal_handler(signal.SIGHUP, hang_up)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked.set)
    await router.start()
    watchdog = Watchdog(loop)
    # What was made by now lives as long as the process: the collector need not look at it again.
    gc.collect()
    gc.freeze()
    # Requests leave no cycles behind them, so that the collector finds next to nothing: let it look seldom.
    gc.set_threshold(GC_THRESHOLD)
    if on_ready is not None:
        on_ready(router.url)
    await _first(asked, router.handed_over)
    watchdog.stop()
    stopping = asyncio.create_task(router.stop())

    def again() -> None:
        # Of a router that has handed over, the first signal only asks for what is under way.
        if asked.is_set():
            stopping.cancel()
        asked.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, again)
    try:
        await stopping
    except asyncio.CancelledError:
        log.warning("told to stop a second time: what was running is cut")
        await router.close()
    return 0


async def _first(*events: asyncio.Event) -> None:
    """Return when one of `events` is set."""
    waiting = [asyncio.create_task(event.wait()) for event in events]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()
