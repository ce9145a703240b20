"""vLLM's API and its NIXL prefill/decode contract, between real processes.

Covers dialect_vllm, vllm_nixl, vllm_pages, vllm_shapes and frames.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace
from random import Random
from typing import Any

import httpx
import orjson
import pytest

from orchestrator.core.types import Endpoint, LegKind, PathKind, Role
from orchestrator.engines.base import HandoffRequest
from orchestrator.engines.splice import JsonBody
from orchestrator.engines.vllm import VLLM
from orchestrator.sim.testing import SimProcess, spawn

COMPLETIONS = "/v1/completions"
CHAT_PATH = "/v1/chat/completions"
CHAT = {"model": "sim", "messages": [{"role": "user", "content": "Tell me a story about a router."}]}
PROMPTS = ["hello", "the quick brown fox " * 60, list(range(300, 1800)), list(range(7000, 7128))]


def body_of(prompt: Any = "hello", tokens: int = 20, **more: Any) -> dict[str, Any]:
    return {"model": "sim", "prompt": prompt, "max_tokens": tokens, **more}


def text_of(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    choice = answer.json()["choices"][0]
    return str(choice["text"] if "text" in choice else choice["message"]["content"])


@pytest.mark.parametrize("prompt", PROMPTS, ids=("word", "long", "ids", "whole-blocks"))
async def test_disaggregated_text_is_the_unified_text(vllm: Any, client: Any, prompt: Any) -> None:
    body = body_of(prompt, 60)
    alone = text_of(await client.post(vllm.unified, COMPLETIONS, body))
    for _ in range(2):
        assert text_of(await client.vllm(vllm, COMPLETIONS, body)) == alone
    await client.idle(vllm.prefill, vllm.decode)


async def test_both_dialects_say_the_same(vllm: Any, sglang: Any, client: Any) -> None:
    answers = [
        await client.post(engine, CHAT_PATH, {**CHAT, "max_tokens": 30})
        for engine in (vllm.unified, sglang.unified)
    ]
    assert text_of(answers[0]) == text_of(answers[1])


async def test_chat_streamed_or_not_disaggregated_or_not_says_the_same(
    vllm: Any, client: Any, read_events: Any
) -> None:
    body = {**CHAT, "max_tokens": 40, "ignore_eos": True}
    whole = text_of(await client.post(vllm.unified, CHAT_PATH, body))
    streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
    alone = (await client.post(vllm.unified, CHAT_PATH, streamed)).text
    disaggregated = (await client.vllm(vllm, CHAT_PATH, streamed)).text
    for answer in (alone, disaggregated):
        *chunks, usage, done = read_events(answer)
        assert done == "[DONE]"
        assert "".join(c["choices"][0]["delta"]["content"] for c in chunks) == whole
        assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert chunks[-1]["choices"][0]["finish_reason"] == "length"
        assert usage["usage"]["completion_tokens"] == 40


async def test_many_at_once_keep_apart(vllm: Any, client: Any) -> None:
    bodies = [body_of(f"question {i} of many", 30) for i in range(24)]
    alone = await asyncio.gather(*(client.post(vllm.unified, COMPLETIONS, b) for b in bodies))
    pairs = await asyncio.gather(*(client.vllm(vllm, COMPLETIONS, b) for b in bodies))
    assert [text_of(a) for a in pairs] == [text_of(a) for a in alone]
    await client.idle(vllm.prefill, vllm.decode)


async def test_the_hand_off_parameters_have_the_captured_shape(
    vllm: Any, client: Any, captures: Any, shape_of: Any
) -> None:
    prompt = list(range(9000, 9300))
    params = await client.prefill(vllm, COMPLETIONS, body_of(prompt))
    assert shape_of(params) == shape_of(json.loads(captures["vllm"]["kv_transfer_params"]))
    assert params["remote_num_tokens"] == 300
    assert len(params["remote_block_ids"][0]) == 5
    assert params["remote_prefill_cached_tokens"] == 0
    again = await client.prefill(vllm, COMPLETIONS, body_of(prompt))
    assert again["remote_prefill_cached_tokens"] == 256
    answer = await client.post(vllm.decode, COMPLETIONS, body_of(prompt, kv_transfer_params=again))
    # The decode side tells the prefill side's hit.
    assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 256
    await client.post(vllm.decode, COMPLETIONS, body_of(prompt, kv_transfer_params=params))
    await client.idle(vllm.prefill)


async def test_a_streamed_prefill_leg_tells_no_parameters(vllm: Any, client: Any) -> None:
    with SimProcess("--dialect", "vllm", "--role", "prefill", "--lease-s", "1", "--speed", "40") as prefill:
        body = body_of("x", 1, stream=True, kv_transfer_params={"do_remote_decode": True})
        answer = await client.post(prefill, COMPLETIONS, body)
        assert "remote_block_ids" not in answer.text
        await client.idle(prefill)
        assert (await client.state(prefill))["counters"]["expired"] == 1


async def test_without_parameters_any_engine_prefills_for_itself(vllm: Any, client: Any) -> None:
    alone = text_of(await client.post(vllm.unified, COMPLETIONS, body_of("plain")))
    for engine in (vllm.prefill, vllm.decode):
        for params in ({}, {"kv_transfer_params": None}, {"kv_transfer_params": {}}):
            assert text_of(await client.post(engine, COMPLETIONS, body_of("plain", **params))) == alone


async def test_a_plain_request_on_prefill_warms_it_and_pins_nothing(vllm: Any, client: Any) -> None:
    prompt = list(range(20_000, 20_640))
    await client.post(vllm.prefill, COMPLETIONS, body_of(prompt[:512], 1))
    await client.idle(vllm.prefill)
    params = await client.prefill(vllm, COMPLETIONS, body_of(prompt))
    assert params["remote_prefill_cached_tokens"] == 512
    alone = text_of(await client.post(vllm.unified, COMPLETIONS, body_of(prompt)))
    got = await client.post(vllm.decode, COMPLETIONS, body_of(prompt, kv_transfer_params=params))
    assert text_of(got) == alone


BAD: list[tuple[str, dict[str, Any]]] = [
    ("no block ids", {"remote_block_ids": None}),
    ("empty block ids", {"remote_block_ids": []}),
    ("fewer blocks than needed", {"remote_block_ids": [[0]]}),
]


@pytest.mark.parametrize(("name", "change"), BAD, ids=[name for name, _ in BAD])
async def test_bad_parameters_kill_the_decode_engine(
    vllm: Any, client: Any, name: str, change: dict[str, Any]
) -> None:
    prompt = list(range(11_000, 11_200))
    params = await client.prefill(vllm, COMPLETIONS, body_of(prompt))
    with SimProcess("--dialect", "vllm", "--role", "decode", "--speed", "40") as decode:
        body = body_of(prompt, kv_transfer_params={**params, **change})
        answer = await client.post(decode, COMPLETIONS, body)
        assert answer.status_code == 500
        assert answer.json()["error"]["message"].startswith("EngineCore encountered an issue.")
        assert decode.wait() != 0
    assert vllm.prefill.alive


@pytest.mark.parametrize("field", ["remote_request_id", "remote_engine_id", "remote_host", "remote_port"])
async def test_missing_parameters_hang(vllm: Any, client: Any, field: str) -> None:
    prompt = list(range(12_000, 12_100))
    params = await client.prefill(vllm, COMPLETIONS, body_of(prompt))
    leg = asyncio.create_task(
        client.post(vllm.decode, COMPLETIONS, body_of(prompt, kv_transfer_params={**params, field: None}))
    )
    done, _ = await asyncio.wait([leg], timeout=0.3)
    assert not done
    leg.cancel()
    await client.idle(vllm.decode)


async def test_another_prompts_parameters_give_wrong_text_and_poison_the_cache(client: Any) -> None:
    roles = [("--role", role) for role in ("unified", "prefill", "decode")]
    with spawn(*roles, common=("--dialect", "vllm", "--speed", "40")) as (unified, prefill, decode):
        ours, theirs = list(range(500, 900)), list(range(1500, 1900))
        alone = text_of(await client.post(unified, COMPLETIONS, body_of(ours)))
        body = body_of(theirs, 1, kv_transfer_params={"do_remote_decode": True})
        params = (await client.post(prefill, COMPLETIONS, body)).json()["kv_transfer_params"]
        wrong = await client.post(decode, COMPLETIONS, body_of(ours, kv_transfer_params=params))
        assert text_of(wrong) != alone
        # A later, plain request for the same prompt reads the wrong blocks from the cache.
        assert text_of(await client.post(decode, COMPLETIONS, body_of(ours))) != alone
        assert text_of(await client.post(decode, COMPLETIONS, body_of(theirs))) == text_of(
            await client.post(unified, COMPLETIONS, body_of(theirs))
        )


async def test_more_blocks_than_needed_give_wrong_text(vllm: Any, client: Any) -> None:
    prompt = list(range(13_000, 13_300))
    alone = text_of(await client.post(vllm.unified, COMPLETIONS, body_of(prompt)))
    params = await client.prefill(vllm, COMPLETIONS, body_of(prompt))
    params["remote_block_ids"][0].append(0)
    with SimProcess("--dialect", "vllm", "--role", "decode", "--speed", "40") as decode:
        assert (
            text_of(await client.post(decode, COMPLETIONS, body_of(prompt, kv_transfer_params=params)))
            != alone
        )


UNPULLABLE: list[tuple[str, dict[str, Any]]] = [
    ("dead port", {"remote_port": 1}),
    ("other engine", {"remote_engine_id": "someone-else"}),
    ("blocks out of range", {"remote_block_ids": [[10**7 + i for i in range(5)]]}),
]


@pytest.mark.parametrize(("name", "change"), UNPULLABLE, ids=[name for name, _ in UNPULLABLE])
async def test_kv_that_cannot_be_pulled_fails_or_is_recomputed_as_the_policy_says(
    vllm: Any, client: Any, read_events: Any, captures: Any, name: str, change: dict[str, Any]
) -> None:
    prompt = list(range(14_000, 14_300))
    alone = text_of(await client.post(vllm.unified, COMPLETIONS, body_of(prompt)))
    params = {**await client.prefill(vllm, COMPLETIONS, body_of(prompt)), **change}
    failed = await client.post(vllm.decode, COMPLETIONS, body_of(prompt, kv_transfer_params=params))
    assert failed.status_code == 500
    assert failed.json() == json.loads(captures["vllm"]["fail_500"])
    streamed = await client.post(
        vllm.decode, COMPLETIONS, body_of(prompt, kv_transfer_params=params, stream=True)
    )
    assert (streamed.status_code, streamed.text) == (200, captures["vllm"]["fail_stream"])
    flags = (
        "--dialect",
        "vllm",
        "--role",
        "decode",
        "--speed",
        "40",
        "--kv-load-failure-policy",
        "recompute",
    )
    with SimProcess(*flags) as decode:
        got = await client.post(decode, COMPLETIONS, body_of(prompt, kv_transfer_params=params))
        assert text_of(got) == alone
        assert (
            'nixl_num_failed_transfers_total{engine="0",model_name="sim"} 1.0'
            in (await client.get(decode, "/metrics")).text
        )


async def test_a_prefill_engine_killed_after_the_handshake_fails_its_hand_offs_at_once(client: Any) -> None:
    with spawn(("--role", "prefill"), ("--role", "decode"), common=("--dialect", "vllm")) as (
        prefill,
        decode,
    ):
        legs = []
        for number in range(2):
            body = body_of(f"number {number}", 1, kv_transfer_params={"do_remote_decode": True})
            legs.append((await client.post(prefill, COMPLETIONS, body)).json()["kv_transfer_params"])
        first = await client.post(decode, COMPLETIONS, body_of("number 0", 2, kv_transfer_params=legs[0]))
        assert first.status_code == 200
        prefill.kill()
        second = await client.post(decode, COMPLETIONS, body_of("number 1", 2, kv_transfer_params=legs[1]))
        assert second.status_code == 500
        assert (await client.post(decode, COMPLETIONS, body_of("number 1", 2))).status_code == 200


async def test_leases_expire_and_late_pulls_read_whatever_is_there(client: Any) -> None:
    """Right while the blocks lie unused, silently wrong once another prompt has them."""
    small = (
        "--dialect",
        "vllm",
        "--speed",
        "40",
        "--lease-s",
        "6",
        "--kv-tokens",
        "1024",
        "--prefix-tokens",
        "0",
    )
    with spawn(
        (*small, "--role", "prefill"), ("--dialect", "vllm", "--role", "decode", "--speed", "40"),
        ("--dialect", "vllm", "--speed", "40"),
    ) as (prefill, decode, unified):  # fmt: skip
        texts, params = [], []
        for first in (100, 2000):
            prompt = list(range(first, first + 400))
            texts.append(text_of(await client.post(unified, COMPLETIONS, body_of(prompt))))
            body = body_of(prompt, 1, kv_transfer_params={"do_remote_decode": True})
            params.append((await client.post(prefill, COMPLETIONS, body)).json()["kv_transfer_params"])
        state = await client.state(prefill)
        assert state["load"]["held"] + state["counters"]["expired"] == 2
        await client.until(prefill, lambda state: state["counters"]["expired"] == 2)
        late = body_of(list(range(100, 500)), kv_transfer_params=params[0])
        assert text_of(await client.post(decode, COMPLETIONS, late)) == texts[0]
        await client.post(prefill, COMPLETIONS, body_of(list(range(5000, 5900)), 1))
        late = body_of(list(range(2000, 2400)), kv_transfer_params=params[1])
        assert text_of(await client.post(decode, COMPLETIONS, late)) != texts[1]
        metrics = (await client.get(prefill, "/metrics")).text
        assert 'nixl_num_kv_expired_reqs_total{engine="0",model_name="sim"} 2.0' in metrics
        assert 'nixl_num_notifications_after_expiry_total{engine="0",model_name="sim"} 2.0' in metrics


async def test_a_refused_decode_leg_releases_the_lease_at_once(vllm: Any, client: Any) -> None:
    params = await client.prefill(vllm, COMPLETIONS, body_of("orphan"))
    assert (await client.state(vllm.prefill))["load"]["held"] == 1
    answer = await client.post(vllm.decode, COMPLETIONS, body_of("orphan", 10**6, kv_transfer_params=params))
    assert answer.status_code == 400
    await client.idle(vllm.prefill)


async def test_the_adapters_leg_that_frees_a_lease(vllm: Any, client: Any) -> None:
    for path, kind in ((COMPLETIONS, PathKind.COMPLETION), (CHAT_PATH, PathKind.CHAT)):
        body = body_of("orphan") if kind is PathKind.COMPLETION else CHAT
        ends = {
            role: Endpoint(role, role, role, "vllm", "sim", "http://127.0.0.1:1", ready=True)
            for role in (Role.PREFILL, Role.DECODE)
        }
        request = HandoffRequest(
            "ab" * 16, path, kind, JsonBody(orjson.dumps(body)), False, 0, ends[Role.DECODE],
            replace(ends[Role.PREFILL], facts={"transfer": "nixl"}),
        )  # fmt: skip
        machine = VLLM().handoff(request)
        (leg,) = machine.start()
        told = await client.http.post(vllm.prefill.url + path, content=b"".join(leg.body))
        assert (await client.state(vllm.prefill))["load"]["held"] == 1
        (decode,) = machine.on_response(LegKind.PREFILL, 200, told.content)
        call = decode.release()
        answer = await client.http.post(vllm.decode.url + call.path, content=call.body)
        assert answer.status_code == 404
        await client.idle(vllm.prefill, vllm.decode)


async def test_a_waiting_decode_leg_keeps_its_lease_alive(client: Any) -> None:
    """The decode side beats for requests that it has queued."""
    with spawn(
        ("--role", "prefill", "--lease-s", "60"),
        ("--role", "decode", "--lease-s", "60", "--max-running", "1"),
        common=("--dialect", "vllm", "--speed", "40"),
    ) as (prefill, decode):
        body = body_of("patient", 1, kv_transfer_params={"do_remote_decode": True})
        params = (await client.post(prefill, COMPLETIONS, body)).json()["kv_transfer_params"]
        busy = asyncio.create_task(client.post(decode, COMPLETIONS, body_of("busy", 12_000, ignore_eos=True)))
        await client.until(decode, lambda state: state["load"]["running"] == 1)
        waiting = await client.post(decode, COMPLETIONS, body_of("patient", 5, kv_transfer_params=params))
        assert (await busy).status_code == waiting.status_code == 200
        assert (await client.state(prefill))["counters"]["expired"] == 0
        assert (await client.state(prefill))["now_s"] > 90


async def test_a_client_that_leaves_frees_both_sides(vllm: Any, client: Any) -> None:
    before = (await client.state(vllm.prefill))["counters"]["expired"]
    params = await client.prefill(vllm, COMPLETIONS, body_of("leaving"))
    body = body_of("leaving", 30_000, ignore_eos=True, stream=True, kv_transfer_params=params)
    async with client.http.stream("POST", vllm.decode.url + COMPLETIONS, json=body) as answer:
        async for _ in answer.aiter_bytes():
            break
    await client.idle(vllm.decode, vllm.prefill)
    assert (await client.state(vllm.prefill))["counters"]["expired"] == before


async def test_a_request_id_becomes_the_answers_id(vllm: Any, client: Any) -> None:
    headers = {"x-request-id": "my-req-0001"}
    answer = await client.post(vllm.unified, COMPLETIONS, body_of(tokens=1), headers=headers)
    assert answer.json()["id"] == "cmpl-my-req-0001"
    chat = await client.post(vllm.unified, CHAT_PATH, {**CHAT, "max_tokens": 1}, headers=headers)
    assert chat.json()["id"] == "chatcmpl-my-req-0001"


@pytest.fixture(scope="module")
def plain() -> Any:
    flags = ("--dialect", "vllm", "--speed", "40", "--max-model-len", "4096", "--served-model-name", "tiny")
    with SimProcess(*flags, "--enable-server-load-tracking") as process:
        yield process


STREAM = {"stream": True, "stream_options": {"include_usage": True}}
SHAPES: list[tuple[str, str, dict[str, Any]]] = [
    ("chat", CHAT_PATH, {**CHAT, "max_tokens": 8}),
    ("chat_stream", CHAT_PATH, {**CHAT, "max_tokens": 2000, **STREAM}),
    ("comp", COMPLETIONS, {"prompt": "x", "max_tokens": 8}),
    ("comp_stream", COMPLETIONS,
     {"prompt": "x", "max_tokens": 2000, "stream": True,
      "stream_options": {"include_usage": True, "continuous_usage_stats": True}}),
    ("comp_tok", COMPLETIONS,
     {"prompt": [10, 20, 30, 40], "max_tokens": 8, "logprobs": 1, "return_token_ids": True}),
    ("err_bad", COMPLETIONS, {}),
    ("err_long", COMPLETIONS, {"prompt": "x", "max_tokens": 99999}),
    ("tokenize", "/tokenize", {"prompt": "def main"}),
    ("detok", "/detokenize", {"tokens": [300, 301]}),
    ("generate", "/inference/v1/generate", {}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "path", "body"), SHAPES, ids=[s[0] for s in SHAPES])
async def test_bodies_have_the_captured_shape(
    plain: SimProcess, client: Any, captures: Any, read_events: Any, stream_kinds: Any, shape_of: Any,
    name: str, path: str, body: dict[str, Any],
) -> None:  # fmt: skip
    recorded = captures["vllm"][name]
    answer = await client.post(plain, path, {"ignore_eos": True, **body, "model": "tiny"})
    if recorded.startswith("data: "):
        assert stream_kinds(read_events(answer.text)) == stream_kinds(read_events(recorded))
    elif name == "comp_tok":
        got, wanted = answer.json(), json.loads(recorded)
        for one in (got, wanted):
            one["choices"][0]["logprobs"]["top_logprobs"] = []
        assert shape_of(got) == shape_of(wanted)
    else:
        assert shape_of(answer.json()) == shape_of(json.loads(recorded))
    if name.startswith("err"):
        assert answer.status_code == 400
        assert answer.json() == json.loads(recorded)


async def test_an_unknown_model_is_not_found_in_the_captured_words(
    plain: SimProcess, client: Any, captures: Any
) -> None:
    answer = await client.post(plain, COMPLETIONS, {"model": "nope", "prompt": "x", "stream": True})
    assert (answer.status_code, answer.json()) == (404, json.loads(captures["vllm"]["err_model"]))


async def test_a_prompt_over_the_limit_is_refused(plain: SimProcess, client: Any) -> None:
    answer = await client.post(plain, COMPLETIONS, {"model": "tiny", "prompt": [5] * 4096, "max_tokens": 1})
    assert answer.status_code == 400
    assert "maximum context length is 4096 tokens" in answer.json()["error"]["message"]


async def test_pages(plain: SimProcess, client: Any, captures: Any, shape_of: Any) -> None:
    for path in ("/health", "/ping"):
        answer = await client.get(plain, path)
        assert (answer.status_code, answer.content) == (200, b"")
    for name, path in (("version", "/version"), ("load", "/load"), ("kv_event_sources", "/kv_event_sources")):
        assert (await client.get(plain, path)).json() == json.loads(captures["vllm"][name])
    models = (await client.get(plain, "/v1/models")).json()
    assert shape_of(models) == shape_of(json.loads(captures["vllm"]["models"]))
    for path in ("/ready", "/server_info", "/v1/loads"):
        answer = await client.get(plain, path)
        assert (answer.status_code, answer.json()) == (404, {"detail": "Not Found"})
    assert (await client.get(plain, COMPLETIONS)).status_code == 405


async def test_what_it_tells_of_its_time_is_real(vllm: Any, client: Any) -> None:
    """Forty times as fast: what it says it took is within what a clock beside it saw."""

    async def told(name: str) -> float:
        text = (await client.get(vllm.unified, "/metrics")).text
        lines = [line for line in text.splitlines() if line.startswith(f"vllm:{name}_seconds_sum")]
        return float(lines[0].rpartition(" ")[2])

    names = ("time_to_first_token", "inter_token_latency", "e2e_request_latency")
    before = [await told(name) for name in names]
    began_s = time.monotonic()
    await client.post(vllm.unified, COMPLETIONS, body_of(tokens=100, ignore_eos=True))
    took_s = time.monotonic() - began_s
    first_s, gaps_s, whole_s = [await told(name) - then for name, then in zip(names, before, strict=True)]
    assert 0 < first_s + gaps_s <= whole_s + 1e-6
    assert whole_s <= took_s


async def test_metrics(vllm: Any, client: Any) -> None:
    await client.vllm(vllm, COMPLETIONS, body_of(list(range(15_000, 15_200)), 4))
    found = (await client.get(vllm.decode, "/metrics")).text
    for sample in (
        'vllm:num_requests_running{engine="0",model_name="sim"} 0.0',
        'vllm:kv_cache_usage_perc{engine="0",model_name="sim"} 0.0',
        'vllm:prompt_tokens_by_source_total{engine="0",model_name="sim",source="external_kv_transfer"}',
        'vllm:request_success_total{engine="0",finished_reason="length",model_name="sim"}',
        'vllm:time_to_first_token_seconds_bucket{engine="0",le="0.001",model_name="sim"}',
        'block_size="64"',
        "process_start_time_seconds ",
    ):
        assert sample in found


async def test_a_new_incarnation_has_another_start_time(client: Any) -> None:
    starts = set()
    for _ in range(2):
        with SimProcess("--dialect", "vllm") as engine:
            lines = (await client.get(engine, "/metrics")).text.splitlines()
            starts.add(next(line for line in lines if line.startswith("process_start_time_seconds")))
    assert len(starts) == 2


async def test_load_counts_requests_in_flight(plain: SimProcess, client: Any) -> None:
    body = {"model": "tiny", "prompt": "x", "max_tokens": 4000, "ignore_eos": True}
    legs = [asyncio.create_task(client.post(plain, COMPLETIONS, body)) for _ in range(3)]
    await client.until(plain, lambda state: state["calls"] == 3)
    assert (await client.get(plain, "/load")).json() == {"server_load": 3}
    for leg in legs:
        leg.cancel()
    await client.idle(plain)
    assert (await client.get(plain, "/load")).json() == {"server_load": 0}


async def test_term_aborts_what_runs(client: Any) -> None:
    with SimProcess("--dialect", "vllm") as engine:
        body = body_of("x", 3000, ignore_eos=True)
        leg = asyncio.create_task(client.post(engine, COMPLETIONS, body))
        await client.until(engine, lambda state: state["calls"] == 1)
        engine.terminate()
        answer = await leg
        assert answer.json()["choices"][0]["finish_reason"] == "abort"
        assert engine.wait() == 0


async def test_term_with_a_timeout_drains_and_aborts_newcomers(client: Any) -> None:
    with SimProcess("--dialect", "vllm", "--speed", "10", "--shutdown-timeout", "600") as engine:
        leg = asyncio.create_task(client.post(engine, COMPLETIONS, body_of("x", 3000, ignore_eos=True)))
        await client.until(engine, lambda state: state["calls"] == 1)
        engine.terminate()
        await client.until(engine, lambda state: state["draining"])
        assert (await client.get(engine, "/health")).status_code == 200
        late = (await client.post(engine, COMPLETIONS, body_of("late", 5))).json()
        assert (late["choices"][0]["text"], late["choices"][0]["finish_reason"]) == ("", "abort")
        assert (await leg).json()["usage"]["completion_tokens"] == 3000
        assert engine.wait() == 0


async def test_a_draining_prefill_engine_waits_for_its_leases(client: Any) -> None:
    with spawn(
        ("--role", "prefill", "--shutdown-timeout", "600"), ("--role", "decode"), ("--role", "unified"),
        common=("--dialect", "vllm", "--speed", "10"),
    ) as (prefill, decode, unified):  # fmt: skip
        body = body_of("leased", 1, kv_transfer_params={"do_remote_decode": True})
        params = (await client.post(prefill, COMPLETIONS, body)).json()["kv_transfer_params"]
        prefill.terminate()
        await client.until(prefill, lambda state: state["draining"])
        got = await client.post(decode, COMPLETIONS, body_of("leased", kv_transfer_params=params))
        assert text_of(got) == text_of(await client.post(unified, COMPLETIONS, body_of("leased")))
        assert prefill.wait() == 0


async def test_only_the_openai_paths_need_the_key(client: Any) -> None:
    with SimProcess("--dialect", "vllm", "--api-key", "secret") as engine:
        refused = await client.post(engine, COMPLETIONS, body_of(tokens=1))
        assert (refused.status_code, refused.json()) == (401, {"error": "Unauthorized"})
        headers = {"authorization": "Bearer secret"}
        answer = await client.post(engine, COMPLETIONS, body_of(tokens=1), headers=headers)
        assert answer.status_code == 200
        assert (await client.get(engine, "/metrics")).status_code == 200


async def test_clients_that_come_and_go_leave_nothing_behind(fresh_vllm: Any, client: Any) -> None:
    rng = Random(5)

    async def one(number: int) -> None:
        prompt = [100 + number] * rng.randint(1, 900)
        body = body_of(prompt, 200, ignore_eos=True, stream=bool(number % 2))
        leg = asyncio.ensure_future(client.vllm(fresh_vllm, COMPLETIONS, body))
        if number % 3:
            await asyncio.sleep(rng.uniform(0.0, 0.3))
            leg.cancel()
        else:
            assert (await leg).status_code == 200

    await asyncio.gather(*(one(number) for number in range(60)))
    # Leases that nobody came for end by themselves.
    await client.idle(fresh_vllm.prefill, fresh_vllm.decode)
    body = body_of("still well")
    alone = await client.post(fresh_vllm.unified, COMPLETIONS, body)
    assert text_of(await client.vllm(fresh_vllm, COMPLETIONS, body)) == text_of(alone)
