"""What the parts of one simulated instance share: options, clocks, dice, the engine, background tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

from orchestrator.clock import Clock
from orchestrator.sim.engine import Die, Engine
from orchestrator.sim.faults import Faults
from orchestrator.sim.options import SimOptions
from orchestrator.sim.stats import EngineStats
from orchestrator.sim.timing import Link
from orchestrator.sim.vclock import VirtualClock
from orchestrator.wire.exchange import Exchange, Headers

JSON = ((b"content-type", b"application/json"),)


class Host:
    """The shared parts of one instance. `port` is the API port once it is bound; `draining` after TERM."""

    def __init__(
        self, options: SimOptions, clock: Clock, rng: Random, die: Die, link: Link, stats: EngineStats
    ) -> None:
        self.options = options
        self.wall = clock
        self.clock = VirtualClock(clock, options.speed)
        self.rng = rng
        self.faults = Faults(Random(rng.random()))
        self.die = die
        self.stats = stats
        self.engine = Engine(options, link, self.clock, self.faults, stats, die)
        self.port = options.port
        self.started_s = clock.wall_s()
        self.leave: Callable[[], None] = lambda: None
        """Ends the process in good order."""
        self.loaded = False
        self.draining = False
        self.calls = 0
        """API calls being answered."""
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something in the background; a failure of it is a bug, and ends the process."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.die(f"background task failed: {task.exception()!r}")

    def later(self, virtual_s: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        """Call something after some virtual time (which does not stand still with the engine)."""
        return self.after(self.clock.real_s(virtual_s), call)

    def after(self, real_s: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        """Call something after some real time, whatever the speed."""
        return self._loop.call_later(real_s, call)

    async def sleep(self, virtual_s: float) -> None:
        """Wait some virtual time."""
        await asyncio.sleep(self.clock.real_s(virtual_s))

    def hexid(self, digits: int = 32) -> str:
        """A random id of that many hexadecimal digits."""
        return f"{self.rng.getrandbits(4 * digits):0{digits}x}"

    def created(self) -> int:
        """Seconds since the epoch, for the `created` of an answer."""
        return int(self.wall.wall_s())


def answer(exchange: Exchange, status: int, body: bytes = b"", headers: Headers = JSON) -> None:
    """Respond, unless the client was given an answer already."""
    if not exchange.started:
        exchange.respond(status, body, headers)
