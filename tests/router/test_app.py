"""The table of paths and what the router answers itself (local, replies, settings, offers, clients)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from datapath import Adapter, Fleet, Rig, answers, build, completion, event, streams

from orchestrator.clock import FakeClock
from orchestrator.core.types import End, Load, PathKind, Role
from orchestrator.errors import BadRequest, LegFailed, NotServed, Overloaded, RequestError, Unauthorized
from orchestrator.router import local, replies
from orchestrator.router.offers import Offers
from orchestrator.router.settings import Settings
from orchestrator.topology.plan import Credentials, Limits, Timeouts

Make = Callable[..., Awaitable[Rig]]
ASK = {"model": "m", "prompt": "hi"}


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    """Builds rigs; each is checked to be at rest at the end, and taken down."""
    rigs: list[Rig] = []

    async def build_one(**options: Any) -> Rig:
        rig = await build(**options)
        rigs.append(rig)
        return rig

    yield build_one
    for rig in rigs:
        await rig.at_rest()
        await rig.close()


async def test_what_is_answered_here(make: Make) -> None:
    rig = await make()
    for path in ("/health", "/ready", "/version", "/v1/models", "/v1/models/m", "/server_info"):
        reply = await rig.ask(path, method="GET")
        assert reply.status == 200, path
        assert reply.headers["content-type"] == "application/json"
        assert isinstance(reply.json(), dict)
        head = await rig.client()
        await head.send(path, method="HEAD")
        assert (await head.read(head_only=True)).headers["content-length"] == reply.headers["content-length"]
    assert not any(engine.exchanges for engine in rig.engines.values())


async def test_a_scheduler_is_told_what_it_heeds_alone(make: Make) -> None:
    rig = await make(heeds=frozenset({"sent"}))
    rig.engines["p0"].script = answers(200, completion(""))
    rig.engines["d0"].script = answers(200, completion("x"))
    await rig.ask("/v1/completions", ASK)
    await rig.at_rest()
    assert {e.what for e in rig.scheduler.events} == {"sent"}


async def test_models(make: Make) -> None:
    rig = await make()
    rig.fleet.change(d0=replace(rig.fleet.endpoints["d0"], model="org/n", max_model_len=4096))
    listed = (await rig.ask("/v1/models", method="GET")).json()
    assert listed["object"] == "list"
    assert [(m["id"], m["object"], m["max_model_len"]) for m in listed["data"]] == [
        ("m", "model", None),
        ("org/n", "model", 4096),
    ]
    assert (await rig.ask("/v1/models/org/n", method="GET")).json()["id"] == "org/n"
    assert (await rig.ask("/v1/models/other", method="GET")).error["code"] == "unknown-model"


async def test_server_info_in_the_shape_that_load_generators_read(make: Make) -> None:
    rig = await make()
    load = Load(at_s=0.0, running=3, waiting=1)
    rig.fleet.change(d0=replace(rig.fleet.endpoints["d0"], load=load))
    info = (await rig.ask("/server_info", method="GET")).json()
    assert info["decode"][0]["internal_states"][0] == {"running": 3, "waiting": 1}
    assert info["prefill"][0]["internal_states"] == [{}]
    assert "url" not in str(info)
    unified = (await (await make(roles="u")).ask("/server_info", method="GET")).json()
    assert unified["internal_states"] == [{}]
    assert "decode" not in unified


async def test_ready_while_something_can_be_served(make: Make) -> None:
    rig = await make(roles="pdu")

    async def ready() -> int:
        return (await rig.ask("/ready", method="GET")).status

    def out(name: str) -> None:
        rig.fleet.change(**{name: replace(rig.fleet.endpoints[name], ready=False)})

    assert await ready() == 200
    out("p0")
    assert await ready() == 200
    out("u0")
    assert await ready() == 503
    assert (await rig.ask("/health", method="GET")).status == 200


async def test_who_only_asks_how_it_is_makes_no_request(make: Make) -> None:
    rig = await make()
    rig.app.draining = True
    for path in ("/ready", "/health", "/ready?from=supervisor"):
        for method in ("GET", "HEAD"):
            client = await rig.client()
            await client.send(path, method=method)
            assert (await client.read(head_only=True)).status == (200 if path == "/health" else 503)
    assert not rig.metrics.done


async def test_a_draining_router_is_not_ready(make: Make) -> None:
    rig = await make()
    rig.app.draining = True
    reply = await rig.ask("/ready", method="GET")
    assert (reply.status, reply.error["code"]) == (503, "draining")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/"),
        ("POST", "/abort_request"),
        ("POST", "/flush_cache"),
        ("POST", "/v1/completions/"),
        ("POST", "//v1/completions"),
        ("GET", "/metrics"),
        ("POST", "/v1/load_lora_adapter"),
        ("POST", "/pd_role_switch"),
    ],
)
async def test_what_is_not_listed_never_reaches_an_engine(make: Make, method: str, path: str) -> None:
    rig = await make()
    reply = await rig.ask(path, ASK, method=method)
    assert (reply.status, reply.error["code"]) == (404, "unknown-path")
    assert not any(engine.exchanges or engine.aborted for engine in rig.engines.values())
    [(done, kind, model)] = rig.metrics.done
    assert (done.end, done.http_status, kind, model) == (End.REFUSED, 404, "other", "")


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/v1/completions", "POST"),
        ("POST", "/v1/models", "GET, HEAD"),
        ("DELETE", "/v1/models/m", "GET, HEAD"),
    ],
)
async def test_the_wrong_method_is_told_the_right_one(make: Make, method: str, path: str, allow: str) -> None:
    rig = await make()
    reply = await rig.ask(path, method=method)
    assert (reply.status, reply.error["code"], reply.headers["allow"]) == (405, "wrong-method", allow)


async def test_a_path_with_a_query_is_the_path(make: Make) -> None:
    rig = await make(roles="u")
    rig.engines["u0"].script = answers(200, completion("x"))
    assert (await rig.ask("/v1/completions?api-version=1", ASK)).status == 200
    assert rig.engines["u0"].exchanges[0].target == b"/v1/completions"


async def test_a_reload_changes_keys_and_deadlines_and_drops_nothing(make: Make) -> None:
    rig = await make(roles="u")
    rig.engines["u0"].script = streams(event("a"), b"data: [DONE]\n\n", gap_s=0.1)
    client = await rig.client()
    await client.send("/v1/completions", {**ASK, "stream": True})
    assert (await client.read(head_only=True)).status == 200
    router = rig.plan.router
    assert router is not None
    changed = replace(router, credentials=Credentials(client_keys=("k",)), timeouts=Timeouts(total_s=0.01))
    rig.app.apply(replace(rig.plan, router=changed))
    assert (await rig.ask("/v1/completions", ASK)).status == 401
    chunks = b""
    while chunk := await client.chunk():
        chunks += chunk
    assert chunks.endswith(b"[DONE]\n\n")


async def test_an_endpoint_that_moves_is_found_at_its_new_address(make: Make) -> None:
    rig = await make(roles="uu")
    for name in ("u0", "u1"):
        rig.engines[name].script = answers(200, completion(name))
    assert "u0" in (await rig.ask("/v1/completions", ASK)).json()["choices"][0]["text"]
    rig.fleet.change(u0=replace(rig.fleet.endpoints["u0"], url=rig.engines["u1"].url))
    assert "u1" in (await rig.ask("/v1/completions", ASK)).json()["choices"][0]["text"]


async def test_how_long_connections_may_idle_is_the_endpoints_own_figure(make: Make) -> None:
    rig = await make(roles="u")
    rig.engines["u0"].script = answers(200, completion("x"))
    rig.fleet.change(u0=replace(rig.fleet.endpoints["u0"], facts={"idle_s": 0.0}))
    for _ in range(3):
        assert (await rig.ask("/v1/completions", ASK)).status == 200
    assert rig.pool.stats.made == 3


def test_error_bodies_have_the_openai_shape() -> None:
    error = BadRequest("no", reason="why", param="n")
    assert replies.error_body(error) == (
        b'{"error":{"message":"no","type":"invalid_request_error","param":"n","code":"why"}}'
    )
    assert replies.error_event(error) == b"data: " + replies.error_body(error) + b"\n\n"
    assert dict(replies.error_headers(error))[b"x-pdctl-reason"] == b"why"
    assert b"retry-after" not in dict(replies.error_headers(error))
    assert dict(replies.error_headers(Overloaded("x", retry_after_s=3.2)))[b"retry-after"] == b"4"
    assert dict(replies.error_headers(Unauthorized("x")))[b"www-authenticate"] == b"Bearer"
    assert replies.wire_error(413, "big").body == (
        b'{"error":{"message":"big","type":"invalid_request_error","param":null,"code":"too-large"}}'
    )


def test_an_error_inside_an_event_is_one_line() -> None:
    event_ = replies.error_event(LegFailed("line\n\nbreak"))
    assert event_.count(b"\n\n") == 1
    assert event_.endswith(b"\n\n")


async def test_offers_are_what_the_models_endpoints_can_do(make: Make) -> None:
    rig = await make(roles="pdu")
    fleet = Fleet(Adapter(), list(rig.engines.values()))
    offers = Offers(fleet, FakeClock())
    chat = offers.offer("m", PathKind.CHAT)
    assert [way.apart for way in chat.ways] == [True, False]
    assert (set(chat.guarded_fields), set(chat.guarded_headers)) == ({"kv"}, {b"x-rank"})
    assert [way.apart for way in offers.offer("m", PathKind.EMBED).ways] == [False]
    assert offers.offer("m", PathKind.CHAT) is chat
    fleet.change(u0=replace(fleet.endpoints["u0"], role=Role.DECODE, max_model_len=10))
    with pytest.raises(NotServed, match="decode, prefill"):
        offers.offer("m", PathKind.EMBED)
    assert offers.offer("m", PathKind.CHAT).max_model_len == 10


async def test_a_plan_without_a_router_has_no_settings(make: Make) -> None:
    rig = await make()
    with pytest.raises(ValueError, match="no router"):
        Settings.of(replace(rig.plan, router=None))


async def test_settings_of_a_plan(make: Make) -> None:
    rig = await make(pass_headers=("X-A", "Authorization"), limits=Limits(max_inflight=3))
    settings = Settings.of(rig.plan, ("X-Session",))
    assert settings.passed == {b"x-a"}
    assert settings.seen == {b"x-a", b"x-session"}
    assert settings.limits.max_inflight == 3


def test_ready_and_models_of_nothing() -> None:
    snapshot = Fleet(Adapter(), []).snapshot(0.0)
    assert local.models((), snapshot) == b'{"object":"list","data":[]}'
    with pytest.raises(RequestError):
        local.ready((), snapshot, draining=False)
