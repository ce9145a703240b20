"""`scripts/chaos`: a short run of it, and that it would see what must not happen."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from random import Random
from types import ModuleType

import httpx
import pytest

from orchestrator.wire.exchange import Exchange
from orchestrator.wire.server import serve

pytestmark = pytest.mark.integration

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture(scope="module")
def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("chaos_load", SCRIPTS / "chaos_load.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["chaos_load"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("seed", "fleet"), [(1, "sglang"), (2, "nixl"), (3, "mooncake")])
def test_a_short_run(seed: int, fleet: str) -> None:
    words = ["--seed", str(seed), "--requests", "80", "--rate", "12", "--fleet", fleet]
    done = subprocess.run(
        [SCRIPTS / "chaos", *words], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "completed, with the right text" in done.stdout


ERROR = b'data: {"error":{"message":"m","type":"t","param":null,"code":"leg-failed"}}\n\n'


def piece(text: str) -> bytes:
    return (
        b"data: " + json.dumps({"choices": [{"text": text, "delta": {"content": text}}]}).encode() + b"\n\n"
    )


@pytest.mark.parametrize(
    ("pieces", "killed", "fate"),
    [
        (lambda right: [piece(right), b"data: [DONE]\n\n"], False, "COMPLETED"),
        (lambda right: [piece(right[:3]), ERROR], False, "BROKEN"),
        (lambda right: [piece(right[:3])], True, "ROUTER_KILLED"),
        (lambda right: [piece(right[:3])], False, "SILENT"),
        (lambda right: [piece(right)], False, "SILENT"),
        (lambda right: [piece(right + "x"), b"data: [DONE]\n\n"], False, "WRONG_TEXT"),
        (lambda right: [piece("x"), ERROR], False, "WRONG_TEXT"),
    ],
)
async def test_what_becomes_of_a_stream(load: ModuleType, pieces, killed: bool, fate: str) -> None:
    one = next(o for o in map(load.make, map(Random, range(99))) if o.body["stream"] and o.leaves is None)

    def answer(exchange: Exchange) -> None:
        exchange.start(200, ((b"content-type", b"text/event-stream"),))
        for part in pieces(one.expected):
            exchange.write(part)
        exchange.end()

    assert await what_becomes(load, one, answer, killed) == fate


@pytest.mark.parametrize(
    ("more", "continuation", "fate"),
    [
        (lambda beyond: beyond[:9], True, "LONGER"),
        (lambda beyond: beyond[:9], False, "WRONG_TEXT"),
        (lambda beyond: "x" + beyond[:9], True, "WRONG_TEXT"),
        (lambda beyond: beyond + "x", True, "WRONG_TEXT"),
        (lambda beyond: "", True, "COMPLETED"),
    ],
)
async def test_what_is_too_much_must_be_the_engines_next_words(
    load: ModuleType, more, continuation: bool, fate: str
) -> None:
    one = next(o for o in map(load.make, map(Random, range(99))) if o.body["stream"] and o.leaves is None)

    def answer(exchange: Exchange) -> None:
        exchange.start(200, ((b"content-type", b"text/event-stream"),))
        exchange.write(piece(one.expected + more(one.beyond)) + b"data: [DONE]\n\n")
        exchange.end()

    assert await what_becomes(load, one, answer, False, continuation) == fate


@pytest.mark.parametrize(
    ("status", "code", "header", "fate"),
    [
        (502, "leg-failed", b"leg-failed", "REFUSED"),
        (500, "internal", b"internal", "WRONG_CODE"),
        (400, "bad-json", b"bad-json", "WRONG_CODE"),
        (502, "leg-failed", b"another", "WRONG_CODE"),
        (0, "", b"", "LOST"),
    ],
)
async def test_what_becomes_of_a_request(
    load: ModuleType, status: int, code: str, header: bytes, fate: str
) -> None:
    one = next(o for o in map(load.make, map(Random, range(99))) if not o.body["stream"] and o.leaves is None)

    def answer(exchange: Exchange) -> None:
        if not status:
            exchange.abort()
            return
        body = json.dumps({"error": {"message": "m", "code": code}}).encode()
        exchange.respond(status, body, ((b"x-pdctl-reason", header),))

    assert await what_becomes(load, one, answer, False) == fate


async def what_becomes(load: ModuleType, one, answer, killed: bool, continuation: bool = False) -> str:
    books = load.Books(continuation=continuation)
    if killed:
        now_s = asyncio.get_running_loop().time()
        books.kills.append((now_s, float("inf")))
    server = await serve(answer, host="127.0.0.1")
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", trust_env=False) as client:
            await load.ask(client, one, books)
    finally:
        await server.drained(0.0)
    assert books.fates.total() == 1
    return next(iter(books.fates)).name
