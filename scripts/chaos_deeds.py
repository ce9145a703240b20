"""What a chaos run does to a deployment: kills, stops, faults, garbage, and a person's own changes."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random
from typing import Any, Protocol

import httpx
from chaos_load import Books

from orchestrator.launch.paths import StateDir, controller_pid

SPEED = 20
"""The engines live that many times as fast."""
ENGINES = ("prefill-0", "prefill-1", "decode-0", "decode-1")
RARE = 3
"""One deed in so many is not to an engine alone."""
EVERY_S = 1.0
"""Between two deeds, on average."""
PATIENCE_S = 10.0
"""How long is waited for what another deed may keep from happening."""

Deed = Callable[[], Awaitable[None]]


class Deployment(Protocol):
    """What is done to; `chaos.Deployment` is one."""

    fleet: str
    state: StateDir
    url: str
    client: httpx.AsyncClient

    async def pdctl(self, *words: str) -> tuple[int, str]:
        """Run a command to its end."""
        ...

    async def pid(self, name: str) -> int | None:
        """The process of an instance."""
        ...

    async def fault(self, name: str, **rule: Any) -> None:
        """Put a fault in force at an engine."""
        ...

    async def faults(self, name: str) -> list[dict[str, Any]]:
        """The faults in force at an engine."""
        ...

    def spoil(self, prefill: str | None) -> None:
        """Whom decode engines that start from now on get garbage from."""
        ...

    def change(self, pool: str, **options: Any) -> None:
        """Change the topology."""
        ...


def send(pid: int | None, number: signal.Signals) -> None:
    """Send a signal, if there is a process to take it."""
    if pid:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


class Chaos:
    """What is done to a deployment, drawn from a seed."""

    def __init__(self, made: Deployment, rng: Random, books: Books, say: Callable[[str], None]) -> None:
        self._made = made
        self._rng = rng
        self._books = books
        self._say = say
        self._tasks: set[asyncio.Task[None]] = set()
        self._one_garbage = asyncio.Lock()
        self.deeds: Counter[str] = Counter()
        """What was done so far, and how often."""

    async def run(self, over: asyncio.Event) -> None:
        """Do one thing after the other until `over`, and put right what it stopped."""
        common: list[tuple[str, Deed]] = [*[("kill", self._kill)] * 5, *[("stop", self._stop)] * 3]
        common += [("fault", self._sick)] * 6
        rare: list[tuple[str, Deed]] = [
            ("kill controller", self._kill_controller),
            ("kill router", self._kill_router),
            ("replace router", self._replace_router),
            ("garbage", self._garbage),
            ("drain", self._drain),
            ("rollout", self._rollout),
            ("rollout, controller killed", self._interrupted_rollout),
            ("garbage", self._garbage),
        ]
        if self._made.fleet == "sglang":
            rare += [("switch", self._switch), ("switch, controller killed", self._interrupted_switch)]
        todo: list[tuple[str, Deed]] = []
        for number in range(1_000_000):
            with suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), self._rng.expovariate(1 / EVERY_S))
                break
            if number % RARE == 2:
                todo = todo or self._rng.sample(rare, len(rare))
                name, deed = todo.pop()
            else:
                name, deed = self._rng.choice(common)
            self.deeds[name] += 1
            # Beside the next ones: some take seconds.
            task = asyncio.ensure_future(deed())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        await asyncio.gather(*self._tasks)

    async def _kill(self) -> None:
        name = self._rng.choice(ENGINES)
        self._say(f"kill -9 {name}")
        send(await self._made.pid(name), signal.SIGKILL)

    async def _stop(self) -> None:
        name, for_s = self._rng.choice(ENGINES), self._rng.uniform(0.3, 6.0)
        pid = await self._made.pid(name)
        self._say(f"stop {name} for {for_s:.1f} s")
        send(pid, signal.SIGSTOP)
        await asyncio.sleep(for_s)
        send(pid, signal.SIGCONT)

    async def _sick(self) -> None:
        name, for_s = self._rng.choice(ENGINES), self._rng.uniform(0.3, 4.0) * SPEED
        rule: dict[str, Any] = self._rng.choice(
            (
                {"kind": "slow", "factor": 50.0},
                {"kind": "slow-link", "factor": 500.0},
                {"kind": "close", "after_tokens": self._rng.randrange(8), "rate": 0.5},
                {"kind": "error", "status": self._rng.choice((500, 503)), "rate": 0.5},
                {"kind": "hang", "rate": 0.5},
                {"kind": "no-kv", "rate": 0.5},
                {"kind": "truncate", "after_tokens": 3, "rate": 0.5},
                {"kind": "refuse"},
                {"kind": "freeze"},
            )
        )
        self._say(f"{rule} at {name} for {for_s / SPEED:.1f} s")
        await self._made.fault(name, **rule, for_s=for_s)

    async def _garbage(self) -> None:
        """A decode engine that comes back gets garbage from one prefill engine, as by wrong NIC settings."""
        async with self._one_garbage:
            prefill, decode = self._rng.choice(ENGINES[:2]), self._rng.choice(ENGINES[2:])
            self._say(f"kill -9 {decode}, which gets garbage from {prefill} then")
            self._made.spoil(prefill)
            await self._replaced(decode)
            await self._spoilt(decode, PATIENCE_S)
            # One pair alone: of two that give the same wrong answer, nobody could tell who is right.
            self._made.spoil(None)
            await asyncio.sleep(self._rng.uniform(2.0, 5.0))
            for name in ENGINES[2:]:
                if await self._spoilt(name, 0.0):
                    self._say(f"kill -9 {name}, which is well then")
                    await self._replaced(name)

    async def _spoilt(self, name: str, wait_s: float) -> bool:
        """Whether an engine gets garbage, at the latest after `wait_s`."""
        give_up_s = time.monotonic() + wait_s
        while not (found := any(rule["kind"] == "garbage" for rule in await self._made.faults(name))):
            if time.monotonic() >= give_up_s:
                break
            await asyncio.sleep(0.1)
        return found

    async def _replaced(self, name: str) -> None:
        """Kill an engine, and wait a while until another process is in its place."""
        pid = await self._made.pid(name)
        send(pid, signal.SIGKILL)
        give_up_s = time.monotonic() + PATIENCE_S
        while await self._made.pid(name) in (pid, None) and time.monotonic() < give_up_s:  # noqa: ASYNC110
            await asyncio.sleep(0.1)

    async def _kill_controller(self) -> None:
        self._say("kill -9 controller")
        send(controller_pid(self._made.state), signal.SIGKILL)
        await asyncio.sleep(self._rng.uniform(0.0, 2.0))
        await self._made.pdctl("up", "--detach", "--timeout", "1s")

    async def _kill_router(self) -> None:
        pid = await self._made.pid("router")
        self._say("kill -9 router")
        down_s = time.monotonic()
        self._books.kills.append((down_s, float("inf")))
        place = len(self._books.kills) - 1
        send(pid, signal.SIGKILL)
        while await self._made.pid("router") in (pid, None) or not await self._answers():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        self._books.kills[place] = (down_s, time.monotonic())
        self._say(f"a router answers again after {time.monotonic() - down_s:.1f} s")

    async def _answers(self) -> bool:
        # On a connection of its own: one that is kept may lead to a router that has handed over.
        with suppress(httpx.HTTPError):
            async with httpx.AsyncClient(trust_env=False, timeout=5.0) as client:
                return (await client.get(f"{self._made.url}/health")).status_code == 200
        return False

    async def _replace_router(self) -> None:
        await self._does("restart", "router")

    async def _drain(self) -> None:
        name = self._rng.choice(ENGINES)
        await self._does("drain", name, "--timeout", "3s")
        await asyncio.sleep(self._rng.uniform(0.0, 2.0))
        # The router may just have been killed.
        while (await self._does("drain", name, "--undo"))[0]:  # noqa: ASYNC110
            await asyncio.sleep(0.5)

    async def _rollout(self) -> None:
        pool = self._rng.choice(("prefill", "decode"))
        self._made.change(pool, seed=self._rng.getrandbits(16))
        await self._does("rollout", pool, "--watch", "0s", "--timeout", "10s")

    async def _switch(self) -> None:
        name = self._rng.choice(ENGINES)
        one, other = ("prefill", "decode") if name.startswith("prefill") else ("decode", "prefill")
        await self._does("switch", name, "--to", other, "--timeout", "10s")
        await asyncio.sleep(self._rng.uniform(0.0, 3.0))
        await self._does("switch", name, "--to", one, "--timeout", "10s")

    async def _interrupted_rollout(self) -> None:
        await self._interrupted(self._rollout)

    async def _interrupted_switch(self) -> None:
        await self._interrupted(self._switch)

    async def _interrupted(self, deed: Deed) -> None:
        """The controller is killed while it is at it."""
        doing = asyncio.ensure_future(deed())
        await asyncio.sleep(self._rng.uniform(0.5, 2.5))
        await self._kill_controller()
        await doing

    async def _does(self, *words: str) -> tuple[int, str]:
        """What a person does, and may well be refused."""
        self._say(f"pdctl {' '.join(words)}")
        code, said = await self._made.pdctl(*words)
        if code:
            self._say(f"pdctl {' '.join(words)}: {code}, {said.strip().splitlines()[-1:]}")
        return code, said
