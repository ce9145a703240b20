"""Simulated engines as real processes, and the little that a router does, for the tests of the dialects."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from orchestrator.sim.testing import SimProcess, spawn

FAST = ("--speed", "40", "--enable-cache-report")
GUARD_S = 20.0
CAPTURES = Path(__file__).parent.parent / "data" / "sim" / "captures.json"

_rooms = itertools.count(1000)


@dataclass
class Trio:
    """A unified engine and a pair of one dialect."""

    unified: SimProcess
    prefill: SimProcess
    decode: SimProcess


class Client:
    """An HTTP client with the two hand-offs."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http

    async def post(self, engine: SimProcess, path: str, body: dict[str, Any], **more: Any) -> httpx.Response:
        return await self.http.post(engine.url + path, json=body, **more)

    async def get(self, engine: SimProcess, path: str) -> httpx.Response:
        return await self.http.get(engine.url + path)

    async def state(self, engine: SimProcess) -> dict[str, Any]:
        found: dict[str, Any] = (await self.get(engine, "/sim/state")).json()
        return found

    async def fault(self, engine: SimProcess, *rules: dict[str, Any]) -> None:
        answer = await self.http.post(engine.url + "/sim/faults", json=list(rules))
        assert answer.status_code == 200, answer.text

    async def until(self, engine: SimProcess, holds: Callable[[dict[str, Any]], bool]) -> None:
        """Wait until an engine's state is as wished; fails when it never is."""
        async with asyncio.timeout(GUARD_S):
            # Another process: there is no event to wait for.
            while not holds(await self.state(engine)):  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def idle(self, *engines: SimProcess) -> None:
        """Wait until nothing is in flight and no KV is held; fails when that never comes."""
        for engine in engines:
            await self.until(
                engine, lambda s: not (s["calls"] or s["generations"] or s["load"]["used_tokens"])
            )

    async def sglang(
        self, pair: Trio, path: str, body: dict[str, Any], room: int | list[int] | None = None
    ) -> tuple[httpx.Response, httpx.Response]:
        """Both legs at once: (prefill's answer, decode's)."""
        whole = {
            **body,
            "bootstrap_host": "127.0.0.1",
            "bootstrap_port": pair.prefill.ports["bootstrap"],
            "bootstrap_room": next(_rooms) * 100 if room is None else room,
        }
        legs = (self.post(engine, path, whole) for engine in (pair.prefill, pair.decode))
        prefill, decode = await asyncio.gather(*legs)
        return prefill, decode

    async def prefill(self, pair: Trio, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """vLLM's prefill leg: the parameters for the decode leg."""
        whole = {**body, "max_tokens": 1, "stream": False, "kv_transfer_params": {"do_remote_decode": True}}
        whole.pop("stream_options", None)
        answer = await self.post(pair.prefill, path, whole)
        assert answer.status_code == 200, answer.text
        params: dict[str, Any] = answer.json()["kv_transfer_params"]
        return params

    async def vllm(self, pair: Trio, path: str, body: dict[str, Any]) -> httpx.Response:
        """Prefill leg, then decode leg."""
        params = await self.prefill(pair, path, body)
        return await self.post(pair.decode, path, {**body, "kv_transfer_params": params})


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with httpx.AsyncClient(timeout=GUARD_S) as http:
        yield Client(http)


def trio(dialect: str, *flags: str) -> Iterator[Trio]:
    roles = [("--dialect", dialect, "--role", role) for role in ("unified", "prefill", "decode")]
    with spawn(*roles, common=(*FAST, *flags)) as engines:
        yield Trio(*engines)


@pytest.fixture(scope="module")
def sglang() -> Iterator[Trio]:
    yield from trio("sglang")


@pytest.fixture(scope="module")
def vllm() -> Iterator[Trio]:
    yield from trio("vllm")


@pytest.fixture
def fresh_sglang() -> Iterator[Trio]:
    """Engines of the test's own, to be killed."""
    yield from trio("sglang")


@pytest.fixture
def fresh_vllm() -> Iterator[Trio]:
    """Engines of the test's own, to be killed."""
    yield from trio("vllm")


@pytest.fixture(scope="session")
def captures() -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = json.loads(CAPTURES.read_text())
    return found


def events(body: str) -> list[Any]:
    """The data of each server-sent event; `[DONE]` as it is."""
    blocks = [block for block in body.split("\n\n") if block.strip()]
    assert all(block.startswith("data: ") for block in blocks), body
    data = [block.removeprefix("data: ") for block in blocks]
    return [one if one == "[DONE]" else json.loads(one) for one in data]


def shape(value: Any) -> Any:
    """A value with its field names in order, and types in place of leaves."""
    if isinstance(value, dict):
        return [(name, shape(one)) for name, one in value.items()]
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    if isinstance(value, bool) or value is None:
        return type(value).__name__
    return "number" if isinstance(value, int | float) else "string"


def kinds(chunks: list[Any]) -> list[Any]:
    """The different shapes in a stream, in order of appearance: how many of each there are is chance."""
    found: list[Any] = []
    for chunk in chunks:
        one = shape(chunk)
        if one not in found:
            found.append(one)
    return found


@pytest.fixture(scope="session")
def stream_kinds() -> Any:
    return kinds


@pytest.fixture(scope="session")
def read_events() -> Any:
    return events


@pytest.fixture(scope="session")
def shape_of() -> Any:
    return shape
