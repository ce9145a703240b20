"""Hints to the router over its Unix socket, and that nothing is lost when there is none."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.fabric import unix
from orchestrator.launch import testing
from orchestrator.launch.routerlink import Figures, Sick, SocketRouterLink, link_of
from orchestrator.topology.plan import Credentials


@asynccontextmanager
async def router(path: Path, status: int = 200, body: bytes = b"") -> AsyncIterator[list[tuple[str, Any]]]:
    """A router's end: notes (path, body) and answers `status`."""
    hints: list[tuple[str, Any]] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        if head.startswith("GET"):
            hints.append((head.split()[1], None))
            writer.write(b"HTTP/1.1 %d X\r\nconnection: close\r\n\r\n%s" % (status, body))
            writer.close()
            return
        length = next(
            int(h.split(":")[1]) for h in head.split("\r\n") if h.lower().startswith("content-length")
        )
        hints.append((head.split()[1], json.loads(await reader.readexactly(length))))
        writer.write(b"HTTP/1.1 %d X\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}" % status)
        writer.close()

    server = await asyncio.start_unix_server(talk, sock=unix.bind(path))
    try:
        yield hints
    finally:
        server.close()


async def test_what_is_sent(tmp_path: Path) -> None:
    link = SocketRouterLink(tmp_path / "router.sock")
    async with router(tmp_path / "router.sock") as hints:
        await link.reload()
        await link.drain("p0", 7.5)
        await link.ungate("p0", 3)
        await link.gate("p1")
    by = {"by": "controller"}
    assert hints == [
        ("/reload", {}),
        ("/gate", {"instance": "p0", **by}),
        ("/drain", {"instance": "p0", "deadline_s": 7.5, **by}),
        ("/ungate", {"instance": "p0", "incarnation": "3", **by}),
        ("/gate", {"instance": "p1", **by}),
    ]


async def test_a_path_longer_than_a_socket_address(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    async with router(deep / "router.sock") as hints:
        await SocketRouterLink(deep / "router.sock").reload()
    assert hints == [("/reload", {})]


async def test_without_a_router_nothing_is_waited_for_or_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    link = SocketRouterLink(tmp_path / "router.sock")
    await link.drain("p0", 3600.0)
    async with router(tmp_path / "router.sock"):
        pass
    await link.reload()
    await SocketRouterLink(tmp_path / "no" / "router.sock").reload()
    assert not [r for r in caplog.records if r.levelno > logging.WARNING]


async def test_a_refusal_is_logged_and_not_raised(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with router(tmp_path / "router.sock", status=400) as hints:
        await SocketRouterLink(tmp_path / "router.sock").drain("p0", 3600.0)
    assert [path for path, _ in hints] == ["/gate"], "what cannot be gated cannot be drained"
    assert "router: /gate answered 400" in caplog.text


ROW = {"ready": True, "why": "", "gates": [], "hung": "", "circuit": "closed", "apart": ""}


def endpoints(**rows: Any) -> dict[str, Any]:
    return {"endpoints": [{"name": name, **row} for name, row in rows.items()], "pairs": {}}


async def told(tmp_path: Path, answer: Any) -> Sick:
    async with router(tmp_path / "router.sock", body=json.dumps(answer).encode()):
        return await SocketRouterLink(tmp_path / "router.sock").sick()


def pair(prefill: str, decode: str, standing: str = "bad") -> dict[str, str]:
    return {"prefill": prefill, "decode": decode, "standing": standing, "why": f"{prefill}{decode} lies"}


async def test_whose_pairs_are_bad_the_most_first(tmp_path: Path) -> None:
    drained = {**ROW, "gates": ["operator"]}
    answer = endpoints(p0=ROW, p1=ROW, d0=ROW, d1=ROW, d2=drained)
    doubtful = [pair(p, d) for d in ("d0", "d1", "d2") for p in ("p0", "p1")]
    answer["pairs"] = {"doubtful": [*doubtful, pair("p2", "d1", "suspect")], "restart": ["d0", "d2", "p1"]}
    sick = await told(tmp_path, answer)
    assert sick.hung == {}
    assert list(sick.mispaired.items()) == [
        ("p1", "3 bad pairs and no good one: p1d0 lies"),
        ("d0", "2 bad pairs and no good one: p0d0 lies"),
    ]
    answer["pairs"]["doubtful"] = [{}]
    assert await told(tmp_path, answer) == ({}, {}), "another router's words"


async def test_who_hangs_but_for_those_an_operator_looks_into(tmp_path: Path) -> None:
    stuck = {**ROW, "hung": "has work"}
    answer = endpoints(p0=ROW, p1=stuck, p2={**stuck, "gates": ["operator"]})
    assert (await told(tmp_path, answer)).hung == {"p1": "has work"}
    assert await SocketRouterLink(tmp_path / "router.sock").sick() == ({}, {})


@pytest.mark.parametrize(("body", "pid"), [(b'{"pid": 7}', 7), (b"{}", None), (b"[]", None), (b"x", None)])
async def test_whose_process_answers(tmp_path: Path, body: bytes, pid: int | None) -> None:
    async with router(tmp_path / "router.sock", body=body):
        assert await SocketRouterLink(tmp_path / "router.sock").pid() == pid
    assert await SocketRouterLink(tmp_path / "router.sock").pid() is None


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (endpoints(p0=ROW), None),
        (endpoints(p0={**ROW, "ready": False, "why": "probe: 503"}), "probe: 503"),
        (endpoints(p0={**ROW, "ready": False, "why": "gated", "gates": ["controller"]}), "gated"),
        (endpoints(p0={**ROW, "ready": False, "why": "gated", "gates": ["operator"]}), None),
        (endpoints(), "the router does not know it"),
        ({"what": 1}, None),
    ],
)
async def test_whether_the_router_uses_an_instance(tmp_path: Path, answer: Any, why: str | None) -> None:
    async with router(tmp_path / "router.sock", body=json.dumps(answer).encode()):
        assert await SocketRouterLink(tmp_path / "router.sock").joined("p0") == why
    assert await SocketRouterLink(tmp_path / "router.sock").joined("p0") is None, "nobody to ask"


async def test_a_router_on_another_node_is_told_over_its_admin_listener(tmp_path: Path) -> None:
    heads: list[str] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append((await reader.readuntil(b"\r\n\r\n")).decode().lower())
        writer.write(b"HTTP/1.1 200 X\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    url = "http://{}:{}".format(*server.sockets[0].getsockname())
    keys = Credentials(admin_key="an-admin-key")
    there = testing.router(8000, 8001, ["router"], node="a", remote_admin_url=url, credentials=keys)
    plan = replace(testing.plan(tmp_path, router=there), node="b")
    link = link_of(tmp_path / "router.sock", plan, SocketRouterLink(tmp_path / "x"))
    await link.gate("p0")
    await link.reload()
    server.close()
    (head,) = heads
    assert head.startswith("post /gate ")
    assert "authorization: bearer an-admin-key" in head


async def test_a_router_on_this_node_is_told_over_its_socket(tmp_path: Path) -> None:
    there = testing.router(8000, 8001, ["router"], node="a", remote_admin_url="http://127.0.0.1:1")
    for node in (None, "a"):
        plan = replace(testing.plan(tmp_path, router=there), node=node)
        link = link_of(tmp_path / "router.sock", plan, SocketRouterLink(tmp_path / "x"))
        async with router(tmp_path / "router.sock") as hints:
            await link.gate("p0")
        assert [path for path, _ in hints] == ["/gate"]
        (tmp_path / "router.sock").unlink(missing_ok=True)


async def test_one_that_waits_for_its_other_side_may_do(tmp_path: Path) -> None:
    answer = endpoints(p0={**ROW, "ready": False, "why": "page size", "apart": "page size"})
    async with router(tmp_path / "router.sock", body=json.dumps(answer).encode()):
        link = SocketRouterLink(tmp_path / "router.sock")
        assert await link.joined("p0") == "page size"
        assert await link.joined("p0", apart_too=True) is None


async def test_how_requests_fared(tmp_path: Path) -> None:
    row = 'pdctl_requests_total{path="chat",model="m",end="%s",status="200",reason=""} %d'
    lines = [row % pair for pair in (("completed", 7), ("failed", 2), ("refused", 1), ("cancelled", 5))]
    lines += [
        f'pdctl_slo_requests_total{{slo_class="a",verdict="{v}"}} 4'
        for v in ("kept", "missed-ttft", "unjudged")
    ]
    async with router(tmp_path / "router.sock", body="\n".join(["# HELP x", *lines, ""]).encode()):
        assert await SocketRouterLink(tmp_path / "router.sock").figures() == Figures(10, 3, 8, 4)
    assert await SocketRouterLink(tmp_path / "router.sock").figures() is None
