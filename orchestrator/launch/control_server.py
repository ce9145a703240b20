"""The controller's end of the control socket: answers `control`'s clients for a supervisor."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import struct
from collections.abc import Mapping
from contextlib import aclosing, suppress
from typing import Any

from orchestrator.core.types import Role
from orchestrator.errors import LaunchError
from orchestrator.fabric import unix
from orchestrator.launch.control import MAX_LINE, PROTOCOL
from orchestrator.launch.paths import StateDir, writing
from orchestrator.launch.supervisor import Supervisor
from orchestrator.topology.plan import parse

log = logging.getLogger(__name__)

TEND_S = 2.0
"""How often it is looked whether the socket is still there; those who would speak wait longer."""


class Server:
    """Listens on `control.sock`. Only processes of the same user (and root) are answered."""

    def __init__(self, supervisor: Supervisor, state: StateDir) -> None:
        self._supervisor = supervisor
        self._state = state
        self._server: asyncio.Server | None = None
        self._tending: asyncio.Task[None] | None = None
        self._talks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Begin to listen. Raises LaunchError (`state-dir`)."""
        await self._listen()
        self._tending = asyncio.create_task(self._tend())

    async def _listen(self) -> None:
        with writing(self._state.control):
            # Whatever is there is not a controller's: the lock is ours.
            self._state.control.unlink(missing_ok=True)
            listener = unix.bind(self._state.control)
        self._server = await asyncio.start_unix_server(self._accept, sock=listener, limit=MAX_LINE)

    async def _tend(self) -> None:
        """Listen anew when the socket's file is gone: some clean up what is old in a folder."""
        while True:
            await asyncio.sleep(TEND_S)
            if not self._state.control.exists():
                log.warning("%s was removed; listening there again", self._state.control)
                try:
                    await self._listen()
                except LaunchError as error:
                    log.warning("%s", error.message)

    async def close(self) -> None:
        """Stop listening, and let those who follow hear the end."""
        if self._tending is not None:
            self._tending.cancel()
        if self._server is not None:
            self._server.close()
            with suppress(OSError):
                # One that is left where nothing may be removed any more is replaced by the next controller.
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
            log.debug("control: a client left or spoke nonsense: %s", error)
        finally:
            self._talks.discard(task)
            writer.close()

    async def _talk(self, line: bytes, writer: asyncio.StreamWriter) -> None:
        if not line:
            return
        request = json.loads(line)
        try:
            _check_protocol(request)
            if request["op"] == "follow":
                await self._follow(writer)
            else:
                await _write(writer, {"ok": True, **await self._answer(request)})
        except LaunchError as error:
            await _write(writer, {"ok": False, "error": error.message, "reason": error.reason})
        except (KeyError, TypeError, ValueError) as error:
            # Its name only: the message may quote the plan, which holds keys.
            told = f"the controller did not understand the request ({type(error).__name__})"
            await _write(writer, {"ok": False, "error": told, "reason": "protocol"})

    async def _follow(self, writer: asyncio.StreamWriter) -> None:
        """Tell how things stand until all is stopped. Raises what broke the supervisor."""
        async with aclosing(self._supervisor.watch()) as statuses:
            async for status in statuses:
                await _write(writer, {"ok": True, "status": status.to_json()})

    async def _answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        supervisor = self._supervisor
        match request["op"]:
            case "apply":
                await self._apply(request, None)
            case "rollout":
                await self._apply(request, float(request["watch_s"]))
            case "restart":
                supervisor.restart([str(n) for n in request["instances"]])
            case "switch":
                supervisor.switch(str(request["instance"]), Role(request["to"]))
            case "stop":
                supervisor.begin_stop(force=bool(request["force"]))
            case "status":
                return {"status": supervisor.status().to_json()}
            case other:
                raise LaunchError(f"the controller knows no {other!r}", reason="protocol")
        return {}

    async def _apply(self, request: Mapping[str, Any], watch_s: float | None) -> None:
        plan = parse(str(request["plan"]).encode())
        await self._supervisor.prepare(plan)
        self._supervisor.apply(plan, watch_s)


def _check_protocol(request: Any) -> None:
    if not isinstance(request, dict):
        raise TypeError("not an object")
    if request.get("protocol") != PROTOCOL:
        pid = os.getpid()
        raise LaunchError(
            f"the controller (pid {pid}) is of another pdctl version (it speaks protocol {PROTOCOL}); "
            f"`kill -9 {pid}` and run `pdctl up` again: engines and router serve on and are adopted",
            reason="protocol",
        )


def _may_speak(writer: asyncio.StreamWriter) -> bool:
    """Whether the peer is this user or root; the socket's mode says so too, this says it again."""
    peer: socket.socket = writer.get_extra_info("socket")
    size = struct.calcsize("3i")
    _, uid, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return uid in (0, os.geteuid())


async def _write(writer: asyncio.StreamWriter, message: Mapping[str, Any]) -> None:
    writer.write(json.dumps(message).encode() + b"\n")
    await writer.drain()
