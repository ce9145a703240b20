"""A trace played over HTTP: to a simulated engine, and to servers that refuse, break off or keep silent."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from orchestrator.sim.replay.life import Run
from orchestrator.sim.replay.player import PATH, Player, Server
from orchestrator.sim.replay.requests import Requests
from orchestrator.sim.replay.trace import Entry, Trace
from orchestrator.sim.testing import SimProcess, spawn
from orchestrator.wire.exchange import Exchange
from orchestrator.wire.server import Handler, serve

TRACE = Trace(
    "t",
    (
        Entry(0.0, 1100, 5, (1, 2, 3)),
        Entry(0.2, 300, 1),
        Entry(3.0, 1100, 9, (1, 2, 4)),
    ),
    512,
)
"""The third comes when the first, two of whose blocks it shares, has long been computed."""


@pytest.fixture(scope="module")
def engine() -> Iterator[SimProcess]:
    with spawn((), common=("--speed", "10", "--enable-cache-report", "--served-model-name", "m")) as (one,):
        yield one


async def played(requests: Requests, server: Server, patience_s: float = 60.0) -> Run:
    return await Player(requests, server, patience_s=patience_s).play()


async def answered(handler: Handler, *entries: Entry, patience_s: float = 60.0) -> Run:
    server = await serve(handler, host="127.0.0.1", port=0)
    try:
        requests = Requests(Trace("t", entries))
        return await played(requests, Server("127.0.0.1", server.port, "m"), patience_s)
    finally:
        server.close()


async def test_an_engine_sees_the_trace(engine: SimProcess) -> None:
    told: list[tuple[int, int]] = []
    requests = Requests(TRACE, block_tokens=64, default_class="interactive")
    player = Player(
        requests,
        Server("127.0.0.1", engine.port, "m"),
        rate=10.0,
        on_progress=lambda sent, over: told.append((sent, over)),
    )
    run = await player.play()
    assert [life.refused for life in run.lives] == ["", "", ""], "lengths are checked by the player itself"
    assert [life.cached_tokens for life in run.lives] == [0, 0, 1024]
    assert [life.view.arrived_s for life in run.lives] == pytest.approx([0.0, 0.02, 0.3])
    for life in run.lives:
        assert life.first_s is not None
        assert life.last_s is not None
        assert life.view.arrived_s < life.first_s <= life.last_s
    assert run.offered == 3
    assert run.rate == pytest.approx(10.0)
    assert 0 < run.gaps["client"].count <= 5 - 1 + 9 - 1, "an engine may send several tokens at once"
    assert told[-1] == (3, 3)
    client = player.client
    assert len(client.sent_late_s) == 3
    assert client.woke_late_s
    assert 0.0 < client.cpu_s < client.wall_s


async def test_what_is_asked_for() -> None:
    asked: list[Exchange] = []

    def handler(exchange: Exchange) -> None:
        asked.append(exchange)
        exchange.respond(429, b'{"error":{"message":"no","code":"slo-unreachable"}}')

    entries = (Entry(0.0, 4, 7, slo_class="batch"), Entry(0.0, 4, 7))
    server = await serve(handler, host="127.0.0.1", port=0)
    try:
        requests = Requests(Trace("t", entries), default_class="interactive")
        run = await played(requests, Server("127.0.0.1", server.port, "m", "secret"))
    finally:
        server.close()
    assert [life.refused for life in run.lives] == ["slo-unreachable"] * 2
    assert [life.first_s for life in run.lives] == [None, None]
    first, second = sorted(asked, key=lambda e: e.header(b"x-pdctl-class") is None)
    assert (first.method, first.path) == ("POST", PATH)
    assert first.header(b"x-pdctl-class") == b"batch"
    assert second.header(b"x-pdctl-class") is None, "the router's own default"
    assert first.header(b"authorization") == b"Bearer secret"
    assert b'"max_tokens":7,"ignore_eos":true' in first.body


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b'data: {"choices":[{"text":"x"}]}\n\n', "incomplete"),
        (b'data: {"choices":[{"text":"x"}]}\n\ndata: {"error":{"code":"leg-failed"}}\n\n', "leg-failed"),
        (
            b'data: {"choices":[{"text":"x"}]}\n\ndata: {"choices":[],"usage":{"prompt_tokens":4,'
            b'"completion_tokens":1}}\n\ndata: [DONE]\n\n',
            "wrong-length",
        ),
        (
            b'data: {"choices":[{"text":"x"}]}\n\ndata: {"choices":[],"usage":{"prompt_tokens":5,'
            b'"completion_tokens":7}}\n\ndata: [DONE]\n\n',
            "wrong-prompt",
        ),
    ],
)
async def test_an_answer_that_is_not_what_was_asked_for(body: bytes, why: str) -> None:
    def handler(exchange: Exchange) -> None:
        exchange.start(200, ((b"content-type", b"text/event-stream"),))
        exchange.write(body)
        exchange.end()

    (life,) = (await answered(handler, Entry(0.0, 4, 7))).lives
    assert life.refused == why
    assert life.first_s is not None
    assert life.last_s is None
    assert life.tpot_s is None, "not kept, whatever is promised"


async def test_a_refusal_without_a_reason_and_a_cut_connection() -> None:
    def handler(exchange: Exchange) -> None:
        if b'"max_tokens":7' in exchange.body:
            exchange.respond(500, b"oh no")
        else:
            exchange.abort()

    refused, cut = (await answered(handler, Entry(0.0, 4, 7), Entry(0.0, 4, 8))).lives
    assert refused.refused == "status-500"
    assert cut.refused == "connection-dropped"


async def test_nobody_listens() -> None:
    server = await serve(lambda exchange: None, host="127.0.0.1", port=0)
    port = server.port
    server.close()
    await server.drained(10.0)
    run = await played(Requests(Trace("t", (Entry(0.0, 4, 7),))), Server("127.0.0.1", port, "m"))
    assert run.lives[0].refused == "connect-failed"


async def test_who_keeps_silent_is_not_waited_for_for_ever() -> None:
    (life,) = (await answered(lambda exchange: None, Entry(0.0, 4, 7), patience_s=0.05)).lives
    assert life.refused == "unanswered"
