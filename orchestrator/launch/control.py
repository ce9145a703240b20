"""The control socket: how a `pdctl` command speaks with the controller, one JSON object per line."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any

from orchestrator.errors import LaunchError
from orchestrator.fabric import unix
from orchestrator.launch.paths import StateDir, controller_pid
from orchestrator.launch.status import Status, parse_status
from orchestrator.launch.supervisor import Supervisor
from orchestrator.topology.plan import parse

log = logging.getLogger(__name__)

PROTOCOL = 1
"""Number of the protocol; a controller of another pdctl version refuses politely."""
MAX_LINE = 64 * 1024 * 1024
"""A plan of a thousand instances is a few megabytes."""
ANSWER_S = 30.0
CONNECT_S = 10.0
"""How long a controller that holds the lock may take to listen: it adopts what lives first."""
POLL_S = 0.05


class Server:
    """The controller's end. Only processes of the same user (and root) are answered."""

    def __init__(self, supervisor: Supervisor, state: StateDir) -> None:
        self._supervisor = supervisor
        self._state = state
        self._server: asyncio.Server | None = None
        self._talks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen on `control.sock`."""
        listener = unix.bind(self._state.control)
        self._server = await asyncio.start_unix_server(self._accept, sock=listener, limit=MAX_LINE)

    async def close(self) -> None:
        """Stop listening, and let those who follow hear the end."""
        if self._server is not None:
            self._server.close()
            self._state.control.unlink(missing_ok=True)
        if self._talks:
            await asyncio.wait(self._talks, timeout=1.0)
        for talk in self._talks:
            talk.cancel()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._talks.add(task)
        try:
            if _may_speak(writer):
                # One request per connection.
                await self._talk(await reader.readline(), writer)
        except (OSError, ValueError) as error:
            log.info("control: a client left or spoke nonsense: %s", error)
        finally:
            self._talks.discard(task)
            writer.close()

    async def _talk(self, line: bytes, writer: asyncio.StreamWriter) -> None:
        if not line:
            return
        request = json.loads(line)
        if request.get("op") == "follow":
            async with aclosing(self._supervisor.watch()) as statuses:
                async for status in statuses:
                    await _write(writer, {"ok": True, "status": status.to_json()})
            return
        try:
            answer = self._answer(request)
        except LaunchError as error:
            await _write(writer, {"ok": False, "error": error.message, "reason": error.reason})
        else:
            await _write(writer, {"ok": True, **answer})

    def _answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        supervisor = self._supervisor
        if request.get("protocol") != PROTOCOL:
            raise LaunchError(
                f"the controller (pid {os.getpid()}) is of another pdctl version (it speaks protocol "
                f"{PROTOCOL}); `kill -9 {os.getpid()}` and run `pdctl up` again: engines and router serve on "
                "and are adopted",
                reason="protocol",
            )
        match request.get("op"):
            case "apply":
                supervisor.apply(parse(str(request["plan"]).encode()))
            case "restart":
                supervisor.restart([str(n) for n in request["instances"]])
            case "stop":
                supervisor.begin_stop(force=bool(request["force"]))
            case "status":
                return {"status": supervisor.status().to_json()}
            case other:
                raise LaunchError(f"the controller knows no {other!r}", reason="protocol")
        return {}


def _may_speak(writer: asyncio.StreamWriter) -> bool:
    """Whether the peer is this user or root; the socket's mode says so too, this says it again."""
    peer: socket.socket = writer.get_extra_info("socket")
    size = struct.calcsize("3i")
    _, uid, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return uid in (0, os.geteuid())


async def _write(writer: asyncio.StreamWriter, message: Mapping[str, Any]) -> None:
    writer.write(json.dumps(message).encode() + b"\n")
    await writer.drain()


async def _open(state: StateDir) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
    try:
        with unix.short(state.control) as name:
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
        await _write(writer, {"op": op, "protocol": PROTOCOL, **arguments})
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
