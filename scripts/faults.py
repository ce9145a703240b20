"""One fault of an engine at a time, and the requests that meet it: what clients see, as a table."""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
from chaos import FLEETS, Deployment
from chaos_deeds import ENGINES, SPEED, send
from chaos_load import MODEL

from orchestrator.sim import text

PATH = "/v1/completions"
ASKED = 60
"""Requests after a fault; of what hangs, `HUNG`."""
HUNG = 20
AT_ONCE = 4
STREAMS = 16
TOKENS = 3000
"""Tokens of a stream that is to be broken: seconds, at the simulated engines' speed."""
PATIENCE_S = {"SGLANG_DISAGGREGATION_WAITING_TIMEOUT": 300, "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT": 300}
"""Of SGLang, by default."""
WAIT_S = 60.0
"""A client's patience."""

Rows = list[tuple[str, str, str]]
Case = Callable[["Bench"], Awaitable[Rows]]


class Bench:
    """A deployment whose engines have all answered, and requests to it."""

    def __init__(self, made: Deployment) -> None:
        self.made = made
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self.client = httpx.AsyncClient(base_url=made.url, limits=limits, trust_env=False, timeout=WAIT_S)
        self._asked = 0
        self.bad = 0
        """Ends that no fault excuses."""

    def ask(self, tokens: int, *, stream: bool = False) -> tuple[dict[str, Any], str]:
        """A request that no other is like, and its right answer."""
        self._asked += 1
        prompt = f"{self._asked} of many {'and on it goes ' * 10}"
        out, _ = text.generate(text.fold(1, text.encode(prompt)), tokens, ignore_eos=True)
        body = {"model": MODEL, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "temperature": 0}
        return {**body, "stream": stream}, "".join(map(text.piece, out))

    async def whole(self, tokens: int = 8) -> tuple[str, float]:
        """One request: how it ended, and after how long."""
        body, right = self.ask(tokens)
        begun_s = time.monotonic()
        try:
            answer = await self.client.post(PATH, json=body)
        except httpx.TimeoutException:
            return "no answer", time.monotonic() - begun_s
        except httpx.HTTPError as error:
            return type(error).__name__, time.monotonic() - begun_s
        told = answer.json()
        if answer.status_code != 200:
            return f"{answer.status_code} {told['error']['code']}", time.monotonic() - begun_s
        return "ok" if told["choices"][0]["text"] == right else "wrong text", time.monotonic() - begun_s

    async def many(self, count: int = ASKED, at_once: int = AT_ONCE) -> str:
        """Requests, so many at once: how they ended, in words."""
        gate = asyncio.Semaphore(at_once)

        async def one() -> tuple[str, float]:
            async with gate:
                return await self.whole()

        ends = await asyncio.gather(*(one() for _ in range(count)))
        self.bad += sum(end != "ok" for end, _ in ends)
        fates, seconds = Counter(end for end, _ in ends), [s for _, s in ends]
        rest = "".join(f", {n} {end}" for end, n in fates.items() if end != "ok")
        median_s, most_s = statistics.median(seconds), max(seconds)
        return f"{fates['ok']}/{count} ok{rest}; median {median_s:.2f} s, longest {most_s:.2f} s"

    async def streamed(self, tokens: int) -> str:
        """One stream, which may end with an error event, but not otherwise than whole."""
        end = await self.stream(tokens)
        self.bad += end in ("cut off", "silent end", "wrong text")
        return end

    async def stream(self, tokens: int = TOKENS) -> str:
        """One stream to its end, and how that was."""
        body, right = self.ask(tokens, stream=True)
        seen, last = "", ""
        try:
            async with self.client.stream("POST", PATH, json=body) as answer:
                async for line in answer.aiter_lines():
                    last = line.removeprefix("data: ") or last
                    if line.startswith("data: {"):
                        event = json.loads(last)
                        if "error" in event:
                            return f"error event ({event['error']['code']})"
                        seen += "".join(choice["text"] for choice in event["choices"])
        except httpx.HTTPError:
            return "cut off"
        return ("whole" if seen == right else "wrong text") if last == "[DONE]" else "silent end"

    async def busy(self, role: str) -> dict[str, int]:
        """Calls under way at each engine of a role."""
        urls = {name: url for name, url in self.made.engines().items() if name.startswith(role)}
        found = {}
        for name, url in urls.items():
            found[name] = int((await self.made.client.get(f"{url}/sim/state")).json()["calls"])
        return found

    async def inflight(self) -> float:
        """Requests under way in the router, by its own account."""
        text = (await self.made.client.get(f"{self.made.admin}/metrics")).text
        return next(
            float(line.split()[1])
            for line in text.splitlines()
            if line.startswith("pdctl_inflight_requests ")
        )

    async def until(self, holds: Callable[[], Awaitable[bool]], within_s: float = WAIT_S) -> float:
        """Wait until something holds; how long that took."""
        begun_s = time.monotonic()
        while not await holds():
            if time.monotonic() - begun_s > within_s:
                raise SystemExit("what must happen does not happen")
            await asyncio.sleep(0.01)
        return time.monotonic() - begun_s

    async def streaming(self) -> list[asyncio.Task[str]]:
        """Streams under way; all decode engines are slow enough for that."""
        for name in ENGINES[2:]:
            await self.made.fault(name, kind="slow", factor=float(SPEED))
        tasks = [asyncio.create_task(self.streamed(60)) for _ in range(STREAMS)]

        async def all_there() -> bool:
            return sum((await self.busy("decode")).values()) >= STREAMS

        await self.until(all_there)
        await asyncio.sleep(0.5)
        return tasks

    async def well(self) -> None:
        """End all faults, and wait until everything serves again."""
        code, said = await self.made.pdctl("up", "--detach", "--timeout", "90s")
        if code:
            raise SystemExit(said)
        await asyncio.gather(*(self.made.heal(name) for name in ENGINES))

        async def all_ready() -> bool:
            with suppress(httpx.HTTPError):
                told = (await self.made.client.get(f"{self.made.admin}/endpoints")).json()["endpoints"]
                return all(one["ready"] for one in told)
            return False

        await self.until(all_ready)
        bad = self.bad
        while (await self.many(8)).split()[0] != "8/8":  # noqa: ASYNC110
            await asyncio.sleep(0.2)
        self.bad = bad


def _most(busy: dict[str, int]) -> str:
    return max(busy, key=lambda name: busy[name])


async def decode_dies(bench: Bench) -> Rows:
    """Killed in the middle of streams."""
    tasks = await bench.streaming()
    busy = await bench.busy("decode")
    send(await bench.made.pid(_most(busy)), signal.SIGKILL)
    after = await bench.many()
    for name in ENGINES[2:]:
        if name != _most(busy):
            await bench.made.heal(name)
    ends = Counter(await asyncio.gather(*tasks))
    told = ", ".join(f"{count} {end}" for end, count in ends.most_common())
    return [
        ("decode killed", f"{STREAMS} streams, {max(busy.values())} of them there", told),
        ("decode killed", f"{ASKED} requests afterwards", after),
    ]


async def prefill_dies(bench: Bench) -> Rows:
    """Killed while it computes."""
    for name in ENGINES[:2]:
        await bench.made.fault(name, kind="slow", factor=400.0)
    asking = asyncio.create_task(bench.many(8, 8))

    async def computes() -> bool:
        return max((await bench.busy("prefill")).values()) > 0

    await bench.until(computes)
    await asyncio.sleep(0.2)
    send(await bench.made.pid(_most(await bench.busy("prefill"))), signal.SIGKILL)
    return [("prefill killed", "8 requests, some of them there", await asking)]


def fault(what: str, count: int = ASKED, *sides: str, **rule: Any) -> list[tuple[str, Case]]:
    """A fault of one engine of each of `sides` (both), and requests that meet it."""
    cases: list[tuple[str, Case]] = []
    for side in sides or ("prefill", "decode"):

        async def case(bench: Bench, side: str = side) -> Rows:
            await bench.made.fault(f"{side}-0", **rule)
            return [(f"{side} {what}", f"{count} requests", await bench.many(count))]

        cases.append((f"{side} {what}", case))
    return cases


async def clients_leave(bench: Bench) -> Rows:
    """Hang up in the middle of streams, and while prefill computes."""
    tasks = await bench.streaming()
    for task in tasks:
        task.cancel()

    async def idle() -> bool:
        return not sum([*(await bench.busy("decode")).values(), *(await bench.busy("prefill")).values()])

    streams_s = await bench.until(idle)
    for name in ENGINES[:2]:
        await bench.made.fault(name, kind="hang")
    asking = [asyncio.create_task(bench.whole()) for _ in range(2)]

    async def taken() -> bool:
        return await bench.inflight() == len(asking)

    await bench.until(taken)
    for one in asking:
        one.cancel()

    async def forgotten() -> bool:
        return await bench.inflight() == 0 and await idle()

    prefill_s = await bench.until(forgotten)
    await asyncio.gather(*tasks, *asking, return_exceptions=True)
    return [
        ("clients leave", f"{STREAMS} streams", f"engines idle after {streams_s:.2f} s"),
        ("clients leave", "2 requests in prefill", f"engines idle after {prefill_s:.2f} s"),
    ]


CASES: list[tuple[str, Case]] = [
    ("decode killed", decode_dies),
    ("prefill killed", prefill_dies),
    *fault("answers 500", kind="error", status=500),
    *fault("answers 503", kind="error", status=503),
    *fault("answers 429", kind="error", status=429),
    *fault("refuses connections", kind="refuse", for_s=60.0 * SPEED),
    *fault("takes requests and never answers", HUNG, kind="hang"),
    *fault("stands still", HUNG, "decode", kind="freeze"),
    *fault("cuts connections after 3 tokens", ASKED, "decode", kind="close", after_tokens=3),
    *fault("is 50 times as slow", HUNG, kind="slow", factor=50.0),
    ("clients leave", clients_leave),
]


async def run(given: argparse.Namespace, fleet: str, continuation: bool) -> tuple[Rows, int]:
    """All faults against one deployment: the rows, and how many ends there were that no fault excuses."""
    folder = Path(tempfile.mkdtemp(prefix="pdctl-faults-"))
    made = Deployment(folder, fleet, continuation=continuation, timeouts={})
    for pool in made.topology["pools"].values():
        # The engines' own patience, which goes by their clock, is to be what it is at their real speed.
        pool["env"] = {**pool.get("env", {}), **{name: str(s * SPEED) for name, s in PATIENCE_S.items()}}
    made.write()
    bench = Bench(made)
    rows: Rows = []
    try:
        code, said = await made.pdctl("up", "--detach")
        if code:
            raise SystemExit(said)
        for name, case in CASES:
            if given.only and given.only not in name:
                continue
            await bench.well()
            rows += await case(bench)
            print(f"{fleet}: {' | '.join(rows[-1])}", file=sys.stderr, flush=True)
    finally:
        await made.pdctl("down", "--force")
        await made.client.aclose()
        await bench.client.aclose()
        shutil.rmtree(folder)
    return rows, bench.bad


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 1 if anything ended as no fault excuses."""
    parser = argparse.ArgumentParser(prog="scripts/faults", description=__doc__)
    parser.add_argument("--fleet", choices=FLEETS, default="sglang", help="the hand-off")
    parser.add_argument("--continuation", action="store_true", help="streams go on elsewhere")
    parser.add_argument("--only", default="", help="faults with this in their name")
    given = parser.parse_args(arguments)
    rows, bad = asyncio.run(run(given, given.fleet, given.continuation))
    print("| fault | requests | what clients see |\n| --- | --- | --- |")
    for row in rows:
        print(f"| {' | '.join(row)} |")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
