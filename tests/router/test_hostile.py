"""What a client that means harm can send: no engine sees it, nobody else pays for it, no log grows by it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import orjson
import pytest
from datapath import Rig, answers, build, completion

from orchestrator.core.types import PathKind
from orchestrator.engines.splice import JsonBody
from orchestrator.errors import MAX_MESSAGE, MAX_PARAM
from orchestrator.router.clients import Clients
from orchestrator.router.logs import KeyValue
from orchestrator.router.replies import MAX_CLIENT_ID
from orchestrator.router.view import Asked, prompt_of, read
from orchestrator.topology.plan import Credentials, Limits
from orchestrator.wire.exchange import Exchange
from orchestrator.wire.limits import WireLimits

Make = Callable[..., Awaitable[Rig]]

GUARD_S = 20.0
PATH = "/v1/completions"
ASK = {"model": "m", "prompt": "hi"}
BODY = orjson.dumps(ASK)
POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
CHUNKED = b"Transfer-Encoding: chunked\r\n"
INNER = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n" + LENGTH + b"\r\n" + BODY


def chunked(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    """Builds a unified engine behind a router, which are taken down at the end."""
    made: list[Rig] = []

    async def start(**more: Any) -> Rig:
        made.append(await build(roles="u", **more))
        made[-1].engines["u0"].script = answers(200, completion("hello"))
        return made[-1]

    yield start
    for one in made:
        await one.close()


async def talk(rig: Rig, *pieces: bytes, end: bool = False) -> bytes:
    """All that the router says to these bytes until it closes; `end`: the client leaves in the middle."""
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.server.port)
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0)
    if end:
        writer.write_eof()
    async with asyncio.timeout(GUARD_S):
        said = await reader.read()
    writer.close()
    return said


SMUGGLED = {
    "both framings": POST + LENGTH + CHUNKED + b"\r\n0\r\n\r\n" + INNER,
    "both the other way": POST + CHUNKED + LENGTH + b"\r\n0\r\n\r\n" + INNER,
    "two lengths": POST + LENGTH + b"Content-Length: 0\r\n\r\n" + BODY + INNER,
    "a list of lengths": POST + b"Content-Length: 0, 0\r\n\r\n" + INNER,
    "a signed length": POST + b"Content-Length: +0\r\n\r\n" + INNER,
    "a length in hex": POST + b"Content-Length: 0x0\r\n\r\n" + INNER,
    "an obscure coding": POST + b"Transfer-Encoding: xchunked\r\n\r\n" + INNER,
    "a coding after a tab": POST + b"Transfer-Encoding:\tchunked, identity\r\n\r\n" + INNER,
    "a coding after a control": POST + b"Transfer-Encoding: \x0bchunked\r\n\r\n" + INNER,
    "a space before the colon": POST + b"Transfer-Encoding : chunked\r\n\r\n" + INNER,
    "a folded header": POST + b"X: a\r\n Transfer-Encoding: chunked\r\n\r\n" + INNER,
    "a bare line feed": POST + b"X: a\nTransfer-Encoding: chunked\r\n\r\n" + INNER,
    "a bare carriage return": POST + b"X: a\rTransfer-Encoding: chunked\r\n\r\n" + INNER,
    "a chunk with a sign": POST + CHUNKED + b"\r\n+0\r\n\r\n" + INNER,
    "a chunk in 0x": POST + CHUNKED + b"\r\n0x0\r\n\r\n" + INNER,
    "a chunk over its size": POST + CHUNKED + b"\r\n1\r\nab\r\n0\r\n\r\n" + INNER,
    "a chunk of too many digits": POST + CHUNKED + b"\r\n" + b"f" * 17 + b"\r\n" + INNER,
    "a bare line feed in a chunk": POST + CHUNKED + b"\r\n1\na\r\n0\r\n\r\n" + INNER,
    "chunked in 1.0": POST.replace(b"1.1", b"1.0") + CHUNKED + b"\r\n" + chunked(BODY) + INNER,
    "an upgrade to anything": POST
    + b"Connection: Upgrade\r\nUpgrade: x\r\n"
    + LENGTH
    + b"\r\n"
    + BODY
    + INNER,
}


@pytest.mark.parametrize("name", SMUGGLED)
async def test_no_second_request_hides_in_a_first(make: Make, name: str) -> None:
    rig = await make()
    said = await talk(rig, SMUGGLED[name])
    assert int(said[9:12]) in (400, 501)
    assert said.count(b"server: pdctl\r\n") == 1
    assert b"connection: close\r\n" in said
    assert not rig.engines["u0"].exchanges, "an engine saw some of it"


@pytest.mark.parametrize("framed", [LENGTH + b"\r\n" + BODY, CHUNKED + b"\r\n" + chunked(BODY)])
async def test_what_follows_a_request_reaches_no_engine(make: Make, framed: bytes) -> None:
    rig = await make()
    said = await talk(rig, POST + framed + INNER)
    assert said.startswith(b"HTTP/1.1 200 ")
    assert said.count(b"HTTP/1.1 400 ") == 1
    assert len(rig.engines["u0"].exchanges) == 1


async def test_an_engine_gets_one_framing_of_our_own(make: Make) -> None:
    rig = await make(pass_headers=("content-length", "transfer-encoding", "x-a"))
    said = await talk(
        rig,
        POST
        + b"Connection: close\r\nX-A: b\r\n"
        + CHUNKED
        + b"\r\n"
        + chunked(BODY)[:-2]
        + b"X-A: c\r\n\r\n",
    )
    assert said.startswith(b"HTTP/1.1 200 ")
    (seen,) = rig.engines["u0"].exchanges
    assert seen.body.endswith(BODY[1:])
    assert [value for name, value in seen.headers if name == b"x-a"] == [b"b"], "a trailer is no header"


@pytest.mark.parametrize(
    "value", ["a\\r\\nX-Evil: 1", "%0d%0aX-Evil: 1", "a\tb", "a\x7f".replace("\x7f", "~")]
)
async def test_no_header_is_injected(make: Make, value: str) -> None:
    rig = await make(pass_headers=("x-a",))
    reply = await rig.ask(PATH, ASK, headers={"X-A": value, "X-Request-Id": value})
    assert reply.status == 200
    assert "x-evil" not in reply.headers
    assert reply.headers["x-request-id"] == value
    (seen,) = rig.engines["u0"].exchanges
    assert seen.header(b"x-a") == value.encode()
    assert seen.header(b"x-evil") is None


@pytest.mark.parametrize(
    "line", [b"X-A: a\x00b", b"X-A: a\x01b", b"X-A\x00: a", b"X-A: a\r\n\tb: c", b"X(A: a"]
)
async def test_no_control_character_passes_in_a_header(make: Make, line: bytes) -> None:
    rig = await make(pass_headers=("x-a",))
    said = await talk(rig, POST + line + b"\r\n" + LENGTH + b"\r\n" + BODY)
    assert said.startswith(b"HTTP/1.1 400 ")
    assert not rig.engines["u0"].exchanges


async def test_no_engine_injects_a_header_into_an_answer(make: Make) -> None:
    rig = await make()

    async def evil(exchange: Exchange) -> None:
        exchange.respond(200, completion("x"), ((b"x-a", b"b\rx-evil: 1"), (b"server", b"evil")))

    rig.engines["u0"].script = evil
    reply = await rig.ask(PATH, ASK)
    assert reply.status == 502
    assert reply.error["code"] == "bad-answer"
    assert "x-evil" not in reply.headers


@pytest.mark.parametrize(
    "framed",
    [
        CHUNKED + b"\r\nff\r\n{",
        CHUNKED + b"\r\n" + chunked(BODY)[:-2],
        CHUNKED + b"\r\n" + chunked(BODY)[:9],
        LENGTH + b"\r\n" + BODY[:-1],
        b"Content-Le",
    ],
)
async def test_a_truncated_request_is_never_taken_for_whole(make: Make, framed: bytes) -> None:
    rig = await make()
    assert await talk(rig, POST + framed, end=True) == b"", "the client has left: nobody is there to be told"
    slow = await make(wire=WireLimits(header_timeout_s=0.1, body_timeout_s=0.1))
    assert (await talk(slow, POST + framed)).startswith(b"HTTP/1.1 408 ")
    assert not rig.engines["u0"].exchanges
    assert not slow.engines["u0"].exchanges


async def test_a_slow_head_costs_nobody_else_anything(make: Make) -> None:
    rig = await make(wire=WireLimits(header_timeout_s=1.0))
    slow = [asyncio.create_task(talk(rig, b"POST /v1/com")) for _ in range(50)]
    assert (await rig.ask(PATH, ASK)).status == 200
    assert all(said.startswith(b"HTTP/1.1 408 ") for said in await asyncio.gather(*slow))
    await rig.until(lambda: not rig.server.connections)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b'{"model":"m","prompt":"\xff"}', "bad-json"),
        (b'{"model":"m","prompt":"\xc0\x80"}', "bad-json"),
        (b'{"model":"m","prompt":"\xed\xa0\x80"}', "bad-json"),
        (b'{"model":"m","prompt":"\\ud800"}', "bad-json"),
        (b'\xef\xbb\xbf{"model":"m","prompt":"x"}', "bad-json"),
        (b'{"model":"m","prompt":NaN}', "bad-json"),
        (b'{"model":"m","prompt":"x"}{}', "bad-json"),
        (b'{"model":"m","prompt":"x","prompt":"y"}', "duplicate-field"),
        (b'{"model":"m","prompt":"x","n":1,"\\u006e":1000}', "duplicate-field"),
        (b'{"model":"m","prompt":"x","stream":false,"stream":true}', "duplicate-field"),
        (b'{"model":"m","prompt":"x","a":' + b"[" * 70 + b"]" * 70 + b"}", "too-deep"),
        (b"[" * 100_000 + b"]" * 100_000, "bad-json"),
    ],
)
async def test_a_body_that_two_parsers_could_read_in_two_ways_is_refused(
    make: Make, body: bytes, code: str
) -> None:
    rig = await make()
    reply = await rig.ask(PATH, body)
    assert (reply.status, reply.error["code"]) == (400, code)
    assert not rig.engines["u0"].exchanges


async def test_one_key_has_so_many_requests_at_once(make: Make) -> None:
    keys = Credentials(client_keys=("sk-one", "sk-two"))
    rig = await make(credentials=keys, limits=Limits(max_inflight_per_key=2))
    rig.scheduler.hold = True
    one = {"Authorization": "Bearer sk-one"}
    held = [await rig.client() for _ in range(2)]
    for client in held:
        await client.send(PATH, ASK, headers=one)
    await rig.until(lambda: len(rig.scheduler.held) == 2)
    reply = await rig.ask(PATH, ASK, headers=one)
    assert (reply.status, reply.error["code"], reply.headers["retry-after"]) == (429, "key-inflight", "1")
    rig.scheduler.hold = False
    assert (await rig.ask(PATH, ASK, headers={"x-api-key": "sk-two"})).status == 200
    held[0].close()
    await rig.until(lambda: rig.app.inflight == 1)
    assert (await rig.ask(PATH, ASK, headers=one)).status == 200
    held[1].close()
    await rig.until(lambda: not rig.app.inflight)
    for _ in range(3):
        assert (await rig.ask(PATH, ASK, headers=one)).status == 200


def test_a_key_is_the_same_client_after_a_reload() -> None:
    class Said:
        def header(self, name: bytes) -> bytes | None:
            return b"Bearer sk" if name == b"authorization" else None

    said: Any = Said()
    assert Clients(("sk",), {}).who(said) == Clients(("other", "sk"), {}).who(said)


async def test_a_tenant_is_slowed_down_and_others_are_not(make: Make) -> None:
    rig = await make(
        credentials=Credentials(client_keys=("sk-any",)),
        tenants={"acme": {"keys": ["sk-acme"], "rate": {"per_second": 0.001, "burst": 2}}},
    )
    acme, anyone = ({"Authorization": f"Bearer sk-{who}"} for who in ("acme", "any"))
    assert [(await rig.ask(PATH, ASK, headers=acme)).status for _ in range(2)] == [200, 200]
    reply = await rig.ask(PATH, ASK, headers=acme)
    assert (reply.status, reply.error["code"]) == (429, "tenant-rate")
    assert int(reply.headers["retry-after"]) >= 1
    assert (await rig.ask(PATH, ASK, headers=anyone)).status == 200


LONG = "x" * 1_000_000


@pytest.mark.parametrize(
    ("path", "body", "headers"),
    [
        (PATH, {**ASK, "model": LONG}, {}),
        (PATH, {**ASK, "n": LONG}, {}),
        (PATH, orjson.dumps({LONG: 1})[:-1] + b"," + orjson.dumps({LONG: 2})[1:], {}),
        (f"/{LONG[:40_000]}", ASK, {}),
        (PATH, {**ASK, "prompt": [LONG, 7]}, {"X-Request-Id": LONG[:40_000]}),
    ],
    ids=["model", "count", "field", "path", "client id"],
)
async def test_what_a_client_writes_is_bounded_in_answers_and_logs(
    make: Make, caplog: pytest.LogCaptureFixture, path: str, body: Any, headers: dict[str, str]
) -> None:
    rig = await make()
    with caplog.at_level(logging.DEBUG):
        reply = await rig.ask(path, body, headers=headers)
    assert len(reply.body) < 2 * (MAX_MESSAGE + MAX_PARAM)
    assert len(reply.headers.get("x-request-id", "")) <= MAX_CLIENT_ID
    lines = [KeyValue().format(record) for record in caplog.records]
    assert max(map(len, lines), default=0) < 10_000
    assert not any(character in line for line in lines for character in "\r\n\x1b")


async def test_no_client_makes_a_label(make: Make) -> None:
    rig = await make()
    for n in range(20):
        await rig.ask(PATH, {**ASK, "model": f"made-up-{n}"})
        await rig.ask(f"/made/up/{n}", ASK)
        await rig.ask(PATH, {**ASK, f"field-{n}": 1, "kv": n})
    assert {path for _, path, _ in rig.metrics.done} <= {"completion", "other"}
    assert {outcome.reason for outcome, _, _ in rig.metrics.done} <= {"", "unknown-model", "unknown-path"}
    assert set(rig.metrics.fields) == {"kv"}


@pytest.mark.parametrize("more", [{"n": 1025}, {"prompt": ["x"] * 1025}, {"prompt": ["x"] * 33, "n": 32}])
async def test_a_request_for_too_many_answers_is_refused(make: Make, more: dict[str, Any]) -> None:
    rig = await make()
    reply = await rig.ask(PATH, {**ASK, **more})
    assert (reply.status, reply.error["param"]) == (400, "n")
    assert "at most 1024" in reply.error["message"]


async def test_no_prompt_is_logged(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    rig = await make()
    with caplog.at_level(logging.DEBUG):
        for more in ({}, {"n": 5000}, {"model": "none"}):
            await rig.ask(PATH, {**ASK, "prompt": "a-secret-thought", **more})
        await rig.ask(PATH, b'{"prompt": "a-secret-thought')
        rig.engines["u0"].script = answers(200, completion("a-secret-thought")[:-9])
        await rig.ask(PATH, {**ASK, "prompt": "a-secret-thought"})
    lines = [KeyValue().format(record) for record in caplog.records]
    assert lines
    assert not [line for line in lines if "a-secret-thought" in line]


def test_below_the_top_level_the_last_of_two_names_counts() -> None:
    raw = b'{"sampling_params": {"n": 1, "n": 7}, "text": "x"}'
    parsed = JsonBody(raw)
    assert parsed.fields == json.loads(raw)
    prompt = prompt_of(PathKind.GENERATE, parsed)
    view = read(PathKind.GENERATE, parsed, "m", prompt, 7, Asked("r", 0.0, None, None, {}))
    assert view.n == 7
