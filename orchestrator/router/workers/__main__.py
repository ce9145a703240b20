"""`python -m orchestrator.router.workers`: one relay process, started by the router's."""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import uvloop

from orchestrator.router import logs
from orchestrator.router.hung import Watchdog
from orchestrator.router.openfiles import raise_fd_limit
from orchestrator.router.workers.relay import Relay

GC_THRESHOLD = 20_000
"""As in the router's process."""

DRAIN_S = 30.0
"""How long a relay that is told by a signal lets what runs end."""


async def _run(link: int, listening: Sequence[int], rejoin: Path | None) -> None:
    loop = asyncio.get_running_loop()
    relay = Relay([socket.socket(fileno=fd) for fd in listening], rejoin)
    loop.add_signal_handler(signal.SIGTERM, lambda: relay.leave(relay.drain(DRAIN_S)))
    # From a terminal it goes to the router as well, which tells what is to be done.
    loop.add_signal_handler(signal.SIGINT, lambda: None)
    loop.add_signal_handler(signal.SIGHUP, lambda: None)
    await relay.join(socket.socket(fileno=link))
    watchdog = Watchdog(loop)
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)
    await relay.ended.wait()
    watchdog.stop()


def main(arguments: Sequence[str] | None = None) -> int:
    """Relay until it is over; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m orchestrator.router.workers", description=__doc__)
    parser.add_argument("--link", type=int, required=True, help="descriptor of the scheduler's connection")
    parser.add_argument("--listen", type=int, nargs="+", required=True, help="descriptors to listen on")
    parser.add_argument("--rejoin", type=Path, help="where a scheduler that is started anew listens")
    given = parser.parse_args(arguments)
    logs.set_up([], level=logs.level_of(os.environ))
    raise_fd_limit()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(given.link, given.listen, given.rejoin))
    return 0


if __name__ == "__main__":
    sys.exit(main())
