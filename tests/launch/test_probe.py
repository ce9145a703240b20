"""Probes over real sockets: the right key, the right port, and what an operator reads when one fails."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.core.types import Role
from orchestrator.engines.base import HttpCall
from orchestrator.launch.probe import HttpProber
from orchestrator.launch.testing import instance, plan
from orchestrator.launch.unit import Unit, units_of


@asynccontextmanager
async def server(
    answer: bytes | None, tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[int, list[bytes]]]:
    """A server that notes each request's head and answers (None: never, empty: by hanging up)."""
    heads: list[bytes] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        if answer is None:
            await asyncio.sleep(3600)
        writer.write(answer or b"")
        writer.close()

    listener = await asyncio.start_server(talk, "127.0.0.1", 0, ssl=tls)
    try:
        yield listener.sockets[0].getsockname()[1], heads
    finally:
        listener.close()


def answer(status: int) -> bytes:
    return b"HTTP/1.1 %d X\r\ncontent-length: 0\r\n\r\n" % status


def unit(tmp_path: Path, port: int, **changes: object) -> Unit:
    made = units_of(plan(tmp_path, instance("p0", Role.PREFILL, port, ["engine"])))["p0"]
    return replace(made, **changes)  # type: ignore[arg-type]


async def ask(unit: Unit, *calls: HttpCall) -> str | None:
    async with HttpProber() as prober:
        return await prober.ask(unit, calls)


async def test_all_must_answer_200(tmp_path: Path) -> None:
    async with server(answer(200)) as (good, heads), server(answer(503)) as (bad, _):
        calls = (HttpCall("GET", "/ready"), HttpCall("POST", "/x", b"hi", headers=(("A", "b"),)))
        assert await ask(unit(tmp_path, good), *calls) is None
        assert heads[0].startswith(b"GET /ready HTTP/1.1\r\n")
        assert b"\r\nA: b\r\n" in heads[1]
        assert b"authorization" not in heads[0].lower()
        said = await ask(unit(tmp_path, good), calls[0], HttpCall("GET", "/route?a=-1", port=bad))
        assert said == f"GET /route on port {bad}: 503"


async def test_keys_go_where_they_belong(tmp_path: Path) -> None:
    async with server(answer(200)) as (main, heads), server(answer(200)) as (other, others):
        keyed = unit(tmp_path, main, keys={0: "ek", other: "ak"})
        assert await ask(keyed, HttpCall("GET", "/"), HttpCall("GET", "/", port=other)) is None
        assert b"\r\nAuthorization: Bearer ek\r\n" in heads[0]
        assert b"\r\nAuthorization: Bearer ak\r\n" in others[0]


async def test_the_query_is_sent(tmp_path: Path) -> None:
    async with server(answer(200)) as (port, heads):
        await ask(unit(tmp_path, port), HttpCall("GET", "/route?engine_rank=-1"))
        assert heads[0].startswith(b"GET /route?engine_rank=-1 HTTP/1.1\r\n")


async def test_nothing_listens(tmp_path: Path) -> None:
    async with server(answer(200)) as (port, _):
        pass
    assert await ask(unit(tmp_path, port), HttpCall("GET", "/ready")) == (
        f"GET /ready on port {port}: nothing listens yet"
    )


async def test_no_answer_in_time(tmp_path: Path) -> None:
    async with server(None) as (port, _):
        said = await ask(unit(tmp_path, port), HttpCall("GET", "/ready", timeout_s=0.05))
    assert said == f"GET /ready on port {port}: no answer within 0.05 s"


@pytest.mark.parametrize("nonsense", [b"", b"garbage\r\n\r\n"])
async def test_what_is_not_http(tmp_path: Path, nonsense: bytes) -> None:
    async with server(nonsense) as (port, _):
        said = await ask(unit(tmp_path, port), HttpCall("GET", "/ready"))
    assert said is not None
    assert said.startswith(f"GET /ready on port {port}: ")


async def test_a_redirect_is_not_followed(tmp_path: Path) -> None:
    async with server(b"HTTP/1.1 302 X\r\nlocation: /other\r\ncontent-length: 0\r\n\r\n") as (port, heads):
        assert await ask(unit(tmp_path, port), HttpCall("GET", "/ready")) == f"GET /ready on port {port}: 302"
        assert len(heads) == 1


def body(status: int, text: bytes) -> bytes:
    return b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%b" % (status, len(text), text)


async def tell(unit: Unit) -> object:
    async with HttpProber() as prober:
        return await prober.tell(unit)


ENGINE = """
from orchestrator.engines.base import HttpCall, NotYet
from orchestrator.engines.sglang import SGLang
class Engine(SGLang):
    def discover(self, role, known):
        return {"who": HttpCall("GET", "/who", timeout_s=1.0)}
    def learn(self, name, status, body):
        if status != 200:
            return NotYet(f"{name}: {status}")
        if body == b"bug":
            raise RuntimeError("boom")
        if body == b"garbage":
            raise ValueError("no JSON")
        return {"id": body.decode()}
"""


def mine(tmp_path: Path, port: int) -> Unit:
    """An engine by an adapter of a user's own."""
    changes = {"engine": "./mine.py:Engine", "expects": {"id": "m"}}
    return units_of(plan(tmp_path, instance("p0", Role.PREFILL, port, ["x"], **changes)))["p0"]


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (body(200, b"tiny"), {"id": "tiny"}),
        (body(503, b""), "who: 503"),
        (body(200, b"garbage"), "who: its answer cannot be read: no JSON"),
        (body(200, b"bug"), "the engine adapter failed: RuntimeError('boom')"),
    ],
)
async def test_what_an_engine_tells_of_itself(tmp_path: Path, sent: bytes, told: object) -> None:
    (tmp_path / "mine.py").write_text(ENGINE)
    async with server(sent) as (port, _):
        assert await tell(mine(tmp_path, port)) == told


async def test_one_that_is_not_there_tells_nothing(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(ENGINE)
    async with server(b"") as (port, _):
        pass
    assert await tell(mine(tmp_path, port)) == f"GET /who on port {port}: nothing listens yet"


TLS = Path(__file__).resolve().parent.parent / "data" / "router" / "tls"


async def test_a_router_is_asked_over_tls_whatever_name_its_certificate_has(tmp_path: Path) -> None:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(TLS / "one.pem", TLS / "one.key")
    async with server(answer(200), made) as (port, heads):
        secured = unit(tmp_path, port, url=f"https://127.0.0.1:{port}")
        assert await ask(secured, HttpCall("GET", "/health")) is None
        assert heads[0].startswith(b"GET /health HTTP/1.1\r\n")


async def test_what_is_probed_elsewhere(tmp_path: Path) -> None:
    async with server(answer(200)) as (port, heads):
        there = unit(tmp_path, port, url="https://127.0.0.1:1", asked_at=f"http://127.0.0.1:{port}")
        assert await ask(there, HttpCall("GET", "/health")) is None
        assert heads
