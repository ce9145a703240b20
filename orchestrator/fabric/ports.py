"""Who holds a TCP port on this host, so that a refusal can name the process to look at."""

from __future__ import annotations

import errno
import ipaddress
import socket
from dataclasses import dataclass

import psutil

from orchestrator.core.address import is_wildcard

COMMAND_SHOWN = 120
"""Characters of a holder's command line that are shown."""


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that listens on a port. `pid` and the rest are empty when it belongs to someone else."""

    port: int
    pid: int | None = None
    name: str = ""
    command: str = ""

    def __str__(self) -> str:
        if self.pid is None:
            return "a process that this user may not look at"
        return f"pid {self.pid} ({self.command or self.name})"


def holder(port: int) -> Holder | None:
    """Who listens on `port` on any address of this host; None if nobody does."""
    for connection in psutil.net_connections(kind="tcp"):
        if connection.status != psutil.CONN_LISTEN or not connection.laddr:
            continue
        if connection.laddr.port != port:
            continue
        return _holder(port, connection.pid)
    return None


def holders(host: str, port: int) -> list[Holder]:
    """Who listens on `port` at `host`, or on every address: more than one where they share the port."""
    found = []
    for connection in psutil.net_connections(kind="tcp"):
        if connection.status != psutil.CONN_LISTEN or not connection.laddr or connection.laddr.port != port:
            continue
        if connection.laddr.ip == host or is_wildcard(connection.laddr.ip) or not _is_literal(host):
            found.append(_holder(port, connection.pid))
    return found


def _is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _holder(port: int, pid: int | None) -> Holder:
    if pid is None:
        return Holder(port)
    try:
        process = psutil.Process(pid)
        command = " ".join(process.cmdline())
        if len(command) > COMMAND_SHOWN:
            command = command[:COMMAND_SHOWN] + "..."
        return Holder(port, pid, process.name(), command)
    except psutil.Error:
        return Holder(port)


def listening(first: int, last: int) -> list[Holder]:
    """Who listens on which port from `first` to `last` on any address of this host, one each, in order."""
    found: dict[int, Holder] = {}
    for connection in psutil.net_connections(kind="tcp"):
        if connection.status != psutil.CONN_LISTEN or not connection.laddr:
            continue
        port = connection.laddr.port
        if first <= port <= last and (port not in found or found[port].pid is None):
            found[port] = _holder(port, connection.pid)
    return [found[port] for port in sorted(found)]


def taken(host: str, port: int) -> bool:
    """True when nothing else can listen on `host`:`port` now.

    Found by binding, so it sees what `holder` cannot (another user's, another namespace's). Raises
    OSError when the address itself is unusable (not one of this host's).
    """
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, _, _, address = found[0]
    with socket.socket(family, kind) as probe:
        # As every server here does: a port in TIME_WAIT is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return True
            raise
    return False
