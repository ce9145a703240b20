"""All that a router listens on: for clients, for admins, and for the router that will follow it."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from orchestrator.core.address import join_host_port
from orchestrator.errors import LaunchError
from orchestrator.fabric import ports, unix
from orchestrator.router.admin import Admin
from orchestrator.router.app import RouterApp
from orchestrator.router.openfiles import streams_allowed
from orchestrator.router.replies import wire_error
from orchestrator.router.settings import wire_limits
from orchestrator.router.succession import NAME, Heirs, Inheritance, inherit
from orchestrator.router.tls import Secured
from orchestrator.topology.plan import RouterPlan
from orchestrator.wire.server import Handler, OnBad, Server, WireLimits, serve

log = logging.getLogger(__name__)

ADMIN_LIMITS = WireLimits(max_body_bytes=1024 * 1024)


class Front(Protocol):
    """Whatever serves clients: a server of this process, or workers."""

    @property
    def port(self) -> int:
        """The port that it is bound to."""
        ...

    def sockets(self) -> list[int]:
        """The descriptors of the sockets that are listened on."""
        ...

    async def retired(self) -> None:
        """Listen no more, for another process does, and return when no connection is left."""
        ...

    def close(self) -> None:
        """Listen no more."""
        ...

    async def drained(self, timeout_s: float) -> bool:
        """Close, wait for what is under way, cut what remains after `timeout_s`; True if nothing did."""
        ...


class Workers(Front, Protocol):
    """Processes that serve clients; `workers.crew.Crew` is one."""

    async def start(self, inherited: Sequence[socket.socket]) -> None:
        """Listen, on sockets of a router that was followed if there are any. Raises LaunchError, OSError."""
        ...


class Listening:
    """The listeners of one router: `client` and `admin` on TCP, and where there is a state directory the
    admin's Unix socket (`path`) and the one for its successor.

    `follow`: a router that runs there is followed; else it is a reason not to start. Raises TopologyError for
    certificates that cannot be used.
    """

    def __init__(self, router: RouterPlan, path: Path | None, *, follow: bool = False) -> None:
        self.workers: Workers | None = None
        """Who serves clients in this process's place; to be set before `start`."""
        self._router = router
        self._path = path
        self._follow = follow and path is not None
        self._servers: list[Front] = []
        self._heirs: Heirs | None = None
        self._client: Front | None = None
        self._admin: Server | None = None
        self._secured = None if router.tls is None else Secured(router.tls)
        self.handed_over = asyncio.Event()
        """Set when another router has taken the listening sockets."""

    @property
    def client(self) -> Front:
        """Where clients come in; there only after `start`."""
        assert self._client is not None
        return self._client

    @property
    def admin(self) -> Server:
        """Where admins come in over TCP; there only after `start`."""
        assert self._admin is not None
        return self._admin

    @property
    def follows(self) -> bool:
        """Whether there is a router to follow."""
        if not self._follow:
            return False
        assert self._path is not None
        return unix.answers(self._path.with_name(NAME))

    async def start(self, app: RouterApp, admin: Admin) -> None:
        """Listen everywhere. Raises LaunchError when an address is taken or cannot be had."""
        router, path = self._router, self._path
        left = None
        if self._follow and path is not None:
            left = await asyncio.to_thread(inherit, path.with_name(NAME))
        if path is not None and left is None and unix.answers(path):
            raise LaunchError(f"another router serves this state directory: {path}", reason="taken")
        self._admin = await self._tcp(
            "admin", admin.handle, wire_error, router.admin_host, router.admin_port, ADMIN_LIMITS, left
        )
        self._client = await self._for_clients(app, left)
        if path is not None:
            # Last, for a router that does not get so far must not cut off the one that serves.
            self._servers.append(await _unix(path, admin.handle_trusted, replace=left is not None))
            self._heirs = Heirs(path.with_name(NAME), self._sockets, self._taken)
        if left is not None:
            left.taken()
            log.info("took over from the router before")

    async def _for_clients(self, app: RouterApp, left: Inheritance | None) -> Front:
        router = self._router
        if self.workers is not None:
            name = _name("client", router.host, router.port)
            self._servers.append(self.workers)
            try:
                await self.workers.start([] if left is None else left.take(name))
            except OSError as error:
                raise _not_bound("client", router.host, router.port, error) from error
            return self.workers
        limits = wire_limits(router.limits, streams_allowed())
        over = None if self._secured is None else self._secured.context
        return await self._tcp("client", app.handle, app.refuse, router.host, router.port, limits, left, over)

    def renew(self) -> None:
        """Take up what the certificate files hold now. Raises TopologyError; the ones in use stay then."""
        if self._secured is not None:
            self._secured.load()

    async def close(self, timeout_s: float = 0.0) -> None:
        """Stop listening, let what is answered end within `timeout_s`, and cut the rest."""
        for server in self._servers:
            await server.drained(timeout_s)
        ours = not self.handed_over.is_set()
        if self._heirs is not None:
            self._heirs.close(remove=ours)
            self._heirs = None
        if self._path is not None and self._servers and ours:
            self._path.unlink(missing_ok=True)

    def _taken(self) -> None:
        for server in self._servers:
            if server is not self._client:
                server.close()
        self.handed_over.set()

    def _sockets(self) -> dict[str, list[int]]:
        router = self._router
        return {
            _name("client", router.host, router.port): self.client.sockets(),
            _name("admin", router.admin_host, router.admin_port): self.admin.sockets(),
        }

    async def _tcp(
        self,
        what: str,
        handler: Handler,
        on_bad: OnBad,
        host: str,
        port: int,
        limits: WireLimits,
        left: Inheritance | None,
        over: ssl.SSLContext | None = None,
    ) -> Server:
        inherited: list[socket.socket] = [] if left is None else left.take(_name(what, host, port))
        try:
            if inherited:
                server = await serve(handler, sock=inherited[0], limits=limits, on_bad=on_bad, tls=over)
                for sock in inherited[1:]:
                    await server.also(sock)
            else:
                server = await serve(handler, host=host, port=port, limits=limits, on_bad=on_bad, tls=over)
        except OSError as error:
            raise _not_bound(what, host, port, error) from error
        self._servers.append(server)
        return server


async def _unix(path: Path, handler: Handler, *, replace: bool) -> Server:
    try:
        sock = unix.bind(path, replace=replace)
    except FileExistsError as error:
        raise LaunchError(f"another router serves this state directory: {path}", reason="taken") from error
    except OSError as error:
        raise LaunchError(f"cannot make the socket {path}: {error.strerror}", reason="socket") from error
    return await serve(handler, sock=sock, limits=ADMIN_LIMITS, on_bad=wire_error)


def _name(what: str, host: str, port: int) -> str:
    return f"{what} {join_host_port(host, port)}"


def _not_bound(what: str, host: str, port: int, error: OSError) -> LaunchError:
    where = join_host_port(host, port)
    holder = ports.holder(port)
    if holder is not None:
        return LaunchError(f"the {what} address {where} is taken by {holder}", reason="port-taken")
    return LaunchError(f"cannot listen on the {what} address {where}: {error.strerror}", reason="not-bound")
