"""The pool of keep-alive connections to engines."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, cast

from orchestrator.core.frozen import record
from orchestrator.wire.connection import (
    AnswerHead,
    BadAnswer,
    ConnectError,
    Connection,
    Dropped,
    Progress,
    Sink,
    WireError,
    request_head,
)
from orchestrator.wire.heads import Heads

__all__ = [
    "BadAnswer",
    "ConnectError",
    "Connection",
    "Dropped",
    "Pool",
    "PoolStats",
    "Progress",
    "Sink",
    "WireError",
    "request_head",
]


LAST_LOOKS = 2
"""Turns of the loop that a connect is given when its time is over: a busy loop runs its timers late, and
before it looks at its sockets."""


@record(slots=True)
class PoolStats:
    """Counts of a pool's connections: open now, idle now, and made, reused and failed since the start."""

    open: int = 0
    idle: int = 0
    made: int = 0
    reused: int = 0
    failed: int = 0


class Pool:
    """Keep-alive connections by (host, port); the one used last is reused first, so that spares expire.

    `connect_timeout_s` bounds a connect. `max_idle` is how many idle connections are kept per address.
    """

    def __init__(self, *, connect_timeout_s: float = 2.0, max_idle: int = 1024) -> None:
        self.loop = asyncio.get_running_loop()
        self.stats = PoolStats()
        self.heads: Heads[AnswerHead] = Heads()
        self._connect_timeout_s = connect_timeout_s
        self._max_idle = max_idle
        self._open: set[Connection] = set()
        self._idle: dict[tuple[str, int], dict[Connection, None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._shut = False

    def take(self, host: str, port: int) -> Connection | None:
        """An idle connection that is fit for reuse, or None: then `acquire` makes one."""
        idle = self._idle.get((host, port))
        now_s = self.loop.time()
        while idle:
            connection, _ = idle.popitem()
            self.stats.idle -= 1
            if connection.stale(now_s):
                connection.abort()
                continue
            connection.reused = True
            self.stats.reused += 1
            return connection
        return None

    async def acquire(self, host: str, port: int, idle_s: float) -> Connection:
        """A connection to `host` (a name or an address, IPv6 with or without brackets).

        It may lie idle for `idle_s` after each use. Raises ConnectError.
        """
        connection = self.take(host, port)
        if connection is not None:
            return connection
        where = f"{host}:{port}"
        if self._shut:
            raise ConnectError(f"no connection to {where}: the pool is closed")
        made = Connection(self, (host, port), idle_s)
        factory = partial(cast, asyncio.Protocol, made)
        connecting = self.loop.create_task(self.loop.create_connection(factory, host.strip("[]"), port))
        try:
            await asyncio.wait((connecting,), timeout=self._connect_timeout_s)
            for _ in range(LAST_LOOKS):
                if not connecting.done():
                    await asyncio.sleep(0)
        except asyncio.CancelledError:
            self._give_up(connecting, made)
            raise
        if not connecting.done():
            self._give_up(connecting, made)
            self.stats.failed += 1
            raise ConnectError(f"no connection to {where} within {self._connect_timeout_s:g} s")
        error = connecting.exception()
        if error is not None:
            self.stats.failed += 1
            reason = error.strerror if isinstance(error, OSError) else None
            failed = ConnectError(f"no connection to {where}: {reason or error}")
            failed.__cause__ = error  # `raise … from` loses it in a compiled coroutine
            raise failed
        self.stats.made += 1
        return made

    def _give_up(self, connecting: asyncio.Task[Any], made: Connection) -> None:
        """Nobody is left to have the connection, even if it is made in this very moment.

        uvloop closes one whose making is cancelled without telling its protocol.
        """
        if not connecting.cancel() and not connecting.cancelled():
            connecting.exception()
        made.close()
        self.lost(made)

    def close(self) -> None:
        """Close every connection; calls under way fail."""
        self._shut = True
        if self._timer is not None:
            self._timer.cancel()
        for connection in tuple(self._open):
            connection.close()

    # -- what the connections call

    def opened(self, connection: Connection) -> None:
        """A connection was made."""
        self._open.add(connection)
        self.stats.open += 1

    def lost(self, connection: Connection) -> None:
        """A connection is gone."""
        if connection not in self._open:
            return
        self._open.remove(connection)
        self.stats.open -= 1
        idle = self._idle.get(connection.key)
        if idle is not None and connection in idle:
            del idle[connection]
            self.stats.idle -= 1

    def cut(self, key: tuple[str, int]) -> None:
        """A connection to there is gone in the middle of a call.

        A process that dies closes one after the other: a call on an idle one would be lost too, where a new
        one is refused before anything is sent.
        """
        for connection in self._idle.pop(key, ()):
            self.stats.idle -= 1
            connection.abort()

    def release(self, connection: Connection) -> None:
        """A connection's call is over and it may be used again."""
        idle = self._idle.get(connection.key)
        if idle is None:
            idle = self._idle[connection.key] = {}
        if self._shut or len(idle) >= self._max_idle:
            connection.abort()
            return
        idle[connection] = None
        self.stats.idle += 1
        if self._timer is None:
            self._timer = self.loop.call_later(1.0, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now_s = self.loop.time()
        for key, idle in tuple(self._idle.items()):
            for connection in [c for c in idle if now_s >= c.expires_s]:
                del idle[connection]
                self.stats.idle -= 1
                connection.abort()
            if not idle:
                del self._idle[key]
        if self._idle and not self._shut:
            self._timer = self.loop.call_later(1.0, self._expire)
