"""What `pdctl drain` asks of the router (modules drain and routerask), and what it makes of the answer."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import LaunchError
from orchestrator.fabric import unix
from orchestrator.launch.drain import Drained, drain, undo
from orchestrator.launch.paths import StateDir
from orchestrator.wire.exchange import Exchange
from orchestrator.wire.server import serve

Answers = Callable[[Any], tuple[int, Any]]


@pytest.fixture
def state(tmp_path: Path) -> StateDir:
    return StateDir(tmp_path)


@asynccontextmanager
async def router(state: StateDir, status: int, answer: Any) -> AsyncIterator[list[tuple[str, Any]]]:
    """A router that gives one answer; what it was asked."""
    asked: list[tuple[str, Any]] = []

    def handle(exchange: Exchange) -> None:
        asked.append((exchange.path, json.loads(exchange.body)))
        exchange.respond(status, json.dumps(answer).encode())

    server = await serve(handler=handle, sock=unix.bind(state.router))
    try:
        yield asked
    finally:
        await server.drained(0.0)


async def test_a_drain_is_an_operators_and_says_what_is_left(state: StateDir) -> None:
    answer = {"drained": False, "inflight": 2, "kv_tokens": 7, "gated": True}
    async with router(state, 200, answer) as asked:
        assert await drain(state, "p0", 1.5) == Drained(False, 2, 7)
        await drain(state, "p0", None)
        await undo(state, "p0")
    assert asked == [
        ("/drain", {"instance": "p0", "deadline_s": 1.5, "by": "operator"}),
        ("/drain", {"instance": "p0", "deadline_s": 86400.0, "by": "operator"}),
        ("/ungate", {"instance": "p0", "by": "operator"}),
    ]


@pytest.mark.parametrize("ask", [lambda state: drain(state, "x", 1.0), lambda state: undo(state, "x")])
async def test_an_instance_that_is_not_there(state: StateDir, ask: Any) -> None:
    refusal = {"error": {"message": "no instance 'x' here; there are: p0", "code": "not-found"}}
    async with router(state, 404, refusal):
        with pytest.raises(LaunchError, match="there are: p0") as caught:
            await ask(state)
    assert caught.value.reason == "no-instance"


@pytest.mark.parametrize("answer", [{}, {"error": "x"}, {"error": {}}, []])
async def test_what_answers_is_no_router_of_ours(state: StateDir, answer: Any) -> None:
    async with router(state, 500, answer):
        with pytest.raises(LaunchError):
            await drain(state, "p0", 1.0)


async def test_nobody_answers(state: StateDir) -> None:
    with pytest.raises(LaunchError) as caught:
        await drain(state, "p0", 1.0)
    assert caught.value.reason == "no-router"
