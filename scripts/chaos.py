"""Simulated engines under load while parts of the deployment are killed, stopped, slowed and replaced."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any

import httpx
from chaos_deeds import ENGINES, SPEED, Chaos, send
from chaos_load import MODEL, Books, Fate, ask, load, make

from orchestrator.errors import LaunchError
from orchestrator.launch import report
from orchestrator.launch.paths import StateDir

PDCTL = Path(sys.executable).with_name("pdctl")
FLEETS: dict[str, dict[str, Any]] = {
    "sglang": {"options": {"dialect": "sglang", "enable-pd-role-switch": True}},
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
REST_S = 90.0
"""How long it may take until nothing is under way any more; leases and aborts have run out long before."""
PORTS = 60
MOST_REMARKS = 20


class Deployment:
    """The deployment of one run, by the commands that a person would use."""

    def __init__(
        self, folder: Path, fleet: str, *, continuation: bool, timeouts: Mapping[str, str] = TIMEOUTS
    ) -> None:
        first = _free_ports()
        self.folder = folder
        self.fleet = fleet
        self.continuation = continuation
        self.script = folder / "faults.json"
        self.spoil(None)
        self.file = folder / "topology.yaml"
        self.state = StateDir(folder / "state")
        self.url, self.admin = (f"http://127.0.0.1:{first + n}" for n in range(2))
        pool = {"engine": "sim", "instances": 2, "max_restarts": 1000, **FLEETS[fleet]}
        pool["options"] = {**pool["options"], "speed": SPEED}
        pools = {role: {"role": role, **pool} for role in ("prefill", "decode")}
        pools["decode"]["options"] = {**pool["options"], "faults": str(self.script)}
        self.topology = {
            "name": "chaos",
            "model": {"path": "Qwen/Qwen3-32B", "served_name": MODEL},
            "state_dir": "./state",
            "nodes": [{"name": "local", "ports": f"{first + 2}-{first + PORTS - 1}"}],
            "pools": pools,
            "scheduling": {"decisions": {"record": "full"}},
            "router": {
                "listen": f"127.0.0.1:{first}",
                "timeouts": dict(timeouts),
                "max_restarts": 1000,
                "continuation": continuation,
            },
        }
        self.write()
        self.client = httpx.AsyncClient(trust_env=False, timeout=5.0)

    def write(self) -> None:
        """Write the topology to its file."""
        self.file.write_text(json.dumps(self.topology, indent=1))

    def change(self, pool: str, **options: Any) -> None:
        """Give the engines of a pool other options, in the topology."""
        made: Any = self.topology["pools"]
        made[pool]["options"] = {**made[pool]["options"], **options}
        self.write()

    def spoil(self, prefill: str | None) -> None:
        """Decode engines that start from now on get garbage from this prefill engine; None: from nobody."""
        rules = []
        if prefill is not None:
            ports = next(i["ports"] for i in self.plan() if i["name"] == prefill)
            port = ports.get("bootstrap") or ports["side-channel"]
            rules = [{"kind": "garbage", "peer": f"127.0.0.1:{port}"}]
        self.script.write_text(json.dumps(rules))

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
        try:
            found = await report.status(self.state)
        except LaunchError:
            # The controller has no time to answer, or has just been killed.
            return None
        return next((i.pid for i in found.instances if i.name == name), None)

    def engines(self) -> dict[str, str]:
        """The URL of each engine."""
        return {one["name"]: one["url"] for one in self.plan()}

    def plan(self) -> list[dict[str, Any]]:
        """The instances as they are planned."""
        return list(json.loads(self.state.plan.read_text())["instances"])

    async def faults(self, name: str) -> list[dict[str, Any]]:
        """The rules in force at an engine; none if it does not answer."""
        with suppress(httpx.HTTPError):
            return list((await self.client.get(f"{self.engines()[name]}/sim/faults")).json()["rules"])
        return []

    async def heal(self, name: str) -> None:
        """End every fault of an engine; one that refuses connections does so for a while only."""
        give_up_s = time.monotonic() + REST_S
        while time.monotonic() < give_up_s:
            with suppress(httpx.HTTPError):
                await self.client.delete(f"{self.engines()[name]}/sim/faults")
                return
            await asyncio.sleep(0.2)

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


@dataclass
class Result:
    """What came of one run."""

    seed: int
    fleet: str
    books: Books
    deeds: Counter[str]
    wrong: list[str]
    seconds: float = 0.0

    @property
    def failures(self) -> int:
        """What went wrong that may not."""
        return self.books.failures + len(self.wrong)


async def run(made: Deployment, given: argparse.Namespace, seed: int, say: Callable[[str], None]) -> Result:
    """One run."""
    rng, books, requests = Random(seed), Books(continuation=made.continuation), given.requests
    code, said = await made.pdctl("up", "--detach")
    if code:
        raise SystemExit(said)
    over = asyncio.Event()
    chaos = Chaos(made, Random(seed + 1), books, say)
    doing = asyncio.create_task(chaos.run(over))
    asks = [make(rng) for _ in range(requests)]
    await load(made.url, asks, given.rate, rng, books)
    over.set()
    await doing
    made.spoil(None)
    for name in ENGINES:
        send(await made.pid(name), signal.SIGCONT)
    code, said = await made.pdctl("up", "--detach", "--timeout", "90s")
    await asyncio.gather(*(made.heal(name) for name in ENGINES))
    left = await _rest(made)
    after = Books()
    for _ in range(8):
        await ask(made.client, _to(made.url, rng), after)
    served = after.fates[Fate.COMPLETED] + after.fates[Fate.LEFT]
    books.remarks += after.remarks
    wrong = [
        f"{sum(books.fates.values())} of {requests} requests have a fate" * (books.fates.total() != requests),
        f"the deployment did not come back: {said}" * bool(code),
        f"not at rest: {left}" * bool(left),
        f"afterwards only {served} of 8 were served" * (served != 8),
    ]
    return Result(seed, made.fleet, books, chaos.deeds, [line for line in wrong if line])


def show(result: Result) -> None:
    """Print what came of a run."""
    books = result.books
    for fate in Fate:
        if books.fates[fate]:
            print(f"{books.fates[fate]:6} {fate}")
    print(f"{result.deeds.total():6} deeds: {', '.join(f'{k} {n}' for k, n in result.deeds.most_common())}")
    print(f"refused and broken by: {dict(books.reasons.most_common(8))}")
    for remark in [*books.remarks[:MOST_REMARKS], *result.wrong]:
        print(f"! {remark}")
    print("FAILED" if result.failures else "ok", f"after {result.seconds:.0f} s", flush=True)


def table(results: Sequence[Result]) -> str:
    """The runs as a table of Markdown."""
    heads = ["seed", "hand-off", "deeds", "completed", "refused", "error event"]
    heads += ["more than asked", "left", "router killed"]
    heads += ["wrong code", "wrong text", "silent end", "lost", "never ended", "at rest"]
    rows = [heads, ["---"] * len(heads)]
    for one in results:
        counts = [str(one.books.fates[fate]) for fate in Fate]
        rows.append([str(one.seed), one.fleet, str(one.deeds.total()), *counts, "no" if one.wrong else "yes"])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _to(url: str, rng: Random) -> Any:
    one = make(rng)
    return replace(one, path=url + one.path, leaves=None)


async def _rest(made: Deployment) -> dict[str, Any]:
    give_up_s = time.monotonic() + REST_S
    while (left := await made.unrest()) and time.monotonic() < give_up_s:  # noqa: ASYNC110
        await asyncio.sleep(0.2)
    return left


def _free_ports() -> int:
    while True:
        first = random.randrange(10_000, 32_000 - PORTS)
        try:
            for port in range(first, first + PORTS):
                socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return first


async def _one(given: argparse.Namespace, seed: int) -> Result:
    fleet = given.fleet or tuple(FLEETS)[seed % len(FLEETS)]
    print(f"seed {seed}, {given.requests} requests, {fleet}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="pdctl-chaos-"))
    made = Deployment(folder, fleet, continuation=seed % 2 == 1)
    begun_s = time.monotonic()

    def say(text: str) -> None:
        if given.verbose:
            print(f"{datetime.now():%H:%M:%S.%f} {text}", flush=True)

    failed = True
    try:
        result = await run(made, given, seed, say)
        failed = bool(result.failures)
        result.seconds = time.monotonic() - begun_s
        show(result)
        return result
    finally:
        await made.pdctl("down", "--force")
        await made.client.aclose()
        if failed:
            print(f"! logs are in {made.state.logs}")
        else:
            shutil.rmtree(folder)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run once for each seed; 1 if anything happened that may not."""
    parser = argparse.ArgumentParser(prog="scripts/chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the requests and of what is done to whom")
    parser.add_argument("--runs", type=int, default=1, help="so many runs, of this seed and those after it")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=25.0, help="requests per second, on average")
    parser.add_argument("--fleet", choices=FLEETS, help="hand-off (default: one after the other, by seed)")
    parser.add_argument("--verbose", action="store_true", help="tell of everything that is done")
    given = parser.parse_args(arguments)
    results = [asyncio.run(_one(given, seed)) for seed in range(given.seed, given.seed + given.runs)]
    if given.runs > 1:
        print(table(results))
    return 1 if any(one.failures for one in results) else 0


if __name__ == "__main__":
    sys.exit(main())
