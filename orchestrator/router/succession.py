"""How one router process follows another without a moment in which nobody listens."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from orchestrator.fabric import unix

log = logging.getLogger(__name__)

NAME = "takeover.sock"
"""The socket, beside the admin's, where the next router asks for what this one listens on."""

ANSWER_S = 5.0
"""How long either side waits for the other: both only pass descriptors on."""

MAX_FDS = 64
_TAKEN = b"taken\n"

Sockets = Mapping[str, Sequence[int]]
"""What is listened for (`client 127.0.0.1:8000`) to descriptors of the sockets that do."""


class Heirs:
    """Gives the listening sockets to the router that asks for them at `path`, and then says `taken`.

    Only processes of the same user (and root) are answered.
    """

    def __init__(self, path: Path, sockets: Callable[[], Sockets], taken: Callable[[], None]) -> None:
        self._path = path
        self._sockets = sockets
        self._taken = taken
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        # Whoever listened there before is this router's predecessor, which has handed over by now.
        self._listener = unix.bind(path, replace=True)
        self._listener.setblocking(False)
        self._listener.listen(4)
        self._loop.add_reader(self._listener, self._accept)

    def close(self, *, remove: bool) -> None:
        """Answer nobody any more; `remove`: nobody else listens there."""
        self._loop.remove_reader(self._listener)
        self._listener.close()
        if remove:
            self._path.unlink(missing_ok=True)

    def _accept(self) -> None:
        try:
            heir, _ = self._listener.accept()
        except OSError:
            return
        heir.setblocking(False)
        if not _of_this_user(heir):
            heir.close()
            return
        task = self._loop.create_task(self._give(heir))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _give(self, heir: socket.socket) -> None:
        with heir:
            sockets = self._sockets()
            fds = [fd for some in sockets.values() for fd in some]
            names = json.dumps({name: len(some) for name, some in sockets.items()}).encode()
            try:
                socket.send_fds(heir, [names], fds)
                async with asyncio.timeout(ANSWER_S):
                    said = await self._loop.sock_recv(heir, len(_TAKEN))
            except (OSError, TimeoutError) as error:
                log.info("a router asked to take over and went away", extra={"why": str(error)})
                return
        if said == _TAKEN:
            self._taken()


class Inheritance:
    """The sockets of the router that serves now, by what they are for. `taken` lets that one go."""

    def __init__(self, door: socket.socket, sockets: Mapping[str, list[socket.socket]]) -> None:
        self._door = door
        self._sockets = dict(sockets)

    def take(self, name: str) -> list[socket.socket]:
        """The sockets for `name`; none if the other router listens elsewhere."""
        return self._sockets.pop(name, [])

    def taken(self) -> None:
        """Whatever was taken is listened on now: the other router may stop to, and go."""
        for left in [one for some in self._sockets.values() for one in some]:
            left.close()
        with self._door:
            self._door.sendall(_TAKEN)


def inherit(path: Path) -> Inheritance | None:
    """The sockets of the router that answers at `path`; None if none does. Blocks, for seconds at most."""
    door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    door.settimeout(ANSWER_S)
    try:
        with unix.short(path) as name:
            door.connect(name)
        told, fds, _, _ = socket.recv_fds(door, 64 * 1024, MAX_FDS)
        if not told:
            raise ConnectionResetError("it went away")
        left = [socket.socket(fileno=fd) for fd in fds]
        return Inheritance(door, {n: [left.pop(0) for _ in range(c)] for n, c in json.loads(told).items()})
    except (FileNotFoundError, ConnectionRefusedError):
        door.close()
        return None
    except (OSError, ValueError, IndexError) as error:
        door.close()
        log.warning("the router before does not hand over", extra={"why": str(error)})
        return None


def _of_this_user(peer: socket.socket) -> bool:
    size = struct.calcsize("3i")
    _, uid, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return uid in (0, os.geteuid())
