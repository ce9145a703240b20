"""Small real engines for the control side's tests: a stub server, and plans that name it."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvloop
from routerprocess import Process

from orchestrator.core.types import Role
from orchestrator.engines.base import HttpCall, Probes
from orchestrator.topology.plan import InstancePlan, Plan, RouterPlan, dump
from orchestrator.wire.server import Exchange, Server, serve

DATA = Path(__file__).resolve().parent.parent / "data" / "router"

GUARD_S = 20.0
"""How long a test waits for what must happen; reached only when it does not."""


class StubEngine:
    """An engine that answers what it is told to: `answers` by path, `hang` paths never."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.port = 0
        self.key: str | None = None
        self.answers: dict[str, tuple[int, object]] = {
            "/ready": (200, "ok"),
            "/info": (200, {"incarnation": f"{name}-1", "block_size": 64}),
            "/load": (200, {"running": 0}),
            "/flush": (200, {"success": True}),
        }
        self.hang: set[str] = set()
        self.seen: list[str] = []
        self._server: Server | None = None
        self._held: list[Exchange] = []
        self.streams: list[Exchange] = []
        """Streams that have begun: one event was sent, the test says what follows."""

    async def start(self) -> None:
        """Listen, on the same port as before."""
        self._server = await serve(self._answer, host="127.0.0.1", port=self.port)
        self.port = self._server.port

    async def stop(self) -> None:
        """Die: no listener, every connection cut."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
            for connection in tuple(server.connections):
                connection.cut()
            # The listener is closed on the loop's next turn.
            await asyncio.sleep(0)

    def _answer(self, exchange: Exchange) -> None:
        self.seen.append(exchange.path)
        if exchange.path == "/v1/completions":
            exchange.start(200, ((b"content-type", b"text/event-stream"),))
            exchange.write(event("Hello"))
            self.streams.append(exchange)
            return
        if exchange.path in self.hang:
            self._held.append(exchange)
            return
        if self.key and exchange.header(b"authorization") != f"Bearer {self.key}".encode():
            exchange.respond(401, b"unauthorized")
            return
        status, body = self.answers.get(exchange.path, (404, "no such path"))
        if callable(body):
            body = body()
        exchange.respond(status, body if isinstance(body, bytes) else json.dumps(body).encode())

    def plan(self, role: Role = Role.PREFILL, **changes: Any) -> InstancePlan:
        """This engine as an instance of a plan."""
        instance = InstancePlan(
            name=self.name,
            pool=str(role),
            role=role,
            engine="./stub.py:Stub",
            model="m",
            node="local",
            url=f"http://127.0.0.1:{self.port}",
            argv=(),
            env={},
            ports={"http": self.port},
            probes=Probes(ready=(HttpCall("GET", "/ready", timeout_s=2.0),), live=HttpCall("GET", "/ready")),
            facts={"bootstrap_port": 8998},
        )
        return replace(instance, **changes)


def event(text: str) -> bytes:
    """One server-sent event of a completion."""
    chunk = {"choices": [{"index": 0, "text": text, "finish_reason": None}]}
    return b"data: %b\n\n" % json.dumps(chunk).encode()


def router_plan(**changes: Any) -> RouterPlan:
    """A router on free ports of the loopback address."""
    probe = HttpCall("GET", "/health")
    plan = RouterPlan(
        kind="pdctl",
        host="127.0.0.1",
        port=0,
        admin_host="127.0.0.1",
        admin_port=0,
        url="http://127.0.0.1:0",
        admin_url="http://127.0.0.1:0",
        argv=(),
        env={},
        probes=Probes(ready=(probe,), live=probe),
        drain_s=5.0,
    )
    return replace(plan, **changes)


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The router's own event loop, and none else."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def stub() -> AsyncIterator[Callable[[str], Awaitable[StubEngine]]]:
    """Starts stub engines by name; all are stopped at the end."""
    started: list[StubEngine] = []

    async def start(name: str) -> StubEngine:
        engine = StubEngine(name)
        started.append(engine)
        await engine.start()
        return engine

    yield start
    for engine in started:
        await engine.stop()


@pytest.fixture
def make_plan(tmp_path: Path) -> Callable[..., Plan]:
    """Makes a plan of instances; keywords change the router's part."""

    def make(*instances: InstancePlan, **router: Any) -> Plan:
        return Plan(
            name="test",
            file="topology.yaml",
            base_dir=str(DATA),
            state_dir=str(tmp_path),
            seed=1,
            instances=instances,
            router=router_plan(**router),
        )

    return make


@pytest.fixture
def until() -> Callable[[Callable[[], object]], Awaitable[None]]:
    """Waits until a condition holds."""

    async def wait(condition: Callable[[], object]) -> None:
        async with asyncio.timeout(GUARD_S):
            while not condition():  # noqa: ASYNC110 (the condition is about another process or task)
                await asyncio.sleep(0.005)

    return wait


@pytest.fixture
async def run(tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[Process]]]:
    """Starts router processes on a state directory that holds a plan."""
    started: list[Process] = []

    async def start(plan: Plan | bytes | None, *arguments: str) -> Process:
        if plan is not None:
            (tmp_path / "plan.json").write_bytes(plan if isinstance(plan, bytes) else dump(plan))
        words = arguments or ("--state", str(tmp_path))
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "orchestrator.router", *words, stderr=asyncio.subprocess.PIPE
        )
        started.append(Process(process, tmp_path))
        return started[-1]

    yield start
    for one in started:
        if one.process.returncode is None:
            one.process.kill()
        await one.ends()
