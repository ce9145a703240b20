"""Simulated engines under load while parts of the deployment are killed, stopped, slowed and replaced."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any

import httpx
from chaos_load import MODEL, Books, Fate, ask, load, make

from orchestrator.launch import report
from orchestrator.launch.paths import StateDir, controller_pid

PDCTL = Path(sys.executable).with_name("pdctl")
SPEED = 20
"""The engines live that many times as fast."""
ENGINES = ("prefill-0", "prefill-1", "decode-0", "decode-1")
FLEETS: dict[str, dict[str, Any]] = {
    "sglang": {"options": {"dialect": "sglang"}},
    "nixl": {"options": {"dialect": "vllm", "lease-s": 60}, "transfer": "nixl"},
    "mooncake": {
        "options": {"dialect": "vllm", "lease-s": 60},
        "transfer": "mooncake",
        "env": {"VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT": "60"},
    },
}
TIMEOUTS = {
    **dict.fromkeys(("prefill", "first_token", "inter_token", "stall"), "4s"),
    "connect": "1s",
    "queue": "8s",
    "total": "30s",
    "hang": "2s",
}
RARE = 6
"""One fault in so many is to the controller or the router."""
EVERY_S = 1.0
"""Between two faults, on average."""
REST_S = 90.0
"""How long it may take until nothing is under way any more; leases and aborts have run out long before."""
PORTS = 60


class Deployment:
    """The deployment of one run, by the commands that a person would use."""

    def __init__(self, folder: Path, fleet: str) -> None:
        first = _free_ports()
        self.folder = folder
        self.file = folder / "topology.yaml"
        self.state = StateDir(folder / "state")
        self.url, self.admin = (f"http://127.0.0.1:{first + n}" for n in range(2))
        pool = {"engine": "sim", "instances": 2, "max_restarts": 1000, **FLEETS[fleet]}
        pool["options"] = {**pool["options"], "speed": SPEED}
        topology = {
            "name": "chaos",
            "model": {"path": "Qwen/Qwen3-32B", "served_name": MODEL},
            "state_dir": "./state",
            "nodes": [{"name": "local", "ports": f"{first + 2}-{first + PORTS - 1}"}],
            "pools": {role: {"role": role, **pool} for role in ("prefill", "decode")},
            "router": {"listen": f"127.0.0.1:{first}", "timeouts": TIMEOUTS, "max_restarts": 1000},
        }
        self.file.write_text(json.dumps(topology, indent=1))
        self.client = httpx.AsyncClient(trust_env=False, timeout=5.0)

    async def pdctl(self, *words: str) -> tuple[int, str]:
        """Run a command to its end; its exit code and what it said."""
        process = await asyncio.create_subprocess_exec(
            PDCTL,
            words[0],
            self.file,
            *words[1:],
            cwd=self.folder,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        _, said = await process.communicate()
        return process.returncode or 0, said.decode()

    async def pid(self, name: str) -> int | None:
        """The process of an instance, if it has one."""
        found = await report.status(self.state)
        return next((i.pid for i in found.instances if i.name == name), None)

    def engines(self) -> dict[str, str]:
        """The URL of each engine."""
        plan = json.loads(self.state.plan.read_text())
        return {one["name"]: one["url"] for one in plan["instances"]}

    async def fault(self, name: str, **rule: Any) -> None:
        """Put a fault in force at an engine, if it answers."""
        with suppress(httpx.HTTPError):
            await self.client.post(f"{self.engines()[name]}/sim/faults", json=[rule])

    async def unrest(self) -> dict[str, Any]:
        """What still runs or is still held, by whom; what cannot be asked counts too."""
        found: dict[str, Any] = {}
        for name, url in self.engines().items():
            try:
                state = (await self.client.get(f"{url}/sim/state")).json()
            except httpx.HTTPError as error:
                found[name] = repr(error)
                continue
            held = {
                k: v for k, v in state["load"].items() if v and k not in ("cached_tokens", "total_tokens")
            }
            held |= {k: state[k] for k in ("calls", "generations", "rooms") if state.get(k)}
            if held:
                found[name] = held
        with suppress(httpx.HTTPError):
            for line in (await self.client.get(f"{self.admin}/metrics")).text.splitlines():
                series, _, value = line.rpartition(" ")
                if series.startswith(("pdctl_inflight_requests", "pdctl_endpoint_inflight_")) and float(
                    value
                ):
                    found[series] = float(value)
            return found
        return {**found, "router": "does not answer"}


class Chaos:
    """What is done to a deployment, drawn from a seed."""

    def __init__(self, made: Deployment, rng: Random, books: Books, say: Callable[[str], None]) -> None:
        self._made = made
        self._rng = rng
        self._books = books
        self._say = say
        self._tasks: set[asyncio.Task[None]] = set()
        self.done = 0
        """Faults so far."""

    async def run(self, over: asyncio.Event) -> None:
        """Do one thing after the other until `over`, and put right what it stopped."""
        deeds = [*[self._kill] * 5, *[self._stop] * 3, *[self._sick] * 6]
        rare = [self._kill_controller, self._kill_router, self._replace_router]
        todo = list(rare)
        self._rng.shuffle(todo)
        while not over.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), self._rng.expovariate(1 / EVERY_S))
                break
            self.done += 1
            if self.done % RARE == 2:
                todo = todo or self._rng.sample(rare, len(rare))
                deed = todo.pop()
            else:
                deed = self._rng.choice(deeds)
            # Beside the next ones: some take seconds.
            task = asyncio.create_task(deed())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        await asyncio.gather(*self._tasks)

    async def _kill(self) -> None:
        name = self._rng.choice(ENGINES)
        self._say(f"kill -9 {name}")
        _send(await self._made.pid(name), signal.SIGKILL)

    async def _stop(self) -> None:
        name, for_s = self._rng.choice(ENGINES), self._rng.uniform(0.3, 6.0)
        pid = await self._made.pid(name)
        self._say(f"stop {name} for {for_s:.1f} s")
        _send(pid, signal.SIGSTOP)
        await asyncio.sleep(for_s)
        _send(pid, signal.SIGCONT)

    async def _sick(self) -> None:
        name, for_s = self._rng.choice(ENGINES), self._rng.uniform(0.3, 4.0) * SPEED
        rule: dict[str, Any] = self._rng.choice(
            (
                {"kind": "slow", "factor": 50.0},
                {"kind": "close", "after_tokens": self._rng.randrange(8), "rate": 0.5},
                {"kind": "error", "status": self._rng.choice((500, 503)), "rate": 0.5},
                {"kind": "hang", "rate": 0.5},
                {"kind": "truncate", "after_tokens": 3, "rate": 0.5},
                {"kind": "refuse"},
                {"kind": "freeze"},
            )
        )
        self._say(f"{rule} at {name} for {for_s / SPEED:.1f} s")
        await self._made.fault(name, **rule, for_s=for_s)

    async def _kill_controller(self) -> None:
        self._say("kill -9 controller")
        _send(controller_pid(self._made.state), signal.SIGKILL)
        await asyncio.sleep(self._rng.uniform(0.0, 2.0))
        await self._made.pdctl("up", "--detach", "--timeout", "1s")

    async def _kill_router(self) -> None:
        pid = await self._made.pid("router")
        self._say("kill -9 router")
        down_s = time.monotonic()
        self._books.kills.append((down_s, float("inf")))
        place = len(self._books.kills) - 1
        _send(pid, signal.SIGKILL)
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
        self._say("pdctl restart router")
        await self._made.pdctl("restart", "router")


async def run(made: Deployment, seed: int, requests: int, rate: float, say: Callable[[str], None]) -> int:
    """One run; how many things went wrong that may not."""
    rng, books = Random(seed), Books()
    code, said = await made.pdctl("up", "--detach")
    if code:
        raise SystemExit(said)
    over = asyncio.Event()
    chaos = Chaos(made, Random(seed + 1), books, say)
    doing = asyncio.create_task(chaos.run(over))
    asks = [make(rng) for _ in range(requests)]
    await load(made.url, asks, rate, rng, books)
    over.set()
    await doing
    for name in ENGINES:
        _send(await made.pid(name), signal.SIGCONT)
        with suppress(httpx.HTTPError):
            await made.client.delete(f"{made.engines()[name]}/sim/faults")
    code, said = await made.pdctl("up", "--detach", "--timeout", "90s")
    left = await _rest(made)
    after = Books()
    for _ in range(8):
        await ask(made.client, _to(made.url, rng), after)
    served = after.fates[Fate.COMPLETED] + after.fates[Fate.LEFT]
    for fate in Fate:
        if books.fates[fate]:
            print(f"{books.fates[fate]:6} {fate}")
    print(f"{chaos.done:6} faults; refused and broken by: {dict(books.reasons.most_common(8))}")
    for remark in [*books.remarks, *after.remarks]:
        print(f"! {remark}")
    wrong = [
        f"{sum(books.fates.values())} of {requests} requests have a fate" * (books.fates.total() != requests),
        f"the deployment did not come back: {said}" * bool(code),
        f"not at rest: {left}" * bool(left),
        f"afterwards only {served} of 8 were served" * (served != 8),
    ]
    for line in filter(None, wrong):
        print(f"! {line}")
    return books.failures + sum(map(bool, wrong))


def _to(url: str, rng: Random) -> Any:
    one = make(rng)
    return type(one)(url + one.path, one.body, one.expected)


async def _rest(made: Deployment) -> dict[str, Any]:
    give_up_s = time.monotonic() + REST_S
    while (left := await made.unrest()) and time.monotonic() < give_up_s:  # noqa: ASYNC110
        await asyncio.sleep(0.2)
    return left


def _send(pid: int | None, number: signal.Signals) -> None:
    if pid:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _free_ports() -> int:
    while True:
        first = random.randrange(10_000, 32_000 - PORTS)
        try:
            for port in range(first, first + PORTS):
                socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return first


async def _one(given: argparse.Namespace, fleet: str) -> int:
    folder = Path(tempfile.mkdtemp(prefix="pdctl-chaos-"))
    made = Deployment(folder, fleet)

    def say(text: str) -> None:
        if given.verbose:
            print(f"{datetime.now():%H:%M:%S.%f} {text}", flush=True)

    wrong = 1
    try:
        wrong = await run(made, given.seed, given.requests, given.rate, say)
    finally:
        await made.pdctl("down", "--force")
        await made.client.aclose()
        if wrong:
            print(f"! logs are in {made.state.logs}")
        else:
            shutil.rmtree(folder)
    return wrong


def main(arguments: Sequence[str] | None = None) -> int:
    """Run once; 1 if anything happened that may not."""
    parser = argparse.ArgumentParser(prog="scripts/chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the requests and of what is done to whom")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=25.0, help="requests per second, on average")
    parser.add_argument("--fleet", choices=FLEETS, help="hand-off (default: one after the other, by seed)")
    parser.add_argument("--verbose", action="store_true", help="tell of every fault")
    given = parser.parse_args(arguments)
    fleet = given.fleet or tuple(FLEETS)[given.seed % len(FLEETS)]
    print(f"seed {given.seed}, {given.requests} requests, {fleet}", flush=True)
    wrong = asyncio.run(_one(given, fleet))
    print("FAILED" if wrong else "ok")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
