"""TLS between clients and the router: in its process, as clients of all kinds meet it."""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from shutil import copyfile
from typing import Any

import httpx
import pytest

from orchestrator.core.types import Role
from orchestrator.errors import TopologyError
from orchestrator.router.tls import Secured
from orchestrator.topology.plan import Plan, Tls
from orchestrator.wire.limits import LINGER_S
from orchestrator.wire.server import Exchange, Server, WireLimits, serve

FILES = Path(__file__).resolve().parent.parent / "data" / "router" / "tls"
GUARD_S = 20.0

MakePlan = Callable[..., Plan]
StartStub = Callable[[str], Awaitable[Any]]
Start = Callable[..., Awaitable[Any]]


@pytest.fixture
def files(tmp_path: Path) -> Tls:
    """The files of certificate `one`, for a test to replace."""
    tls = Tls(str(tmp_path / "crt.pem"), str(tmp_path / "key.pem"))
    renew(tls, "one")
    return tls


def renew(files: Tls, name: str) -> None:
    copyfile(FILES / f"{name}.pem", files.certificate)
    copyfile(FILES / f"{name}.key", files.key)


def trusting(*names: str, show: str | None = None) -> ssl.SSLContext:
    """A client's side that trusts these certificates, and shows one of its own."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for name in names:
        made.load_verify_locations(FILES / f"{name}.pem")
    if show is not None:
        made.load_cert_chain(FILES / f"{show}.pem", FILES / f"{show}.key")
    return made


def parts(exchange: Exchange) -> None:
    if exchange.path == "/stream":
        exchange.start(200)
        for part in (b"a", b"b" * 300_000, b"c"):
            exchange.write(part)
        exchange.end()
    else:
        exchange.respond(200, exchange.body)


@asynccontextmanager
async def serving(secured: Secured, limits: WireLimits | None = None) -> AsyncIterator[Server]:
    server = await serve(parts, host="127.0.0.1", port=0, tls=secured.context, limits=limits)
    try:
        yield server
    finally:
        await server.drained(0.0)


async def ask(server: Server, verify: ssl.SSLContext, body: bytes = b"hello", path: str = "/") -> bytes:
    async with httpx.AsyncClient(verify=verify, trust_env=False, timeout=GUARD_S) as client:
        answer = await client.post(f"https://localhost:{server.port}{path}", content=body)
        assert answer.status_code == 200
        return answer.content


async def test_a_client_that_trusts_the_certificate_is_served(files: Tls) -> None:
    async with serving(Secured(files)) as server:
        assert await ask(server, trusting("one"), b"x" * 300_000) == b"x" * 300_000
        assert len(await ask(server, trusting("one"), path="/stream")) == 300_002
        with pytest.raises(httpx.ConnectError, match="certificate verify failed"):
            await ask(server, trusting("two"))


async def test_one_connection_serves_many_requests_and_names_http_1_1(files: Tls) -> None:
    context = trusting("one")
    context.set_alpn_protocols(["h2", "http/1.1"])
    async with serving(Secured(files)) as server, asyncio.timeout(GUARD_S):
        reader, writer = await asyncio.open_connection("localhost", server.port, ssl=context)
        assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"
        for n in range(3):
            writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n%d" % n)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 ")
            assert await reader.readexactly(1) == b"%d" % n
        assert len(server.connections) == 1
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
        writer.close()


async def test_a_client_without_tls_is_not_answered(files: Tls) -> None:
    async with serving(Secured(files)) as server, asyncio.timeout(GUARD_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        with suppress(ConnectionError):
            assert not (await reader.read()).startswith(b"HTTP/")
        writer.close()
        assert await ask(server, trusting("one")) == b"hello"


async def test_old_versions_of_tls_are_not_spoken(files: Tls) -> None:
    made = Secured(files).context
    assert made.minimum_version is ssl.TLSVersion.TLSv1_2
    assert made.options & ssl.OP_NO_COMPRESSION


async def test_a_client_that_never_shakes_hands_is_cut(files: Tls) -> None:
    limits = WireLimits(header_timeout_s=0.1)
    async with serving(Secured(files), limits) as server, asyncio.timeout(GUARD_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"\x16\x03\x01\x02\x00")
        with suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()


async def test_a_refused_body_is_told_its_limit(files: Tls) -> None:
    async with serving(Secured(files), WireLimits(max_body_bytes=10)) as server:
        async with httpx.AsyncClient(verify=trusting("one"), trust_env=False, timeout=GUARD_S) as client:
            answer = await client.post(f"https://localhost:{server.port}/", content=b"x" * 200_000)
        assert answer.status_code == 413
        assert "10 bytes" in answer.text


async def test_a_client_that_must_show_a_certificate(files: Tls) -> None:
    files = Tls(files.certificate, files.key, str(FILES / "two.pem"))
    async with serving(Secured(files)) as server:
        assert await ask(server, trusting("one", show="two")) == b"hello"
        for wrong in (trusting("one"), trusting("one", show="one")):
            with pytest.raises(httpx.TransportError):
                await ask(server, wrong)


async def test_a_renewed_certificate_is_shown_to_new_connections_and_old_ones_go_on(files: Tls) -> None:
    secured = Secured(files)
    async with serving(secured) as server, asyncio.timeout(GUARD_S):
        _, old = await asyncio.open_connection("localhost", server.port, ssl=trusting("one"))
        renew(files, "two")
        assert await ask(server, trusting("one")) == b"hello", "nobody has asked for it yet"
        secured.load()
        assert await ask(server, trusting("two")) == b"hello"
        with pytest.raises(httpx.ConnectError):
            await ask(server, trusting("one"))
        assert len(server.connections) >= 1
        old.close()


async def test_an_authority_that_is_gone_counts_no_more(files: Tls, tmp_path: Path) -> None:
    ours = tmp_path / "ca.pem"
    copyfile(FILES / "one.pem", ours)
    secured = Secured(Tls(files.certificate, files.key, str(ours)))
    async with serving(secured) as server:
        known = trusting("one", show="one")
        assert await ask(server, known) == b"hello"
        copyfile(FILES / "two.pem", ours)
        secured.load()
        assert await ask(server, trusting("one", show="two")) == b"hello"
        with pytest.raises(httpx.TransportError):
            await ask(server, known)


async def test_files_that_cannot_be_used_change_nothing(files: Tls) -> None:
    secured = Secured(files)
    async with serving(secured) as server:
        copyfile(FILES / "two.pem", files.certificate)
        with pytest.raises(TopologyError, match=r"router\.tls\.key: .*belongs to another certificate"):
            secured.load()
        assert await ask(server, trusting("one")) == b"hello"


# -- the router's own process


async def started(
    stub: StartStub, make_plan: MakePlan, run: Start, files: Tls, **more: Any
) -> tuple[Any, str, str]:
    engine = await stub("u0")
    whole = engine.plan(Role.UNIFIED, engine="./stub.py:Whole", disaggregated=False)
    router = await run(make_plan(whole, tls=files, **more))
    url, admin = await router.urls()
    await router.says('msg="endpoint ready" endpoint=u0')
    router.engine = engine
    return router, url.replace("127.0.0.1", "localhost"), admin


async def test_a_stream_over_tls_through_a_reload_that_renews_the_certificate(
    stub: StartStub, make_plan: MakePlan, run: Start, files: Tls
) -> None:
    router, url, admin = await started(stub, make_plan, run, files)
    assert url.startswith("https://")
    body: Mapping[str, Any] = {"model": "m", "prompt": "x", "stream": True}
    async with (
        httpx.AsyncClient(verify=trusting("one"), trust_env=False, timeout=GUARD_S) as client,
        client.stream("POST", f"{url}/v1/completions", json=body) as answer,
    ):
        assert answer.status_code == 200
        text = answer.aiter_text()
        assert "Hello" in await anext(text)
        renew(files, "two")
        router.signal(signal.SIGHUP)
        await router.says("msg=reloaded")
        async with httpx.AsyncClient(verify=trusting("two"), trust_env=False, timeout=GUARD_S) as other:
            assert (await other.get(f"{url}/health")).status_code == 200
        router.engine.streams[0].write(b"data: [DONE]\n\n")
        router.engine.streams[0].end()
        assert "".join([part async for part in text]).endswith("data: [DONE]\n\n")
    copyfile(FILES / "one.key", files.key)
    async with httpx.AsyncClient(trust_env=False, timeout=GUARD_S) as client:
        refused = await client.post(f"{admin}/reload")
    assert refused.status_code == 400
    assert "belongs to another certificate" in refused.json()["error"]["message"]


async def test_a_router_that_takes_over_speaks_tls_too(
    stub: StartStub, make_plan: MakePlan, run: Start, files: Tls
) -> None:
    old, url, _ = await started(stub, make_plan, run, files)
    new = await run(None, "--state", str(old.state), "--take-over")
    await new.says("took over from the router before")
    await old.ends()
    async with httpx.AsyncClient(verify=trusting("one"), trust_env=False, timeout=GUARD_S) as client:
        assert (await client.get(f"{url}/health")).status_code == 200


async def test_a_router_without_its_certificate_is_exit_2(
    stub: StartStub, make_plan: MakePlan, run: Start, files: Tls
) -> None:
    engine = await stub("p0")
    gone = Tls(files.certificate, f"{files.key}.gone")
    router = await run(make_plan(engine.plan(), tls=gone))
    assert await router.ends() == 2
    assert any("router.tls.key" in line and "No such file" in line for line in router.lines)


async def test_a_slow_reader_gets_all_of_a_last_answer(files: Tls) -> None:
    size = 8_000_000

    def big(exchange: Exchange) -> None:
        exchange.respond(200, b"a" * size)

    server = await serve(big, host="127.0.0.1", port=0, tls=Secured(files).context)
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", server.port))
    reader, writer = await asyncio.open_connection(
        sock=sock, ssl=trusting("one"), server_hostname="localhost", limit=65536
    )
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    await reader.readuntil(b"\r\n\r\n")
    await asyncio.sleep(LINGER_S + 1.5)
    async with asyncio.timeout(GUARD_S):
        assert len(await reader.read()) == size
    writer.close()
    await server.drained(0.0)
