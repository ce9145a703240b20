"""Legs as one unit: relays, failures, deadlines, leaving clients (legs, road, stages, record, answer)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import orjson
import pytest
from datapath import (
    DONE,
    Adapter,
    Client,
    Rig,
    answers,
    build,
    completion,
    event,
    hangs,
    streams,
    usage_event,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.clock import SystemClock
from orchestrator.core.types import End, Route
from orchestrator.topology.plan import Timeouts
from orchestrator.wire.client import ConnectError
from orchestrator.wire.server import Exchange

Make = Callable[..., Awaitable[Rig]]

CLOCK = SystemClock()
ASK = {"model": "m", "prompt": "hi"}
STREAM = {**ASK, "stream": True}
PREFILLED = answers(200, b'{"kv":[1],"cached":3}')
ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
FAILED = b'{"error":{"message":"engine says no","type":"x","param":null,"code":400}}'
ABORTED = b'{"choices":[{"index":0,"text":"","finish_reason":"abort"}]}'
BOTH = pytest.mark.parametrize("chained", [False, True], ids=["at once", "chained"])


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    """Builds rigs; each is checked to be at rest at the end, and taken down."""
    rigs: list[Rig] = []

    async def build_one(**options: Any) -> Rig:
        rig = await build(**{"retries": 0.0, **options})
        rigs.append(rig)
        if "p0" in rig.engines:
            rig.engines["p0"].script = PREFILLED
        return rig

    yield build_one
    for rig in rigs:
        await rig.at_rest()
        await rig.close()


def outcome(rig: Rig) -> Any:
    """The outcome of the only request."""
    [(done, _, _)] = rig.metrics.done
    assert done == rig.scheduler.finished[-1]
    return done


# -- what goes right


async def test_case_46_thousands_of_streams_at_once(make: Make) -> None:
    """As a gate; `scripts/bench streams` has 10,000, and the machine to itself."""
    rig, many = await make(), 2_000
    all_there = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        exchange.start(200, ((b"content-type", b"text/event-stream"),))
        exchange.write(event("a"))
        if len(rig.engines["d0"].exchanges) == many:
            all_there.set()
        await all_there.wait()
        for piece in (event("b"), usage_event(1, 2), DONE):
            exchange.write(piece)
        exchange.end()

    rig.engines["d0"].script = script
    replies = await asyncio.gather(*(rig.ask("/v1/completions", STREAM) for _ in range(many)))
    assert {reply.status for reply in replies} == {200}
    assert {reply.body for reply in replies} == {event("a") + event("b") + usage_event(1, 2) + DONE}
    await rig.at_rest()
    assert [done.end for done, _, _ in rig.metrics.done] == [End.COMPLETED] * many


@BOTH
async def test_a_stream_passes_untouched(make: Make, chained: bool) -> None:
    rig = await make(adapter=Adapter(chained=chained))
    pieces = (ROLE, event("a"), event("b"), usage_event(11, 22), DONE)
    rig.engines["d0"].script = streams(*pieces)
    reply = await rig.ask("/v1/completions", STREAM)
    assert reply.status == 200
    assert reply.whole
    assert reply.body == b"".join(pieces)
    assert reply.headers["content-type"] == "text/event-stream"
    await rig.at_rest()
    done = outcome(rig)
    assert done.end is End.COMPLETED
    assert (done.prompt_tokens, done.output_tokens, done.cached_tokens) == (11, 22, 3)
    assert done.route == Route(decode="d0", prefill="p0")
    assert 0 < done.ttft_s <= done.e2e_s
    told = ["queue", "connect", "prefill", *(["bind"] if chained else []), "first_token", "decode"]
    assert list(done.stages) == told
    assert sum(done.stages.values()) == pytest.approx(done.e2e_s)
    assert sum(done.stages.values()) - done.stages["decode"] == pytest.approx(done.ttft_s)
    assert sorted(rig.metrics.legs) == [("decode", "d0", "ok"), ("prefill", "p0", "ok")]
    assert rig.metrics.ttfts == [(done.ttft_s, "")]
    assert rig.metrics.classes == [("", 1)]
    assert done.tpot_s == pytest.approx((done.e2e_s - done.ttft_s) / 21)


@pytest.mark.parametrize("choices", [1, 2])
async def test_first_tokens_and_ends_are_counted_by_class(make: Make, choices: int) -> None:
    rig = await make(slo_classes={"gold": {}}, default_class="gold")
    rig.engines["d0"].script = streams(event("a"), event("b"), usage_event(11, 22), DONE)
    reply = await rig.ask("/v1/completions", STREAM | {"n": choices})
    assert reply.status == 200, reply.body
    await rig.at_rest()
    assert {name for _, name in rig.metrics.ttfts} == {"gold"}
    assert rig.metrics.classes == [("gold", choices)]


@BOTH
async def test_a_whole_answer_passes_untouched(make: Make, chained: bool) -> None:
    rig = await make(adapter=Adapter(chained=chained))
    body = completion("x", unknown=[1.50, {"a": None}])
    rig.engines["d0"].script = answers(200, body)
    reply = await rig.ask("/v1/completions", ASK)
    assert reply.status == 200
    assert reply.body == body
    assert reply.headers["content-type"] == "application/json"
    await rig.at_rest()
    done = outcome(rig)
    assert (done.prompt_tokens, done.output_tokens) == (5, 2)


@BOTH
async def test_what_the_scheduler_is_told(make: Make, chained: bool) -> None:
    rig = await make(adapter=Adapter(chained=chained))
    rig.engines["d0"].script = streams(event("a"), DONE)
    await rig.ask("/v1/completions", STREAM)
    await rig.at_rest()
    told = [(e.leg.value, e.endpoint, e.what) for e in rig.scheduler.events]
    expected = [
        ("prefill", "p0", "sent"),
        ("decode", "d0", "sent"),
        ("prefill", "p0", "done"),
        ("decode", "d0", "first_token"),
    ]
    assert sorted(told) == sorted(expected)
    if chained:
        assert told.index(expected[2]) < told.index(expected[1])
    assert all(a.at_s <= b.at_s for a, b in pairwise(rig.scheduler.events))


async def test_one_unified_leg(make: Make) -> None:
    rig = await make(roles="u")
    rig.engines["u0"].script = streams(event("a"), DONE)
    reply = await rig.ask("/v1/completions", STREAM)
    assert reply.body == event("a") + DONE
    await rig.at_rest()
    assert rig.metrics.legs == [("unified", "u0", "ok")]
    assert rig.engines["u0"].bodies[0]["room"] == 0


async def test_engines_answer_headers_pass_but_for_the_hops_own(make: Make) -> None:
    rig = await make(roles="u")

    async def script(exchange: Exchange) -> None:
        headers = (
            (b"content-type", b"application/json; x=y"),
            (b"x-custom", b"1"),
            (b"keep-alive", b"5"),
            (b"x-request-id", b"e"),
        )
        exchange.respond(200, b"{}", headers)

    rig.engines["u0"].script = script
    reply = await rig.ask("/tokenize", ASK, headers={"X-Request-Id": "mine"})
    assert reply.headers["x-custom"] == "1"
    assert reply.headers["content-type"] == "application/json; x=y"
    assert reply.headers["x-request-id"] == "mine"
    assert "keep-alive" not in reply.headers


async def test_the_client_has_everything_before_a_late_prefill_answer(make: Make) -> None:
    rig = await make()
    release = asyncio.Event()

    async def late(exchange: Exchange) -> None:
        await release.wait()
        exchange.respond(200, b'{"cached":4}')

    rig.engines["p0"].script = late
    rig.engines["d0"].script = streams(event("a"), DONE)
    reply = await rig.ask("/v1/completions", STREAM)
    assert reply.whole
    assert rig.app.inflight == 1
    release.set()
    await rig.at_rest()
    assert outcome(rig).cached_tokens == 4


async def test_answers_of_both_legs_are_merged_where_the_engine_needs_it(make: Make) -> None:
    for first in ("p0", "d0"):
        rig = await make(adapter=Adapter(merges=True))
        order = asyncio.Event()

        def script(body: bytes, waits: bool, order: asyncio.Event = order) -> Any:
            async def run(exchange: Exchange) -> None:
                if waits:
                    await order.wait()
                exchange.respond(200, body)
                await asyncio.sleep(0.01)
                order.set()

            return run

        rig.engines["p0"].script = script(b'{"p":1}', first != "p0")
        rig.engines["d0"].script = script(b'{"d":1}', first != "d0")
        reply = await rig.ask("/v1/completions", ASK)
        assert reply.body == b'{"p":1}{"d":1}'


async def test_answers_that_do_not_merge_are_an_error(make: Make) -> None:
    rig = await make(adapter=Adapter(merges=True))
    rig.engines["p0"].script = answers(200, b'{"unfit":1}')
    rig.engines["d0"].script = answers(200, completion("x"))
    reply = await rig.ask("/v1/completions", ASK)
    assert (reply.status, reply.error["code"]) == (502, "bad-answer")


@given(cuts=st.lists(st.integers(0, 2000), max_size=20), coarse=st.booleans())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_split_of_the_engines_bytes_is_relayed_the_same(cuts: list[int], coarse: bool) -> None:
    raw = ROLE + event("a") + event("b" * 300) + usage_event() + DONE
    places = sorted({0, len(raw), *(cut % (len(raw) + 1) for cut in cuts)})

    async def run() -> bytes:
        rig = await build()
        rig.engines["p0"].script = PREFILLED
        rig.engines["d0"].script = streams(
            *(raw[a:b] for a, b in pairwise(places)), gap_s=0.0 if coarse else 0.001
        )
        reply = await rig.ask("/v1/completions", STREAM)
        await rig.at_rest()
        await rig.close()
        assert reply.whole
        return reply.body

    assert asyncio.run(run()) == raw


# -- what goes wrong before the first byte


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("status", "told", "reason"), [(400, 400, "engine-refused"), (500, 502, "engine-error")]
)
async def test_an_engines_error_is_mapped(
    make: Make, stream: bool, status: int, told: int, reason: str
) -> None:
    rig = await make(roles="u")
    rig.engines["u0"].script = answers(status, FAILED)
    reply = await rig.ask("/v1/completions", {**ASK, "stream": stream})
    assert reply.status == told
    assert reply.error["message"] == "engine says no"
    assert reply.error["code"] == reply.headers["x-pdctl-reason"] == reason
    await rig.at_rest()
    assert outcome(rig).end is (End.REFUSED if told < 500 else End.FAILED)
    assert rig.metrics.legs == [("unified", "u0", reason)]


FIRST_EVENTS = {
    "error": b"data: " + FAILED + b"\n\n" + DONE,
    "error after the role": ROLE + b"data: " + FAILED + b"\n\n" + DONE,
    "finish reason error": b"data: " + ABORTED.replace(b"abort", b"error") + b"\n\n" + DONE,
}


@pytest.mark.parametrize("name", FIRST_EVENTS)
async def test_case_27_a_first_event_that_is_a_failure_is_never_200(make: Make, name: str) -> None:
    rig = await make()
    rig.engines["p0"].script = hangs
    rig.engines["d0"].script = streams(FIRST_EVENTS[name])
    reply = await rig.ask("/v1/completions", STREAM)
    assert reply.status in (400, 502)
    assert "error" in reply.json()
    await rig.at_rest()
    assert rig.engines["p0"].left == ["/v1/completions"]


async def test_case_27_a_whole_answer_that_is_a_failure_is_never_200(make: Make) -> None:
    rig = await make(roles="u")
    rig.engines["u0"].script = answers(200, ABORTED.replace(b"abort", b"error"))
    reply = await rig.ask("/v1/completions", ASK)
    assert (reply.status, reply.error["code"]) == (502, "engine-error")


@pytest.mark.parametrize("pieces", [(), (ROLE,), (ROLE, b"data: {")])
@pytest.mark.parametrize("cut", [False, True])
async def test_a_stream_that_ends_before_it_began(make: Make, pieces: tuple[bytes, ...], cut: bool) -> None:
    rig = await make()
    rig.engines["d0"].script = streams(*pieces, cut=cut)
    reply = await rig.ask("/v1/completions", STREAM)
    assert reply.status == 502
    assert reply.error["code"] == ("connection-dropped" if cut else "stream-truncated")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("status", [400, 500])
async def test_case_13_prefill_fails_while_decode_waits(make: Make, stream: bool, status: int) -> None:
    rig = await make()
    rig.engines["p0"].script = answers(status, FAILED)
    rig.engines["d0"].script = hangs
    reply = await rig.ask("/v1/completions", {**ASK, "stream": stream})
    assert (reply.status, reply.error["code"]) == (502, "prefill-failed")
    await rig.at_rest()
    assert rig.engines["d0"].left == ["/v1/completions"]
    await rig.until(lambda: rig.engines["d0"].aborted)
    assert rig.engines["d0"].aborted == [f"{outcome(rig).request_id}-d0"]
    assert sorted(rig.metrics.legs) == [("decode", "d0", "aborted"), ("prefill", "p0", "prefill-failed")]


async def test_decode_fails_while_prefill_runs(make: Make) -> None:
    rig = await make()
    rig.engines["p0"].script = hangs
    rig.engines["d0"].script = answers(500, FAILED)
    reply = await rig.ask("/v1/completions", STREAM)
    assert (reply.status, reply.error["code"]) == (502, "engine-error")
    await rig.at_rest()
    assert rig.engines["p0"].left == ["/v1/completions"]
    await rig.until(lambda: rig.engines["p0"].aborted)


@BOTH
@pytest.mark.parametrize("victim", ["p0", "d0"])
async def test_a_dropped_connection_fails_the_unit(make: Make, chained: bool, victim: str) -> None:
    rig = await make(adapter=Adapter(chained=chained))

    async def drop(exchange: Exchange) -> None:
        exchange.abort()

    rig.engines["d0"].script = hangs
    rig.engines[victim].script = drop
    reply = await rig.ask("/v1/completions", ASK)
    assert (reply.status, reply.error["code"]) == (502, "connection-dropped")
    assert victim in reply.error["message"]
    assert [name for name, _ in rig.fleet.troubles] == [victim]


async def test_a_dead_peer_is_found_before_anything_is_sent(make: Make) -> None:
    rig = await make()
    await rig.engines["d0"].stop()
    reply = await rig.ask("/v1/completions", ASK)
    assert (reply.status, reply.error["code"]) == (502, "connect-failed")
    assert not rig.engines["p0"].exchanges
    assert isinstance(rig.fleet.troubles[0][1], ConnectError)
    await rig.at_rest()
    assert rig.metrics.legs[0] == ("decode", "d0", "connect-failed")


async def test_decode_that_dies_after_prefill(make: Make) -> None:
    rig = await make(adapter=Adapter(chained=True))
    await rig.engines["d0"].stop()
    reply = await rig.ask("/v1/completions", ASK)
    assert (reply.status, reply.error["code"]) == (502, "connect-failed")
    assert ("prefill", "p0", "ok") in rig.metrics.legs


async def test_an_adapter_that_raises_costs_one_request(make: Make) -> None:
    rig = await make(adapter=Adapter(chained=True))
    rig.engines["p0"].script = answers(200, b'{"no":"kv"}')
    reply = await rig.ask("/v1/completions", ASK)
    assert (reply.status, reply.error["code"]) == (500, "internal")
    assert "kv" not in reply.body.decode()


async def test_an_answer_that_is_not_http(make: Make) -> None:
    async def garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"SSH-2.0-what\r\n")
        await reader.read()
        writer.close()

    rig = await make(roles="u")
    server = await asyncio.start_server(garbage, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    rig.fleet.change(u0=replace(rig.fleet.endpoints["u0"], url=f"http://127.0.0.1:{port}"))
    reply = await rig.ask("/v1/completions", ASK)
    assert (reply.status, reply.error["code"]) == (502, "bad-answer")
    server.close()


# -- what goes wrong after it


async def broken(rig: Rig, reason: str) -> None:
    """A client sees a stream that has begun end in an error event, cleanly and without the final mark."""
    reply = await rig.ask("/v1/completions", STREAM)
    assert reply.status == 200
    assert reply.whole
    assert reply.body.startswith(event("a"))
    assert DONE not in reply.body
    assert reply.error["code"] == reason
    await rig.at_rest()
    done = outcome(rig)
    assert (done.end, done.http_status, done.reason) == (End.BROKEN, 200, reason)


async def test_case_26_a_stream_cut_short_ends_in_an_error_event(make: Make) -> None:
    rig = await make()
    rig.engines["d0"].script = streams(event("a"), b'data: {"half', gap_s=0.005)
    await broken(rig, "stream-truncated")


async def test_case_26_a_dropped_stream_ends_in_an_error_event(make: Make) -> None:
    rig = await make()
    rig.engines["d0"].script = streams(event("a"), b'data: {"half', gap_s=0.005, cut=True)
    await broken(rig, "connection-dropped")


async def test_an_engines_error_event_is_mapped_and_ends_the_stream(make: Make) -> None:
    rig = await make()
    rig.engines["d0"].script = streams(
        event("a"), b"data: " + FAILED + b"\n\n" + DONE, event("never"), gap_s=0.005
    )
    await broken(rig, "engine-refused")


async def test_an_abort_in_the_middle_passes_and_is_booked(make: Make) -> None:
    rig = await make()
    rig.engines["d0"].script = streams(event("a"), b"data: " + ABORTED + b"\n\n", DONE)
    reply = await rig.ask("/v1/completions", STREAM)
    assert reply.body.endswith(ABORTED + b"\n\n" + DONE)
    await rig.at_rest()
    assert (outcome(rig).end, outcome(rig).reason) == (End.BROKEN, "engine-aborted")


@pytest.mark.parametrize("how", ["error", "drop"])
async def test_case_25_a_stream_does_not_wait_for_prefills_answer(make: Make, how: str) -> None:
    rig = await make()
    begun, over = asyncio.Event(), asyncio.Event()

    async def prefill(exchange: Exchange) -> None:
        await begun.wait()
        if how == "error":
            exchange.respond(500, FAILED)
        else:
            exchange.abort()
        await asyncio.sleep(0.02)
        over.set()

    async def decode(exchange: Exchange) -> None:
        exchange.start(200, ((b"content-type", b"text/event-stream"),))
        exchange.write(event("a"))
        await asyncio.sleep(0.02)
        begun.set()
        await over.wait()
        exchange.write(event("b") + DONE)
        exchange.end()

    rig.engines["p0"].script, rig.engines["d0"].script = prefill, decode
    reply = await rig.ask("/v1/completions", STREAM)
    assert reply.body == event("a") + event("b") + DONE
    await rig.at_rest()
    assert outcome(rig).end is End.COMPLETED


# -- deadlines


def soon(**stages: float) -> dict[str, Timeouts]:
    return {"timeouts": Timeouts(**{f"{name}_s": seconds for name, seconds in stages.items()})}


async def test_case_19_prefill_has_a_deadline(make: Make) -> None:
    rig = await make(**soon(prefill=0.05))
    rig.engines["p0"].script = rig.engines["d0"].script = hangs
    reply = await rig.ask("/v1/completions", STREAM)
    assert (reply.status, reply.error["code"]) == (504, "prefill-deadline")
    assert "p0" in reply.error["message"]
    await rig.at_rest()
    for engine in rig.engines.values():
        assert engine.left == ["/v1/completions"]
    await rig.until(lambda: all(engine.aborted for engine in rig.engines.values()))


async def test_case_19_a_class_may_have_deadlines_of_its_own(make: Make) -> None:
    rig = await make(slo_classes={"soon": {"timeouts": {"prefill_s": 0.05}}, "late": {}})
    rig.engines["p0"].script = rig.engines["d0"].script = hangs
    client = await rig.client()
    await client.send("/v1/completions", STREAM, headers={"x-pdctl-class": "late"})
    reply = await rig.ask("/v1/completions", STREAM, headers={"x-pdctl-class": "soon"})
    assert (reply.status, reply.error["code"]) == (504, "prefill-deadline")
    assert rig.app.inflight == 1, "the other class waits by the router's deadlines"
    client.close()


@BOTH
async def test_case_19_the_first_token_has_a_deadline(make: Make, chained: bool) -> None:
    rig = await make(adapter=Adapter(chained=chained), **soon(first_token=0.05))
    rig.engines["d0"].script = streams(ROLE, gap_s=30.0)
    reply = await rig.ask("/v1/completions", STREAM)
    assert (reply.status, reply.error["code"]) == (504, "first-token-deadline")
    assert "d0" in reply.error["message"]


async def test_the_first_tokens_deadline_waits_for_prefill(make: Make) -> None:
    rig = await make(**soon(prefill=1000.0, first_token=100.0))
    ready = asyncio.Event()

    async def prefill(exchange: Exchange) -> None:
        await ready.wait()
        exchange.respond(200, b"{}")

    async def decode(exchange: Exchange) -> None:
        await ready.wait()
        await streams(event("a"), DONE)(exchange)

    rig.engines["p0"].script, rig.engines["d0"].script = prefill, decode
    client = await rig.client()
    await client.send("/v1/completions", STREAM)
    await rig.until(lambda: all(engine.exchanges for engine in rig.engines.values()))
    [unit] = rig.app.units
    unit.check(CLOCK.now_s() + 500.0)
    ready.set()
    assert (await client.read()).status == 200


async def test_case_19_a_gap_has_a_deadline(make: Make) -> None:
    rig = await make(**soon(inter_token=0.1))
    rig.engines["d0"].script = streams(event("a"), gap_s=30.0)
    await broken(rig, "inter-token-deadline")


@pytest.mark.parametrize("stream", [False, True])
async def test_case_19_the_whole_has_a_deadline(make: Make, stream: bool) -> None:
    rig = await make(**soon(total=0.1))
    rig.engines["p0"].script = rig.engines["d0"].script = hangs
    reply = await rig.ask("/v1/completions", {**ASK, "stream": stream})
    assert (reply.status, reply.error["code"]) == (504, "total-deadline")


async def test_case_20_a_hung_engine_holds_up_no_other(make: Make) -> None:
    rig = await make(roles="pdd")
    rig.engines["d0"].script = hangs
    rig.engines["d1"].script = streams(event("a"), DONE)
    held = await rig.client()
    await held.send("/v1/completions", STREAM)
    await rig.until(lambda: rig.engines["d0"].exchanges)
    rig.scheduler.route = Route(decode="d1", prefill="p0")
    for _ in range(5):
        assert (await rig.ask("/v1/completions", STREAM)).status == 200
    held.close()


# -- the client leaves


async def leaving(rig: Rig, body: Any, when: Callable[[], object]) -> Client:
    """A client that goes once `when` holds."""
    client = await rig.client()
    await client.send("/v1/completions", body)
    await rig.until(when)
    client.close()
    return client


async def gone(rig: Rig) -> None:
    """Everything of the request is gone, and its outcome says why."""
    await rig.at_rest()
    assert outcome(rig).end is End.CANCELLED
    assert outcome(rig).reason == "client-left"


async def test_a_client_that_leaves_at_the_final_mark_has_everything(make: Make) -> None:
    """SDKs close at `[DONE]`, before the engine has ended its body."""
    rig = await make()

    left = asyncio.Event()

    async def ends_late(exchange: Exchange) -> None:
        exchange.start(200, ((b"content-type", b"text/event-stream"),))
        exchange.write(event("a") + usage_event(11, 22) + DONE)
        await left.wait()
        exchange.end()

    rig.engines["d0"].script = ends_late
    reply = await rig.ask("/v1/completions", STREAM)
    assert reply.whole
    assert not rig.metrics.done
    left.set()
    await rig.at_rest()
    assert outcome(rig).end is End.COMPLETED
    assert outcome(rig).output_tokens == 22
    assert ("decode", "d0", "ok") in rig.metrics.legs


async def test_case_15_the_client_leaves_while_queued(make: Make) -> None:
    rig = await make()
    rig.scheduler.hold = True
    await leaving(rig, ASK, lambda: rig.scheduler.held)
    await gone(rig)
    assert rig.scheduler.cancelled == [outcome(rig).request_id]
    assert not rig.engines["p0"].exchanges


@BOTH
@pytest.mark.parametrize("stream", [False, True])
async def test_case_15_the_client_leaves_during_prefill(make: Make, chained: bool, stream: bool) -> None:
    rig = await make(adapter=Adapter(chained=chained))
    rig.engines["p0"].script = rig.engines["d0"].script = hangs
    legs = 1 if chained else 2
    await leaving(
        rig, {**ASK, "stream": stream}, lambda: sum(len(e.exchanges) for e in rig.engines.values()) == legs
    )
    await gone(rig)
    await rig.until(lambda: rig.engines["p0"].aborted)
    assert rig.engines["p0"].aborted == [f"{outcome(rig).request_id}-p0"]
    assert rig.engines["d0"].aborted == ([] if chained else [f"{outcome(rig).request_id}-d0"])
    assert outcome(rig).http_status == 499


async def test_case_14_the_client_leaves_between_the_legs(make: Make) -> None:
    rig = await make(adapter=Adapter(chained=True))
    rig.engines["d0"].script = hangs
    await leaving(rig, STREAM, lambda: rig.engines["d0"].exchanges)
    await gone(rig)
    await rig.until(lambda: rig.engines["d0"].aborted)
    assert rig.engines["d0"].left == ["/v1/completions"]
    assert not rig.engines["p0"].aborted


async def test_the_client_leaves_while_a_leg_connects(make: Make) -> None:
    # A full accept queue, where a connect never ends.
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen(0)
        address = sock.getsockname()
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(address)
        rig = await make(timeouts=Timeouts(connect_s=30.0))
        rig.fleet.change(d0=replace(rig.fleet.endpoints["d0"], url=f"http://127.0.0.1:{address[1]}"))
        await leaving(rig, STREAM, lambda: rig.pool.stats.made)
        await gone(rig)
        assert rig.pool.stats.idle == 1, "prefill's unused connection was not kept"
        assert not rig.engines["p0"].exchanges
        for filler in fillers:
            filler.close()


async def test_case_15_the_client_leaves_in_mid_stream(make: Make) -> None:
    rig = await make()
    rig.engines["d0"].script = streams(event("a"), gap_s=30.0)
    client = await rig.client()
    await client.send("/v1/completions", STREAM)
    assert (await client.read(head_only=True)).status == 200
    assert await client.chunk() == event("a")
    client.close()
    await gone(rig)
    await rig.until(lambda: rig.engines["d0"].aborted)
    assert rig.engines["d0"].left == ["/v1/completions"]
    assert outcome(rig).http_status == 200


async def test_a_slow_client_slows_the_engine_and_loses_nothing(make: Make) -> None:
    rig = await make(**soon(inter_token=100.0))
    piece = event("a" * 60_000)
    sent = 0

    async def decode(exchange: Exchange) -> None:
        nonlocal sent
        free = asyncio.Event()
        free.set()
        exchange.on_pause, exchange.on_resume = free.clear, free.set
        exchange.start(200, ((b"content-type", b"text/event-stream"),))
        while sent < 500:
            await free.wait()
            exchange.write(piece)
            sent += 1
            await asyncio.sleep(0)
        exchange.write(DONE)
        exchange.end()

    rig.engines["d0"].script = decode
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", rig.server.port))
    client = Client(*await asyncio.open_connection(sock=sock, limit=65536))
    rig.clients.append(client)
    await client.send("/v1/completions", STREAM)
    before = -1
    while sent != before or not sent:
        before = sent
        await asyncio.sleep(0.1)
    assert sent < 500
    # Past the deadline of a gap: a client's slowness is not the engine's.
    [unit] = rig.app.units
    unit.check(CLOCK.now_s() + 500.0)
    reply = await client.read()
    assert reply.whole
    assert reply.body == piece * 500 + DONE


async def test_a_slow_client_that_leaves(make: Make) -> None:
    rig = await make()
    piece = event("a" * 60_000)
    rig.engines["d0"].script = streams(*[piece] * 500)
    client = await rig.client()
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    await client.send("/v1/completions", STREAM)
    await rig.until(lambda: rig.server.connections and any(c.paused for c in _exchanges(rig)))
    client.close()
    await gone(rig)


def _exchanges(rig: Rig) -> list[Exchange]:
    return [unit.exchange for unit in rig.app.units]


async def test_a_late_leg_is_cut_in_the_end(make: Make) -> None:
    rig = await make()
    rig.engines["p0"].script = hangs
    rig.engines["d0"].script = streams(event("a"), DONE)
    assert (await rig.ask("/v1/completions", STREAM)).whole
    [unit] = rig.app.units
    unit.check(1e12)
    await rig.at_rest()
    assert outcome(rig).end is End.COMPLETED
    assert ("prefill", "p0", "aborted") in rig.metrics.legs


async def test_gaps_are_counted(make: Make) -> None:
    rig = await make()
    rig.engines["d0"].script = streams(event("a"), event("b"), event("c"), DONE, gap_s=0.01)
    await rig.ask("/v1/completions", STREAM)
    await rig.at_rest()
    assert 1 <= len(rig.metrics.itls) <= 3
    assert all(gap > 0 for gap in rig.metrics.itls)


async def test_connections_to_engines_are_reused(make: Make) -> None:
    rig = await make()
    rig.engines["d0"].script = answers(200, completion("x"))
    client = await rig.client()
    for _ in range(10):
        assert (await client.ask("/v1/completions", ASK)).status == 200
        await rig.at_rest()
    assert rig.pool.stats.made == 2
    assert orjson.loads(completion("x"))["usage"]["total_tokens"] == 7
