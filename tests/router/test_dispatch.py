"""One request's life, and what it may be refused for on the way (intake, handover, budget, rooms)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any

import orjson
import pytest
from datapath import (
    DONE,
    Adapter,
    Rig,
    answers,
    build,
    completion,
    event,
    hangs,
    streams,
    usage_event,
)

from orchestrator.core.contracts import Reject
from orchestrator.core.types import End, PathKind, Role, Route
from orchestrator.router.settings import wire_limits
from orchestrator.topology.plan import Credentials, Limits, Timeouts
from orchestrator.wire.server import Exchange

Make = Callable[..., Awaitable[Rig]]

ASK = {"model": "m", "prompt": "hi"}
STREAM = {**ASK, "stream": True}
PREFILLED = answers(200, b'{"kv":[1]}')
PATH = "/v1/completions"


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    """Builds rigs; each is checked to be at rest at the end, and taken down."""
    rigs: list[Rig] = []

    async def build_one(**options: Any) -> Rig:
        rig = await build(**options)
        rigs.append(rig)
        for engine in rig.engines.values():
            engine.script = PREFILLED if engine.role is Role.PREFILL else answers(200, completion("x"))
        return rig

    yield build_one
    for rig in rigs:
        await rig.at_rest()
        await rig.close()


# -- identity and bytes


async def test_every_answer_names_its_request(make: Make) -> None:
    rig = await make()
    good = await rig.ask(PATH, ASK, headers={"X-Request-Id": "mine"})
    bad = await rig.ask(PATH, b"{", headers={"X-Request-Id": "mine"})
    none = await rig.ask("/nope", ASK)
    ids = [reply.headers["x-pdctl-request-id"] for reply in (good, bad, none)]
    assert all(len(one) == 32 and int(one, 16) for one in ids)
    assert len(set(ids)) == 3
    assert good.headers["x-request-id"] == bad.headers["x-request-id"] == "mine"
    assert "x-request-id" not in none.headers
    await rig.at_rest()
    assert rig.scheduler.submitted[0].id == ids[0]
    assert rig.adapter.requests[0].request_id == ids[0]


async def test_the_clients_bytes_reach_the_engines(make: Make) -> None:
    rig = await make()
    raw = b'{ "model":"m" ,"prompt":"hi", "temperature":0.7, "unknown":{"a":[1e2, null]},"big":123456789012}'
    assert (await rig.ask(PATH, raw)).status == 200
    sent = rig.engines["d0"].exchanges[0].body
    assert sent.endswith(raw[1:])
    assert set(rig.engines["d0"].bodies[0]) == {"room", "model", "prompt", "temperature", "unknown", "big"}
    assert rig.engines["p0"].bodies[0]["max_tokens"] == 1


async def test_case_29_keys_stay_apart(make: Make) -> None:
    keys = Credentials(client_keys=("sk-client",), engine_key="sk-engine")
    rig = await make(credentials=keys, pass_headers=("authorization", "x-api-key", "x-trace"))
    headers = {"Authorization": "Bearer sk-client", "X-Api-Key": "sk-client", "X-Trace": "t", "X-Other": "o"}
    assert (await rig.ask(PATH, ASK, headers=headers)).status == 200
    for engine in rig.engines.values():
        seen = dict(engine.exchanges[0].headers)
        assert seen[b"authorization"] == b"Bearer sk-engine"
        assert b"sk-client" not in b"".join(value for _, value in engine.exchanges[0].headers)
        assert seen[b"x-trace"] == b"t"
        assert b"x-other" not in seen
        assert seen[b"content-type"] == b"application/json"
        assert seen[b"host"] == engine.url.removeprefix("http://").encode()


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, "missing-key"),
        ({"Authorization": "Bearer nope"}, "wrong-key"),
        ({"Authorization": "Basic sk-client"}, "missing-key"),
        ({"X-Api-Key": "nope"}, "wrong-key"),
    ],
)
async def test_without_a_known_key_nobody_comes_in(make: Make, headers: dict[str, str], code: str) -> None:
    rig = await make(credentials=Credentials(client_keys=("sk-client",)))
    for path, method in ((PATH, "POST"), ("/v1/models", "GET"), ("/nope", "GET"), ("/server_info", "GET")):
        reply = await rig.ask(path, ASK, method=method, headers=headers)
        assert (reply.status, reply.error["code"]) == (401, code)
    assert (await rig.ask("/health", method="GET")).status == 200
    assert (await rig.ask("/ready", method="GET")).status == 200
    assert not rig.engines["p0"].exchanges


async def test_tenants_have_keys_and_classes_of_their_own(make: Make) -> None:
    rig = await make(
        credentials=Credentials(client_keys=("sk-any",)),
        tenants={"acme": {"keys": ["sk-acme"], "slo_class": "gold"}},
        slo_classes={"gold": {}, "iron": {}},
        default_class="iron",
    )
    for key in ("sk-any", "sk-acme"):
        await rig.ask(PATH, ASK, headers={"Authorization": f"Bearer {key}"})
    headers = {"Authorization": "Bearer sk-acme", "x-pdctl-class": "iron"}
    await rig.ask(PATH, ASK, headers=headers)
    wrong = await rig.ask(PATH, ASK, headers={**headers, "x-pdctl-class": "tin"})
    assert (wrong.status, wrong.error["code"]) == (400, "unknown-class")
    assert "gold, iron" in wrong.error["message"]
    told = [(view.tenant, view.slo_class) for view in rig.scheduler.submitted]
    assert told == [(None, "iron"), ("acme", "gold"), ("acme", "iron")]


async def test_guarded_fields_and_headers_are_counted_and_never_arrive(make: Make) -> None:
    rig = await make(pass_headers=("x-rank", "x-fine"))
    headers = {"X-Rank": "1", "X-Fine": "2"}
    assert (await rig.ask(PATH, {**ASK, "kv": {"steal": 1}}, headers=headers)).status == 200
    assert sorted(rig.metrics.fields) == ["kv", "x-rank"]
    for engine in rig.engines.values():
        assert "kv" not in engine.bodies[0]
        assert engine.exchanges[0].header(b"x-rank") is None
        assert engine.exchanges[0].header(b"x-fine") == b"2"
    assert rig.scheduler.submitted[0].headers == {"x-fine": "2"}


async def test_case_21_rooms_are_the_routers_own_and_unique(make: Make) -> None:
    rig = await make()
    rig.engines["d0"].script = hangs
    clients = [await rig.client() for _ in range(20)]
    for client in clients:
        await client.send(PATH, {**ASK, "room": 5})
    await rig.until(lambda: len(rig.engines["p0"].bodies) == 20)
    rooms = [body["room"] for body in rig.engines["p0"].bodies]
    assert len(set(rooms)) == 20
    assert all(0 < room < 2**63 for room in rooms)
    assert 5 not in rooms
    assert len(rig.app.rooms) == 20
    for client in clients:
        client.close()


# -- refused at the door


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "bad-json"),
        (b"[1]", 400, "bad-json"),
        (b'{"model":"m","model":"n"}', 400, "duplicate-field"),
        ({"prompt": "x", "model": "other"}, 404, "unknown-model"),
        ({"prompt": "x", "model": 7}, 400, "bad-request"),
        ({**ASK, "n": 0}, 400, "bad-request"),
        ({**ASK, "n": 1025}, 400, "bad-request"),
        ({**ASK, "max_tokens": "many"}, 400, "bad-request"),
        ({**ASK, "impossible": True}, 400, "unsupported"),
    ],
)
async def test_what_no_engine_is_asked(make: Make, body: Any, status: int, code: str) -> None:
    rig = await make()
    reply = await rig.ask(PATH, body)
    assert (reply.status, reply.error["code"]) == (status, code)
    assert set(reply.error) == {"message", "type", "param", "code"}
    await rig.at_rest()
    assert not rig.scheduler.submitted
    [(done, path, _)] = rig.metrics.done
    assert (done.end, done.http_status, done.reason, path) == (End.REFUSED, status, code, "completion")


async def test_case_30_token_ids_over_the_limit_are_refused_with_it(make: Make) -> None:
    rig = await make()
    rig.fleet.change(d0=replace(rig.fleet.endpoints["d0"], max_model_len=8))
    ask = {"model": "m", "prompt": [1] * 8}
    reply = await rig.ask(PATH, ask)
    assert (reply.status, reply.error["code"]) == (400, "prompt-too-long")
    assert "limit of 8" in reply.error["message"]
    assert (await rig.ask(PATH, {**ask, "prompt": [1] * 7})).status == 200


async def test_case_28_a_body_over_the_limit_is_told_the_limit(make: Make) -> None:
    rig = await make(wire=wire_limits(Limits(max_body_bytes=1000)))
    reply = await rig.ask(PATH, {**ASK, "prompt": "a" * 2000})
    assert (reply.status, reply.error["code"]) == (413, "too-large")
    assert "1000 bytes" in reply.error["message"]
    assert reply.headers["x-pdctl-reason"] == "too-large"
    counted, _, _ = rig.metrics.done[-1]
    assert (counted.request_id, counted.http_status) == (reply.headers["x-pdctl-request-id"], 413)


async def test_a_model_need_not_be_named_where_there_is_one(make: Make) -> None:
    rig = await make()
    assert (await rig.ask("/generate", {"text": "hi"})).status == 200
    rig.fleet.change(d0=replace(rig.fleet.endpoints["d0"], model="n"))
    reply = await rig.ask("/generate", {"text": "hi"})
    assert (reply.status, reply.error["param"]) == (400, "model")


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages", "/v1/embeddings", "/tokenize"])
async def test_paths_that_pairs_do_not_serve(make: Make, path: str) -> None:
    rig = await make()
    body = {"model": "m", "input": "x", "messages": [], "prompt": "x"}
    reply = await rig.ask(path, body)
    assert (reply.status, reply.error["code"]) == (404, "path-not-served")
    assert "unified" in reply.error["message"]
    unified = await make(roles="u")
    unified.engines["u0"].script = answers(200, b'{"fine":1}')
    reply = await unified.ask(path, body)
    assert (reply.status, reply.body) == (200, b'{"fine":1}')
    assert unified.engines["u0"].exchanges[0].path == path


async def test_responses_that_refer_to_others_are_refused(make: Make) -> None:
    rig = await make(roles="u")
    body = {"model": "m", "input": "x", "previous_response_id": "resp_1"}
    reply = await rig.ask("/v1/responses", body)
    assert (reply.status, reply.error["code"]) == (400, "not-stored")
    assert (await rig.ask("/v1/responses", {**body, "previous_response_id": None})).status == 200


async def test_streams_without_a_final_mark(make: Make) -> None:
    rig = await make(roles="u")
    raw = b'event: a\ndata: {"type":"a"}\n\nevent: message_stop\ndata: {"type":"message_stop"}\n\n'
    rig.engines["u0"].script = streams(raw)
    reply = await rig.ask("/v1/messages", {"model": "m", "messages": [], "stream": True})
    assert reply.whole
    assert reply.body == raw


# -- the scheduler's word


@pytest.mark.parametrize(("status", "retry", "header"), [(429, 1.2, "2"), (503, None, None), (429, 0.1, "1")])
async def test_a_rejection_is_told_as_it_is(
    make: Make, status: int, retry: float | None, header: str | None
) -> None:
    rig = await make()
    rig.scheduler.reject = Reject("", "queue-full", "come back later", status, retry)
    reply = await rig.ask(PATH, ASK)
    assert (reply.status, reply.error["code"], reply.error["message"]) == (
        status,
        "queue-full",
        "come back later",
    )
    assert reply.headers.get("retry-after") == header
    assert reply.headers["x-pdctl-reason"] == "queue-full"
    await rig.at_rest()
    assert rig.scheduler.finished[0].end is End.REFUSED
    assert rig.scheduler.finished[0].route is None


async def test_no_more_than_so_many_at_once(make: Make) -> None:
    rig = await make(limits=Limits(max_inflight=2))
    rig.scheduler.hold = True
    held = [await rig.client() for _ in range(2)]
    for client in held:
        await client.send(PATH, ASK)
    await rig.until(lambda: len(rig.scheduler.held) == 2)
    reply = await rig.ask(PATH, ASK)
    assert (reply.status, reply.error["code"], reply.headers["retry-after"]) == (
        429,
        "too-many-requests",
        "1",
    )
    assert rig.app.inflight == 2
    for client in held:
        client.close()


async def test_an_endpoint_that_was_removed_meanwhile(make: Make) -> None:
    rig = await make()
    rig.scheduler.route = Route(decode="gone", prefill="p0")
    reply = await rig.ask(PATH, ASK)
    assert (reply.status, reply.error["code"]) == (503, "endpoint-removed")


# -- tried again


async def test_a_request_that_ran_nowhere_is_tried_elsewhere(make: Make) -> None:
    rig = await make(roles="pdd")
    await rig.engines["d0"].stop()
    rig.scheduler.routes = [Route(decode="d0", prefill="p0"), Route(decode="d1", prefill="p0")]
    reply = await rig.ask(PATH, ASK)
    assert reply.status == 200
    await rig.at_rest()
    first, second = rig.scheduler.submitted
    assert first.id == second.id
    assert second.avoid == ("d0",)
    assert [o.end for o in rig.scheduler.finished] == [End.FAILED, End.COMPLETED]
    assert len(rig.metrics.done) == 1
    assert len(rig.engines["p0"].exchanges) == 1
    assert rig.adapter.requests[1].engine_id(rig.scheduler.events[0].leg).endswith("-p1")


@pytest.mark.parametrize("how", ["503", "abort", "abort streamed"])
async def test_a_request_that_an_engine_ended_before_it_began_is_tried_elsewhere(
    make: Make, how: str
) -> None:
    rig = await make(roles="uu")
    aborted = b'{"choices":[{"index":0,"text":"","finish_reason":"abort"}]}'
    rig.engines["u0"].script = {
        "503": answers(503, b'{"error":{"message":"full"}}'),
        "abort": answers(200, aborted),
        "abort streamed": streams(b"data: %b\n\n" % aborted, DONE),
    }[how]
    rig.engines["u1"].script = streams(event("a"), DONE)
    rig.scheduler.routes = [Route(decode="u0"), Route(decode="u1")]
    reply = await rig.ask(PATH, STREAM)
    assert reply.body == event("a") + DONE
    await rig.at_rest()
    assert rig.metrics.done[0][0].end is End.COMPLETED


async def test_a_request_is_tried_three_times_at_most(make: Make) -> None:
    rig = await make(roles="u")
    await rig.engines["u0"].stop()
    reply = await rig.ask(PATH, ASK)
    assert reply.status == 502
    await rig.at_rest()
    assert len(rig.scheduler.submitted) == 3
    assert rig.scheduler.submitted[1].avoid == ("u0",)


def apart(rig: Rig) -> None:
    """First one pair, then the other."""
    rig.scheduler.routes = [Route(decode="d0", prefill="p0"), Route(decode="d1", prefill="p1")]


@pytest.mark.parametrize("chained", [False, True], ids=["at once", "chained"])
@pytest.mark.parametrize("victim", ["p0", "d0"])
@pytest.mark.parametrize("how", ["500", "dropped", "deadline"])
async def test_case_13_a_leg_that_fails_ends_the_other_and_both_go_elsewhere(
    make: Make, chained: bool, victim: str, how: str
) -> None:
    async def drop(exchange: Exchange) -> None:
        exchange.abort()

    late = {"timeouts": Timeouts(prefill_s=0.05, first_token_s=0.05)} if how == "deadline" else {}
    rig = await make(roles="ppdd", adapter=Adapter(chained=chained), **late)
    fails = {"500": answers(500, b'{"error":{"message":"boom"}}'), "dropped": drop, "deadline": hangs}[how]
    prefilled = answers(200, b'{"kv":[1],"cached":0}')
    rig.engines["p0"].script = rig.engines["p1"].script = prefilled
    rig.engines["d0"].script = hangs
    rig.engines["d1"].script = streams(event("a"), DONE)
    rig.engines[victim].script = fails
    apart(rig)
    reply = await rig.ask(PATH, STREAM)
    assert reply.body == event("a") + DONE
    await rig.at_rest()
    _, second = rig.scheduler.submitted
    assert second.avoid == (victim,)
    assert [done.end for done in rig.scheduler.finished] == [End.FAILED, End.COMPLETED]
    assert len(rig.metrics.done) == 1
    if not chained:
        await rig.until(lambda: rig.engines["d0"].aborted or victim == "d0")
    rooms = {body["room"] for name in ("p0", "p1") for body in rig.engines[name].bodies}
    assert len(rooms) == 2, "a room was used twice"


async def test_case_37_a_refusal_of_the_request_is_not_tried_again(make: Make) -> None:
    rig = await make(roles="uu")
    rig.engines["u0"].script = answers(400, b'{"error":{"message":"no"}}')
    rig.scheduler.routes = [Route(decode="u0"), Route(decode="u1")]
    assert (await rig.ask(PATH, ASK)).status == 400
    await rig.at_rest()
    assert len(rig.scheduler.submitted) == 1
    assert rig.metrics.retries == []


async def test_case_37_a_full_queue_is_tried_elsewhere_and_speaks_against_its_engine_alone(
    make: Make,
) -> None:
    """As a refusal of another kind does not: one that is always full would cost every request a retry."""
    rig = await make(roles="uu")
    rig.engines["u0"].script = answers(429, b'{"error":{"message":"full"}}')
    rig.scheduler.routes = [Route(decode="u0"), Route(decode="u1")]
    assert (await rig.ask(PATH, ASK)).status == 200
    assert rig.fleet.failures == ["u0"]
    rig.engines["u0"].script = answers(400, b'{"error":{"message":"no"}}')
    rig.scheduler.routes = [Route(decode="u0")]
    assert (await rig.ask(PATH, ASK)).status == 400
    assert rig.fleet.failures == ["u0"]


async def test_a_request_that_engines_die_of_ends_two_of_them_at_most(make: Make) -> None:
    async def drop(exchange: Exchange) -> None:
        exchange.abort()

    rig = await make(roles="uuu")
    for engine in rig.engines.values():
        engine.script = drop
    rig.scheduler.routes = [Route(decode=f"u{n}") for n in range(3)]
    assert (await rig.ask(PATH, ASK)).status == 502
    await rig.at_rest()
    assert sum(len(engine.exchanges) for engine in rig.engines.values()) == 2
    assert rig.metrics.retries == [("retry", "again"), ("retry", "attempts")]


async def test_case_37_retries_are_a_share_of_the_requests(make: Make) -> None:
    rig = await make(roles="u")
    rig.engines["u0"].script = answers(500, b'{"error":{"message":"boom"}}')
    client = await rig.client()
    for _ in range(60):
        assert (await client.ask(PATH, ASK)).status == 502
    await rig.at_rest()
    retries = len(rig.scheduler.submitted) - 60
    assert 16 <= retries <= 16 + 60 * 0.2
    assert ("retry", "budget") in rig.metrics.retries


# -- split and merged


async def echo(exchange: Exchange) -> None:
    """Answer with the prompt, streamed or not."""
    body = orjson.loads(exchange.body)
    if body.get("stream"):
        pieces = [event(word) for word in body["prompt"].split()]
        await streams(*pieces, usage_event(len(pieces), 2), DONE, gap_s=0.002)(exchange)
    else:
        exchange.respond(200, completion(body["prompt"]))


async def split_rig(make: Make, **options: Any) -> Rig:
    rig = await make(adapter=Adapter(splits=True, **options))
    rig.engines["d0"].script = echo
    return rig


async def test_case_23_a_batch_is_split_and_merged(make: Make) -> None:
    rig = await split_rig(make)
    reply = await rig.ask(PATH, {"model": "m", "prompt": ["a", "b", "c"], "n": 2})
    answer = reply.json()
    assert [(c["index"], c["text"]) for c in answer["choices"]] == list(enumerate("aabbcc"))
    assert answer["usage"] == {"prompt_tokens": 15, "completion_tokens": 12, "total_tokens": 27}
    await rig.at_rest()
    assert rig.scheduler.submitted[0].n == 6
    done = rig.metrics.done[0][0]
    assert (done.prompt_tokens, done.output_tokens) == (15, 12)
    rooms = sorted(body["room"] for body in rig.engines["d0"].bodies)
    assert rooms == list(range(rooms[0], rooms[0] + 6))
    ids = [request.engine_id(rig.scheduler.events[0].leg) for request in rig.adapter.requests]
    assert [one.rpartition(".")[2] for one in ids] == [f"{place:04d}" for place in range(6)]
    events = [e.what for e in rig.scheduler.events]
    assert events.count("sent") == 12
    assert events.count("done") == events.count("first_token") == 1


@pytest.mark.parametrize("chained", [False, True])
async def test_case_23_streams_of_a_batch_are_interleaved(make: Make, chained: bool) -> None:
    rig = await split_rig(make, chained=chained)
    reply = await rig.ask(PATH, {"model": "m", "prompt": ["a b c", "d", "e f"], "stream": True})
    assert reply.whole
    events = reply.events()
    assert events[-1] == b"data: [DONE]"
    parsed = [orjson.loads(one.removeprefix(b"data: ")) for one in events[:-1]]
    texts = ["", "", ""]
    for one in parsed[:-1]:
        [choice] = one["choices"]
        texts[choice["index"]] += choice["text"]
    assert texts == ["abc", "d", "ef"]
    assert parsed[-1]["choices"] == []
    assert parsed[-1]["usage"] == {"prompt_tokens": 6, "completion_tokens": 6, "total_tokens": 12}
    assert reply.body.count(b"[DONE]") == reply.body.count(b"usage") == 1


async def test_parts_that_cannot_be_merged_are_an_error(make: Make) -> None:
    rig = await split_rig(make)
    rig.engines["d0"].script = answers(200, b'{"no":"choices"}')
    reply = await rig.ask(PATH, {"model": "m", "prompt": ["a", "b"]})
    assert (reply.status, reply.error["code"]) == (502, "bad-answer")
    rig.engines["d0"].script = streams(b'data: {"no":"choices"}\n\n', DONE)
    reply = await rig.ask(PATH, {"model": "m", "prompt": ["a", "b"], "stream": True})
    assert (reply.status, reply.error["code"]) == (502, "bad-answer")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_part_that_fails_before_the_first_byte_fails_the_whole(make: Make, stream: bool) -> None:
    rig = await make(adapter=Adapter(splits=True), retries=0.0)

    async def script(exchange: Exchange) -> None:
        if orjson.loads(exchange.body)["prompt"] == "b":
            exchange.respond(500, b'{"error":{"message":"no"}}')
        else:
            await hangs(exchange)

    rig.engines["d0"].script = script
    reply = await rig.ask(PATH, {"model": "m", "prompt": ["a", "b", "c"], "stream": stream})
    assert (reply.status, reply.error["code"]) == (502, "engine-error")
    await rig.at_rest()
    assert len(rig.engines["d0"].left) == 2


async def test_a_part_that_fails_later_ends_the_stream_with_an_error(make: Make) -> None:
    rig = await split_rig(make)

    async def script(exchange: Exchange) -> None:
        if orjson.loads(exchange.body)["prompt"] == "b":
            await asyncio.sleep(0.05)
            exchange.respond(500, b'{"error":{"message":"no"}}')
        else:
            await streams(event("x"), gap_s=30.0)(exchange)

    rig.engines["d0"].script = script
    reply = await rig.ask(PATH, {"model": "m", "prompt": ["a", "b"], "stream": True})
    assert reply.status == 200
    assert reply.whole
    assert reply.error["code"] == "engine-error"
    assert b"[DONE]" not in reply.body


async def test_the_client_leaves_a_split_request(make: Make) -> None:
    rig = await split_rig(make)
    rig.engines["d0"].script = hangs
    client = await rig.client()
    await client.send(PATH, {"model": "m", "prompt": ["a", "b", "c"], "stream": True})
    await rig.until(lambda: len(rig.engines["d0"].exchanges) == 3)
    client.close()
    await rig.at_rest()
    await rig.until(lambda: len(rig.engines["d0"].aborted) == 3)


async def test_a_batch_of_generate_calls_is_a_list(make: Make) -> None:
    rig = await make(adapter=Adapter(splits=True))
    bodies = iter(
        [b'{"text":"a","meta_info":{"prompt_tokens":1}}', b'{"text":"b","meta_info":{"prompt_tokens":2}}']
    )

    async def script(exchange: Exchange) -> None:
        exchange.respond(200, next(bodies))

    rig.engines["d0"].script = script
    reply = await rig.ask("/generate", {"model": "m", "prompt": ["a", "b"]})
    assert [one["text"] for one in reply.json()] == ["a", "b"]


# -- the end


async def test_a_handler_bug_is_an_error_and_nothing_hangs(make: Make) -> None:
    class Buggy(Adapter):
        def split(self, kind: PathKind, body: Any, disaggregated: bool) -> Any:
            raise ZeroDivisionError

    rig = await make(adapter=Buggy())
    reply = await rig.ask(PATH, ASK)
    assert (reply.status, reply.error["code"]) == (500, "internal")


@pytest.mark.parametrize("begun", [False, True])
async def test_a_stop_ends_what_runs_with_a_word(make: Make, begun: bool) -> None:
    rig = await make()
    rig.engines["d0"].script = streams(event("a"), gap_s=30.0) if begun else hangs
    client = await rig.client()
    await client.send(PATH, STREAM)
    await rig.until(lambda: rig.metrics.ttfts if begun else rig.engines["d0"].exchanges)
    await rig.app.close()
    reply = await client.read()
    assert reply.status == (200 if begun else 503)
    assert reply.whole
    assert reply.error["code"] == "draining"


async def test_a_stop_does_not_break_what_the_client_has(make: Make) -> None:
    rig = await make()
    rig.engines["p0"].script = hangs
    rig.engines["d0"].script = streams(event("a"), DONE)
    assert (await rig.ask(PATH, STREAM)).whole
    await rig.app.close()
    await rig.at_rest()
    assert rig.metrics.done[0][0].end is End.COMPLETED


async def test_engines_refuse_by_the_facts_of_the_endpoints(make: Make) -> None:
    """At once what no way can do, at the route what this one cannot."""
    rig = await make(roles="pdu")
    rig.fleet.change(u0=replace(rig.fleet.endpoints["u0"], facts={"level": 3}))
    none = await rig.ask(PATH, {**ASK, "level": 4})
    assert (none.status, none.error["code"]) == (400, "bad-level")
    assert not rig.scheduler.submitted
    apart = await rig.ask(PATH, {**ASK, "level": 3})
    assert (apart.status, apart.error["code"]) == (400, "bad-level")
    rig.scheduler.route = Route(decode="u0")
    assert (await rig.ask(PATH, {**ASK, "level": 3})).status == 200
    assert not rig.engines["p0"].exchanges


# -- all at once


@pytest.mark.parametrize("chained", [False, True])
@pytest.mark.parametrize("seed", range(3))
async def test_nothing_leaks_when_everything_goes_wrong_at_once(make: Make, seed: int, chained: bool) -> None:
    rng = Random(seed)
    rig = await make(adapter=Adapter(chained=chained, splits=True), roles="ppdd")

    async def anything(exchange: Exchange) -> None:
        await asyncio.sleep(rng.random() * 0.01)
        prefill = b"max_tokens" in exchange.body
        choices = [
            answers(200, b'{"kv":[1],"cached":1}' if prefill else completion("x")),
            answers(200, b'{"kv":[1]}') if prefill else streams(event("a"), event("b"), DONE, gap_s=0.001),
            answers(500, b'{"error":{"message":"boom"}}'),
            answers(503, b'{"error":{"message":"full"}}'),
            streams(event("a"), b"data: {", cut=True, gap_s=0.001),
            streams(event("a"), gap_s=0.001),
            hangs,
        ]
        weights = (8, 8, 1, 1, 1, 1, 1)
        await rng.choices(choices, weights)[0](exchange)

    for engine in rig.engines.values():
        engine.script = anything

    async def one() -> None:
        client = await rig.client()
        prompt: Any = "hi" if rng.random() < 0.8 else ["a", "b", "c"]
        rig.scheduler.route = Route(decode=rng.choice(["d0", "d1"]), prefill=rng.choice(["p0", "p1"]))
        await client.send(PATH, {"model": "m", "prompt": prompt, "stream": rng.random() < 0.5})
        if rng.random() < 0.3:
            await asyncio.sleep(rng.random() * 0.03)
        else:
            with suppress(TimeoutError, asyncio.IncompleteReadError):
                async with asyncio.timeout(0.2):
                    reply = await client.read()
                assert reply.whole
                assert reply.status in (200, 502, 503)
        client.close()

    await asyncio.gather(*(one() for _ in range(150)))
    await rig.until(lambda: all(unit.exchange.ended for unit in rig.app.units))
    for unit in tuple(rig.app.units):
        unit.check(1e12)  # what still runs are prefill legs that hang: it is late for them
    await rig.at_rest()
    assert len(rig.metrics.done) == len({o.request_id for o, _, _ in rig.metrics.done})


async def test_a_body_that_is_nested_too_deep_reaches_no_engine(make: Make) -> None:
    rig = await make(limits=Limits(max_json_depth=5))
    reply = await rig.ask(PATH, {**ASK, "x": [[[[[1]]]]]})
    assert (reply.status, reply.error["code"]) == (400, "too-deep")
    assert "more than 5 levels" in reply.error["message"]
    assert not rig.engines["p0"].exchanges
    assert (await rig.ask(PATH, {**ASK, "x": [[[[1]]]]})).status == 200
