"""Streams whose engine fails in the middle and that go on at another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import orjson
import pytest
from datapath import DONE, Adapter, Rig, Script, answers, build, event, streams, usage_event

from orchestrator.core.contracts import Reject
from orchestrator.core.types import End, Route
from orchestrator.topology.plan import Timeouts
from orchestrator.wire.server import Exchange

Make = Callable[..., Awaitable[Rig]]
PATH, CHAT = "/v1/completions", "/v1/chat/completions"
ASK = {"model": "m", "prompt": "hi", "stream": True, "max_tokens": 10}
ROUTES = [Route(decode="d0", prefill="p0"), Route(decode="d1", prefill="p1")]


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    """Builds rigs of two pairs, the first of which fails; each is checked to be at rest at the end."""
    rigs: list[Rig] = []

    async def build_one(first: Script, second: Script, **options: Any) -> Rig:
        rig = await build(**{"roles": "ppdd", "continuation": True, **options})
        rigs.append(rig)
        for name in ("p0", "p1"):
            rig.engines[name].script = answers(200, b'{"kv":[1],"cached":0}')
        rig.engines["d0"].script, rig.engines["d1"].script = first, second
        rig.scheduler.routes = list(ROUTES)
        return rig

    yield build_one
    for rig in rigs:
        await rig.at_rest()
        await rig.close()


def named(text: str, name: str) -> bytes:
    return event(text).replace(b'"id":"e"', b'"id":"%b"' % name.encode())


def breaks(*pieces: bytes) -> Script:
    return streams(*pieces, gap_s=0.01, cut=True)


async def hung(exchange: Exchange) -> None:
    exchange.start(200, ((b"content-type", b"text/event-stream"),))
    exchange.write(named(" a", "first"))
    await asyncio.get_running_loop().create_future()


ABORTED = b'data: {"id":"e","choices":[{"index":0,"text":"","finish_reason":"abort"}]}\n\n'
ERROR = b'data: {"error":{"message":"dead","code":500}}\n\n'


@pytest.mark.parametrize("chained", [False, True], ids=["at once", "chained"])
@pytest.mark.parametrize(
    "first",
    [
        breaks(named(" a", "first")),
        streams(named(" a", "first"), gap_s=0.01),
        streams(named(" a", "first"), ABORTED, DONE, gap_s=0.01),
        streams(named(" a", "first"), ERROR, gap_s=0.01),
        hung,
    ],
    ids=["dropped", "truncated", "aborted", "error", "late"],
)
async def test_it_goes_on_where_it_broke_off(make: Make, first: Script, chained: bool) -> None:
    second = streams(named(" b", "second") + named(" c", "second"), DONE)
    rig = await make(first, second, adapter=Adapter(chained=chained), timeouts=Timeouts(inter_token_s=0.1))
    reply = await rig.ask(PATH, ASK)
    assert reply.body == named(" a", "first") + named(" b", "first") + named(" c", "first") + DONE
    assert reply.whole
    await rig.at_rest()
    sent = rig.engines["d1"].bodies[0]
    assert (sent["prompt"], sent["max_tokens"]) == ("hi a", 9)
    assert rig.engines["p1"].bodies[0]["prompt"] == "hi a", "prefill computes what the client has"
    one, two = rig.scheduler.submitted
    assert two.avoid == ("d0",)
    assert two.prompt_tokens == one.prompt_tokens + 1
    assert [done.end for done in rig.scheduler.finished] == [End.BROKEN, End.COMPLETED]
    assert [done.end for done, _, _ in rig.metrics.done] == [End.COMPLETED]
    assert rig.metrics.retries == [("continuation", "again")]
    assert len(rig.metrics.ttfts) == 1


async def test_usage_counts_once(make: Make) -> None:
    rig = await make(
        breaks(event(" a"), event(" b")), streams(event(" c"), usage_event(prompt=5 + 2, completion=4), DONE)
    )
    reply = await rig.ask(PATH, ASK)
    usage = orjson.loads(reply.events()[-2].removeprefix(b"data: "))["usage"]
    assert usage == {"prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 11}
    await rig.at_rest()
    done = rig.metrics.done[0][0]
    assert (done.prompt_tokens, done.output_tokens) == (5, 6)


async def test_a_chat_does_not_say_again_who_speaks(make: Make) -> None:
    def chunk(**delta: str) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": None}
        return b"data: %b\n\n" % orjson.dumps({"id": "e", "choices": [choice]})

    role = chunk(role="assistant", content="")
    rig = await make(breaks(role, chunk(content="Hel")), streams(role, chunk(content="lo"), DONE))
    asked = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    reply = await rig.ask(CHAT, asked)
    assert reply.body == role + chunk(content="Hel") + chunk(content="lo") + DONE
    sent = rig.engines["d1"].bodies[0]
    assert sent["messages"][-1] == {"role": "assistant", "content": "Hel"}
    assert sent["continue_final_message"] is True


async def test_it_may_break_off_twice_and_then_ends_with_an_error(make: Make) -> None:
    rig = await make(streams(event(" a"), gap_s=0.01), streams(event(" b"), gap_s=0.01))
    rig.scheduler.routes = [*ROUTES, ROUTES[0], *ROUTES]
    reply = await rig.ask(PATH, ASK)
    assert reply.events()[:-1] == [event(t).strip() for t in (" a", " b", " a")]
    assert reply.error["code"] == "stream-truncated"
    assert reply.whole
    await rig.at_rest()
    assert rig.engines["d0"].bodies[1]["prompt"] == "hi a b"
    assert rig.metrics.done[0][0].end is End.BROKEN
    assert rig.metrics.retries[-1] == ("continuation", "attempts")


@pytest.mark.parametrize(
    ("options", "more"),
    [
        ({"continuation": False}, {}),
        ({}, {"logprobs": 1}),
        ({}, {"n": 1, "echo": True}),
        ({"retries": 0.0}, {}),
    ],
    ids=["off", "log-probabilities", "echo", "no budget"],
)
async def test_case_26_one_that_may_not_go_on_ends_in_an_error_event(
    make: Make, options: dict[str, Any], more: dict[str, Any]
) -> None:
    rig = await make(breaks(event(" a")), streams(event(" b"), DONE), **options)
    reply = await rig.ask(PATH, {**ASK, **more})
    assert reply.body.startswith(event(" a"))
    assert reply.error["code"] == "connection-dropped"
    assert not rig.engines["d1"].bodies


async def test_one_that_is_refused_on_the_way_ends_in_an_error_event(make: Make) -> None:
    rig = await make(breaks(event(" a")), streams(event(" b"), DONE))
    client = await rig.client()
    await client.send(PATH, ASK)
    await client.read(head_only=True)
    rig.scheduler.reject = Reject("", "no-capacity", "nobody is left", 503)
    body = b""
    while chunk := await client.chunk():
        body += chunk
    assert b'"code":"no-capacity"' in body
    assert DONE not in body


async def test_one_that_lacks_only_its_end_is_given_no_token_more(make: Make) -> None:
    rig = await make(breaks(event(" a"), event(" b")), streams(event(" c"), DONE))
    reply = await rig.ask(PATH, {**ASK, "max_tokens": 2})
    assert reply.events()[:-1] == [event(t).strip() for t in (" a", " b")]
    assert reply.error["code"] == "connection-dropped"
    assert not rig.engines["d1"].bodies


async def test_a_client_that_leaves_between_two_engines(make: Make) -> None:
    rig = await make(breaks(event(" a")), hung)
    client = await rig.client()
    await client.send(PATH, ASK)
    await rig.until(lambda: rig.engines["d1"].exchanges)
    client.close()
    await rig.until(lambda: not rig.app.inflight)
    assert rig.metrics.done[0][0].end is End.CANCELLED


async def test_a_long_answer_is_read_now_and_then_and_not_kept_for_ever(make: Make) -> None:
    piece = event("x" * 10_000)
    rig = await make(breaks(*[piece] * 20), streams(event("y"), DONE))
    reply = await rig.ask(PATH, {**ASK, "max_tokens": 21})
    assert reply.body == piece * 20 + event("y") + DONE
    assert len(rig.engines["d1"].bodies[0]["prompt"]) == 2 + 200_000
