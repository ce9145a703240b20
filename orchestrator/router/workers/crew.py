"""Starts the relay processes on sockets of their own at one address, replaces those that die, ends them."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from orchestrator.core.address import join_host_port
from orchestrator.core.restart import OUTLIVES
from orchestrator.errors import LaunchError
from orchestrator.fabric import unix
from orchestrator.metrics import RouterMetrics
from orchestrator.router.workers.hub import Hub, Member
from orchestrator.router.workers.messages import Kind, frame, json_frame

log = logging.getLogger(__name__)

NAME = "workers.sock"
"""The socket, beside the admin's, where relays of a scheduler that died report to this one."""

START_S = 60.0
"""How long a relay may take to serve."""

QUICK_S = 5.0
"""A relay that dies sooner is replaced later, by `QUICK_S` at most: it may never come up."""

GRACE_S = 2.0
"""How long after a deadline a relay may take to end by itself."""


class _Slot:
    """One relay process and the sockets it listens on, which outlive it."""

    def __init__(self, sockets: Sequence[socket.socket]) -> None:
        self.sockets = list(sockets)
        self.process: asyncio.subprocess.Process | None = None
        self.member: Member | None = None
        self.task: asyncio.Task[None] | None = None


class Crew:
    """`size` relays at `host`:`port`, as one server to whoever starts and stops it.

    `path` is where the router's admin socket is; None: relays of a dead scheduler report nowhere.
    """

    def __init__(
        self, hub: Hub, metrics: RouterMetrics, size: int, host: str, port: int, path: Path | None
    ) -> None:
        self.port = port
        self._hub, self._metrics, self._size, self._host = hub, metrics, size, host
        self._rejoin = None if path is None else path.with_name(NAME)
        self._slots: list[_Slot] = []
        self._leaving = self._succeeded = False
        self._reports: asyncio.AbstractServer | None = None
        metrics.follow("pdctl_workers", lambda: {(): self.serving})

    @property
    def follows(self) -> bool:
        """Whether there was a scheduler that did not end well: its relays may wait for this one."""
        return self._rejoin is not None and self._rejoin.exists()

    @property
    def serving(self) -> int:
        """Relays that serve now."""
        return sum(m.serving.is_set() for m in self._hub.members)

    async def start(self, inherited: Sequence[socket.socket]) -> None:
        """Start all, on the sockets of a router that was followed if any. Raises LaunchError, OSError."""
        sockets = list(inherited) or await asyncio.to_thread(_bound, self._host, self.port, self._size)
        self.port = sockets[0].getsockname()[1]
        # Of more relays than sockets several listen on one; of fewer, one listens on several.
        self._slots = [
            _Slot(sockets[i :: self._size] or [sockets[i % len(sockets)]]) for i in range(self._size)
        ]
        if self._rejoin is not None:
            sock = unix.bind(self._rejoin, replace=True)
            loop = asyncio.get_running_loop()
            self._reports = await loop.create_unix_server(lambda: self._hub.joins().link, sock=sock)
        try:
            async with asyncio.timeout(START_S):
                await asyncio.gather(*map(self._first, self._slots))
        except TimeoutError as error:
            await self.drained(0.0)
            raise LaunchError(
                f"workers did not serve within {START_S:.0f} s", reason="not-started"
            ) from error
        except LaunchError:
            await self.drained(0.0)
            raise
        for slot in self._slots:
            slot.task = asyncio.create_task(self._keep(slot))

    def sockets(self) -> list[int]:
        """The descriptors of the sockets that are listened on."""
        return list({sock.fileno(): None for slot in self._slots for sock in slot.sockets})

    async def retired(self) -> None:
        """Listen no more, for another router does, and return when no connection is left."""
        self._succeeded = True
        self._leave()
        self._hub.all(frame(Kind.RETIRE))
        await asyncio.gather(*(slot.process.wait() for slot in self._slots if slot.process is not None))

    def close(self) -> None:
        """Listen no more."""
        self._leave()

    async def drained(self, timeout_s: float) -> bool:
        """Take no more, let what runs end, cut the rest after `timeout_s`; True if all ended themselves."""
        self._leave()
        self._hub.all(json_frame(Kind.DRAIN, max(0.0, timeout_s - GRACE_S / 2)))
        left = [slot.process for slot in self._slots if slot.process is not None]
        waits = [asyncio.create_task(process.wait()) for process in left if process.returncode is None]
        if waits:
            await asyncio.wait(waits, timeout=timeout_s + GRACE_S)
        stuck = [process for process in left if process.returncode is None]
        for process in stuck:
            log.warning("a worker does not end; it is killed", extra={"pid": process.pid})
            process.send_signal(signal.SIGKILL)
            await process.wait()
        self._hub.close()
        return not stuck

    def _leave(self) -> None:
        if self._leaving:
            return
        self._leaving = True
        for slot in self._slots:
            if slot.task is not None:
                slot.task.cancel()
            for sock in slot.sockets:
                sock.close()
        if self._reports is not None:
            self._reports.close()
            self._reports = None
            if self._rejoin is not None and not self._succeeded:
                self._rejoin.unlink(missing_ok=True)

    async def _first(self, slot: _Slot) -> None:
        """Start the first process of a slot. Raises LaunchError if it ends instead of serving."""
        await self._begin(slot)
        assert slot.process is not None
        assert slot.member is not None
        ended = asyncio.create_task(slot.process.wait())
        serving = asyncio.create_task(slot.member.serving.wait())
        await asyncio.wait((ended, serving), return_when=asyncio.FIRST_COMPLETED)
        serving.cancel()
        if ended.done():
            raise LaunchError(f"a worker ended at its start with {ended.result()}", reason="not-started")
        ended.cancel()

    async def _begin(self, slot: _Slot) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        ours.setblocking(False)
        fds = [sock.fileno() for sock in slot.sockets]
        words = ["--link", str(theirs.fileno()), "--listen", *map(str, fds)]
        if self._rejoin is not None:
            words += ["--rejoin", os.fspath(self._rejoin)]
        with theirs:
            slot.process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "orchestrator.router.workers",
                *words,
                stdin=asyncio.subprocess.DEVNULL,
                env={**os.environ, OUTLIVES: "1"},
                pass_fds=(theirs.fileno(), *fds),
            )
        slot.member = member = self._hub.joins()
        await asyncio.get_running_loop().create_unix_connection(lambda: member.link, sock=ours)

    async def _keep(self, slot: _Slot) -> None:
        """Replace the process of a slot whenever it has ended."""
        loop, delay_s = asyncio.get_running_loop(), 0.0
        while True:
            assert slot.process is not None
            began_s = loop.time()
            code = await slot.process.wait()
            delay_s = min(QUICK_S, delay_s * 2 + 0.1) if loop.time() - began_s < QUICK_S else 0.0
            self._metrics.worker_ended(_how(code))
            log.error("a worker has ended; it is replaced", extra={"pid": slot.process.pid, "code": code})
            await asyncio.sleep(delay_s)
            await self._begin(slot)


def _how(code: int) -> str:
    """An exit code as a slug."""
    return signal.Signals(-code).name.lower() if code < 0 else f"exit-{code}"


def _bound(host: str, port: int, size: int) -> list[socket.socket]:
    """`size` sockets at one address, among which the kernel spreads connections. Raises OSError.

    Bound once without sharing first: sockets that share an address may be bound beside another router's.
    """
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)
    made: list[socket.socket] = []
    for _ in range(size):
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(address)
        made.append(sock)
        address = (address[0], sock.getsockname()[1], *address[2:])
    log.debug("bound", extra={"address": join_host_port(host, made[0].getsockname()[1]), "sockets": size})
    return made
