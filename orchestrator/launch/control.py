"""The control socket as its clients see it: how a `pdctl` command speaks with the controller.

One connection per request: a JSON object in one line goes out, one comes back; `follow` gets many.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from orchestrator.errors import LaunchError
from orchestrator.fabric import unix
from orchestrator.launch.paths import StateDir, controller_pid, reaching
from orchestrator.launch.status import Status, parse_status

PROTOCOL = 1
"""Number of the protocol; a controller of another pdctl version refuses politely."""
MAX_LINE = 64 * 1024 * 1024
"""A plan of a thousand instances is a few megabytes."""
ANSWER_S = 30.0
CONNECT_S = 10.0
"""How long a controller that holds the lock may take to listen: it adopts what lives first."""
POLL_S = 0.05


async def _open(state: StateDir) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
    try:
        with reaching(state.control), unix.short(state.control) as name:
            return await asyncio.open_unix_connection(name, limit=MAX_LINE)
    except (FileNotFoundError, ConnectionRefusedError):
        return None


@asynccontextmanager
async def _asked(state: StateDir, op: str, **arguments: Any) -> AsyncIterator[asyncio.StreamReader]:
    """A connection on which `op` was asked. Raises LaunchError when no controller answers."""
    loop = asyncio.get_running_loop()
    give_up_s = loop.time() + CONNECT_S
    while (connection := await _open(state)) is None:
        pid = controller_pid(state)
        if pid is None:
            raise LaunchError(
                "no controller runs for this topology; `pdctl up` starts one, which adopts what still runs",
                reason="no-controller",
            )
        if loop.time() > give_up_s:
            raise LaunchError(
                f"the controller (pid {pid}) does not answer on {state.control}; its log is "
                f"{state.log('controller')}. `kill -9 {pid}` ends it alone; engines and router serve on",
                reason="controller-mute",
            )
        await asyncio.sleep(POLL_S)
    reader, writer = connection
    try:
        writer.write(json.dumps({"op": op, "protocol": PROTOCOL, **arguments}).encode() + b"\n")
        await writer.drain()
        yield reader
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


def _result(line: bytes) -> dict[str, Any]:
    """A line of the controller's; raises the LaunchError that it tells of."""
    if not line:
        raise LaunchError("the controller went away; run the command again", reason="controller-gone")
    message: dict[str, Any] = json.loads(line)
    if not message.get("ok"):
        raise LaunchError(str(message.get("error")), reason=str(message.get("reason")))
    return message


async def call(state: StateDir, op: str, **arguments: Any) -> dict[str, Any]:
    """Ask the controller for one thing. Raises LaunchError: nobody answers, or what was refused and why."""
    try:
        async with asyncio.timeout(ANSWER_S), _asked(state, op, **arguments) as reader:
            return _result(await reader.readline())
    except TimeoutError:
        raise LaunchError(
            f"the controller (pid {controller_pid(state)}) did not answer within {ANSWER_S:g} s",
            reason="controller-mute",
        ) from None
    except ConnectionError:
        return _result(b"")


async def follow(state: StateDir) -> AsyncGenerator[Status, None]:
    """How things stand, again and again, until the controller ends. Raises LaunchError."""
    async with _asked(state, "follow") as reader:
        with suppress(ConnectionError):
            while line := await reader.readline():
                yield parse_status(_result(line)["status"])
