"""The control socket as its clients see it: how a `pdctl` command speaks with the controller.

One connection per request: a JSON object in one line goes out, one comes back; `follow` gets many.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
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
ANSWER_S = 15.0
PREPARE_S = 120.0
"""How long the answer to a new plan may take: the nodes of a cluster may each have to start a process."""
CONNECT_S = 60.0
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
    while True:
        # Asked first: without a holder of the lock, whoever listens there is no controller.
        if controller_pid(state) is None:
            raise LaunchError(
                "no controller runs for this topology; `pdctl up` starts one, which adopts what still runs",
                reason="no-controller",
            )
        connection = await _open(state)
        if connection is not None:
            break
        if loop.time() > give_up_s:
            raise _mute(state, f"does not listen on {state.control}")
        await asyncio.sleep(POLL_S)
    reader, writer = connection
    try:
        writer.write(json.dumps({"op": op, "protocol": PROTOCOL, **arguments}).encode() + b"\n")
        async with asyncio.timeout(ANSWER_S):
            await writer.drain()
        yield reader
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


def _mute(state: StateDir, what: str) -> LaunchError:
    """That the controller does `what` it should not, and how to be rid of it."""
    pid = controller_pid(state)
    who = f"the controller (pid {pid})" if pid else f"whoever holds {state.lock} (`fuser` names it)"
    kill = f"`kill -9 {pid}`" if pid else "Killing it"
    return LaunchError(
        f"{who} {what}; its log is {state.log('controller')}. {kill} ends it alone: engines and router serve "
        "on, and the next `pdctl up` adopts them",
        reason="controller-mute",
    )


def _result(line: bytes) -> dict[str, Any]:
    """A line of the controller's; raises the LaunchError that it tells of."""
    if not line:
        raise LaunchError("the controller went away; run the command again", reason="controller-gone")
    try:
        message = json.loads(line)
    except ValueError:
        message = None
    if not isinstance(message, dict):
        raise LaunchError(
            "what answers on the control socket is no controller of pdctl, or of another version; end it, "
            "and run `pdctl up` again",
            reason="protocol",
        )
    if not message.get("ok"):
        raise LaunchError(str(message.get("error")), reason=str(message.get("reason")))
    return message


async def call(state: StateDir, op: str, **arguments: Any) -> dict[str, Any]:
    """Ask the controller for one thing. Raises LaunchError: nobody answers, or what was refused and why."""
    answer_s = PREPARE_S if "plan" in arguments else ANSWER_S
    try:
        async with _asked(state, op, **arguments) as reader, asyncio.timeout(answer_s):
            return _result(await reader.readline())
    except TimeoutError:
        raise _mute(state, f"did not answer within {answer_s:g} s") from None
    except ConnectionError:
        return _result(b"")


async def follow(state: StateDir) -> AsyncGenerator[Status, None]:
    """How things stand, again and again, until the controller ends. Raises LaunchError."""
    async with _asked(state, "follow") as reader:
        with suppress(ConnectionError):
            while line := await reader.readline():
                yield _status(_result(line))


async def status(state: StateDir) -> Status:
    """How things stand. Raises LaunchError."""
    return _status(await call(state, "status"))


def _status(message: Mapping[str, Any]) -> Status:
    try:
        return parse_status(message["status"])
    except (KeyError, TypeError, ValueError) as error:
        raise LaunchError(
            "the controller tells how things stand in words of another pdctl version; use that one, or "
            "`kill -9` the controller and run `pdctl up` again: engines and router serve on and are adopted",
            reason="protocol",
        ) from error
