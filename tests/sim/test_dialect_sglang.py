"""SGLang's API and its prefill/decode contract, between real processes.

Covers dialect_sglang, sglang_prefill, sglang_decode, sglang_pages, sglang_shapes, sglang_switch, replies,
fetching, dialect and host.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from random import Random
from typing import Any

import httpx
import pytest

from orchestrator.sim.testing import SimProcess, spawn

CHAT = {"model": "sim", "messages": [{"role": "user", "content": "Tell me a story about a router."}]}
PROMPTS = ["hello", "def main(args):\n    return 0\n", "the quick brown fox " * 60, list(range(300, 1800))]


def text_of(answer: httpx.Response) -> str:
    body = answer.json()
    if "text" in body:
        return str(body["text"])
    choice = body["choices"][0]
    return str(choice["text"] if "text" in choice else choice["message"]["content"])


@pytest.mark.parametrize("prompt", PROMPTS, ids=("word", "code", "long", "ids"))
async def test_disaggregated_text_is_the_unified_text(sglang: Any, client: Any, prompt: Any) -> None:
    key = "text" if isinstance(prompt, str) else "input_ids"
    sampling = {"max_new_tokens": 60, "ignore_eos": True}
    for path, body in (
        ("/v1/completions", {"model": "sim", "prompt": prompt, "max_tokens": 60}),
        ("/generate", {key: prompt, "sampling_params": sampling}),
    ):
        alone = await client.post(sglang.unified, path, body)
        prefill, decode = await client.sglang(sglang, path, body)
        assert (prefill.status_code, decode.status_code) == (200, 200)
        assert text_of(decode) == text_of(alone)
        assert text_of(alone).startswith(text_of(prefill))
    await client.idle(sglang.prefill, sglang.decode)


async def test_chat_streamed_or_not_disaggregated_or_not_says_the_same(
    sglang: Any, client: Any, read_events: Any
) -> None:
    body = {**CHAT, "max_tokens": 40, "ignore_eos": True}
    whole = text_of(await client.post(sglang.unified, "/v1/chat/completions", body))
    streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
    alone = (await client.post(sglang.unified, "/v1/chat/completions", streamed)).text
    _, decode = await client.sglang(sglang, "/v1/chat/completions", streamed)
    for answer in (alone, decode.text):
        *chunks, usage, done = read_events(answer)
        assert done == "[DONE]"
        assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == whole
        assert chunks[-1]["choices"][0]["finish_reason"] == "length"
        assert usage["usage"]["completion_tokens"] == 40
    assert usage["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}


async def test_many_at_once_keep_apart(sglang: Any, client: Any) -> None:
    bodies = [{"model": "sim", "prompt": f"question {i} of many", "max_tokens": 30} for i in range(24)]
    alone = await asyncio.gather(*(client.post(sglang.unified, "/v1/completions", b) for b in bodies))
    pairs = await asyncio.gather(*(client.sglang(sglang, "/v1/completions", b) for b in bodies))
    assert [text_of(d) for _, d in pairs] == [text_of(a) for a in alone]
    assert len({text_of(a) for a in alone}) == 24
    await client.idle(sglang.prefill, sglang.decode)


async def test_a_batch_takes_consecutive_rooms_or_a_list_of_them(sglang: Any, client: Any) -> None:
    body = {"model": "sim", "prompt": ["one", "two", "three"], "max_tokens": 8}
    alone = (await client.post(sglang.unified, "/v1/completions", body)).json()
    for room in (None, [71, 5, 99]):
        _, decode = await client.sglang(sglang, "/v1/completions", body, room)
        got = decode.json()
        assert [c["text"] for c in got["choices"]] == [c["text"] for c in alone["choices"]]
        assert [c["index"] for c in got["choices"]] == [0, 1, 2]
    listed = {"text": ["one", "two"], "sampling_params": {"max_new_tokens": 4}}
    _, decode = await client.sglang(sglang, "/generate", listed)
    assert [one["output_ids"] for one in decode.json()] == [
        one["output_ids"] for one in (await client.post(sglang.unified, "/generate", listed)).json()
    ]


async def test_several_samples_work_on_a_unified_engine_and_hang_a_pair(sglang: Any, client: Any) -> None:
    body = {"model": "sim", "prompt": "hello", "max_tokens": 4, "n": 3}
    choices = (await client.post(sglang.unified, "/v1/completions", body)).json()["choices"]
    assert len(choices) == 3
    fields = {
        **body, "bootstrap_host": "127.0.0.1", "bootstrap_port": sglang.prefill.ports["bootstrap"],
        "bootstrap_room": 31,
    }  # fmt: skip
    decode = asyncio.create_task(client.post(sglang.decode, "/v1/completions", fields))
    await asyncio.sleep(0.3)
    assert not decode.done()
    decode.cancel()
    await client.idle(sglang.decode)


async def test_the_prefill_engine_answers_all_samples_of_a_room(sglang: Any, client: Any) -> None:
    fields = {"bootstrap_host": "2.2.2.2", "bootstrap_room": 1}
    body = {"model": "sim", "prompt": "hello", "max_tokens": 4, "n": 2, **fields}
    answer = await client.post(sglang.prefill, "/v1/completions", body)
    assert [choice["index"] for choice in answer.json()["choices"]] == [0, 1]
    one = {"text": "hello", **fields}
    got = (await client.post(sglang.prefill, "/generate", one)).json()
    assert got["meta_info"]["finish_reason"] == {"type": "length", "length": 0}
    # A hand-off to nobody does not warm the cache.
    long = {"input_ids": list(range(500, 900)), **fields}
    for _ in range(2):
        again = (await client.post(sglang.prefill, "/generate", long)).json()
        assert again["meta_info"]["cached_tokens"] == 0


async def test_no_room_is_refused_in_the_captured_words(
    sglang: Any, client: Any, captures: Any, read_events: Any
) -> None:
    path, body = "/v1/completions", {"model": "sim", "prompt": "x", "rid": "r1"}
    recorded = json.loads(captures["sglang"]["pd_d_noroom_comp"])
    for engine in (sglang.prefill, sglang.decode):
        answer = await client.post(engine, path, body)
        assert answer.status_code == 400
        assert list(answer.json()) == list(recorded)
        assert answer.json()["message"] == (
            "Invalid request: Disaggregated request received without bootstrap room id. req.rid='r1'"
        )
        native = await client.post(engine, "/generate", {"text": "x"})
        assert (native.status_code, list(native.json())) == (400, ["error"])
        # A stream's status line is out before the error is known.
        streamed = await client.post(engine, path, {**body, "stream": True})
        assert streamed.status_code == 200
        error, done = read_events(streamed.text)
        assert done == "[DONE]"
        assert error["error"]["type"] == "BAD_REQUEST"
        assert error["error"]["code"] == 400


async def test_a_room_without_a_host_kills_the_decode_engine(fresh_sglang: Any, client: Any) -> None:
    with pytest.raises(httpx.TransportError):
        await client.post(fresh_sglang.decode, "/v1/completions", {"prompt": "x", "bootstrap_room": 7})
    assert fresh_sglang.decode.wait() != 0
    assert "bootstrap_host" in fresh_sglang.decode.errors()
    assert fresh_sglang.prefill.alive


async def test_two_live_requests_in_one_room_kill_the_prefill_engine(fresh_sglang: Any, client: Any) -> None:
    body = {"prompt": "x", "bootstrap_host": "127.0.0.1", "bootstrap_port": 1, "bootstrap_room": 7}
    legs = [client.post(fresh_sglang.prefill, "/v1/completions", body) for _ in range(2)]
    answers = await asyncio.gather(*legs, return_exceptions=True)
    assert all(isinstance(answer, httpx.TransportError) for answer in answers)
    assert fresh_sglang.prefill.wait() != 0
    assert "Unexpected poll state" in fresh_sglang.prefill.errors()


async def test_a_room_may_be_used_again_afterwards(sglang: Any, client: Any) -> None:
    body = {"model": "sim", "prompt": "again", "max_tokens": 3}
    answers = [(await client.sglang(sglang, "/v1/completions", body, room=4242))[1] for _ in range(3)]
    assert len({text_of(answer) for answer in answers}) == 1


async def test_a_room_mixed_up_gives_another_requests_text(sglang: Any, client: Any) -> None:
    """The contamination that a real pair shows: 200, and the other prompt's words."""
    port = sglang.prefill.ports["bootstrap"]
    fields = {"bootstrap_host": "127.0.0.1", "bootstrap_port": port, "max_tokens": 12, "model": "sim"}
    ours, theirs = {"prompt": "my own question"}, {"prompt": "someone else's question"}
    right = {
        p["prompt"]: text_of(await client.post(sglang.unified, "/v1/completions", {**fields, **p}))
        for p in (ours, theirs)
    }
    _, decode = await asyncio.gather(
        client.post(sglang.prefill, "/v1/completions", {**fields, **theirs, "bootstrap_room": 88}),
        client.post(sglang.decode, "/v1/completions", {**fields, **ours, "bootstrap_room": 88}),
    )
    assert decode.status_code == 200
    assert text_of(decode) == right[theirs["prompt"]] != right[ours["prompt"]]


TIMEOUTS = {"SGLANG_DISAGGREGATION_WAITING_TIMEOUT": "10", "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT": "12"}


async def test_a_leg_without_the_other_times_out_as_the_variables_say(client: Any) -> None:
    with (
        SimProcess("--role", "prefill", "--speed", "40", env=TIMEOUTS) as prefill,
        SimProcess("--role", "decode", "--speed", "40", env=TIMEOUTS) as decode,
    ):
        body = {
            "text": "x", "bootstrap_host": "127.0.0.1", "bootstrap_port": prefill.ports["bootstrap"],
            "bootstrap_room": 9, "rid": "alone",
        }  # fmt: skip
        answer = await client.post(decode, "/generate", body)
        assert answer.status_code == 500
        assert answer.json() == {
            "object": "error",
            "message": "Decode transfer failed for request rank=0 decode_req.req.rid='alone' "
            "decode_req.req.bootstrap_room=9 with exception KVTransferError(bootstrap_room=9): "
            "Request 9 timed out after 10.0s in KVPoll.WaitingForInput",
            "type": "500", "param": None, "code": 500,
        }  # fmt: skip
        answer = await client.post(prefill, "/generate", {**body, "bootstrap_room": 10})
        assert answer.status_code == 500
        assert "Request 10 timed out after 12.0s in KVPoll.Bootstrapping" in answer.json()["message"]
        metrics = (await client.get(prefill, "/metrics")).text
        assert 'sglang:num_bootstrap_failed_reqs_total{engine_type="prefill"' in metrics
        await client.idle(prefill, decode)


async def test_a_bootstrap_server_that_is_not_there_is_tried_for_a_while(sglang: Any, client: Any) -> None:
    body = {"text": "x", "bootstrap_host": "127.0.0.1", "bootstrap_port": 1, "bootstrap_room": 3}
    answer = await client.post(sglang.decode, "/generate", body)
    assert answer.status_code == 500
    assert "Decode handshake failed" in answer.json()["message"]
    assert "Aborted by AbortReq." in answer.json()["message"]


async def test_a_dead_prefill_engine_is_noticed_and_its_successor_heals(client: Any) -> None:
    with spawn(("--role", "decode"), common=("--speed", "40")) as (decode,):
        with SimProcess("--role", "prefill", "--speed", "40") as first:
            port = first.ports["bootstrap"]
            fields = {"text": "long " * 400, "bootstrap_host": "127.0.0.1", "bootstrap_port": port}
            both = {**fields, "bootstrap_room": 1}
            _, fine = await asyncio.gather(
                client.post(first, "/generate", both), client.post(decode, "/generate", both)
            )
            waiting = asyncio.create_task(client.post(decode, "/generate", {**fields, "bootstrap_room": 2}))
            await client.until(first, lambda state: state["asked"] == 1)
        answer = await waiting
        assert answer.status_code == 500
        assert f"Lost connection with prefill instance (bootstrap_addr: 127.0.0.1:{port})" in answer.text
        with SimProcess("--role", "prefill", "--speed", "40", "--bootstrap-port", str(port)) as second:
            both = {**fields, "bootstrap_room": 3}
            _, healed = await asyncio.gather(
                client.post(second, "/generate", both), client.post(decode, "/generate", both)
            )
        assert healed.json()["output_ids"] == fine.json()["output_ids"]


async def test_other_page_sizes_do_not_match(sglang: Any, client: Any) -> None:
    with SimProcess("--role", "decode", "--page-size", "16", "--speed", "40") as decode:
        body = {
            "text": "x", "bootstrap_host": "127.0.0.1", "bootstrap_room": 3,
            "bootstrap_port": sglang.prefill.ports["bootstrap"],
        }  # fmt: skip
        answer = await client.post(decode, "/generate", body)
        assert answer.status_code == 500
        assert "page size mismatch" in answer.text


async def test_abort_ends_a_request_in_each_stage(sglang: Any, client: Any) -> None:
    body = {
        "text": "x", "sampling_params": {"max_new_tokens": 20000, "ignore_eos": True}, "rid": "stop-me",
        "bootstrap_host": "127.0.0.1", "bootstrap_port": sglang.prefill.ports["bootstrap"],
        "bootstrap_room": 55,
    }  # fmt: skip
    for engine, expected in (
        (sglang.prefill, "Prefill bootstrap failed"),
        (sglang.decode, "Decode transfer"),
    ):
        leg = asyncio.create_task(client.post(engine, "/generate", body))
        await client.until(engine, lambda state: state["calls"] == 1)
        assert (await client.post(engine, "/abort_request", {"rid": "stop-me"})).status_code == 200
        answer = await leg
        assert answer.status_code == 500
        assert expected in answer.text
        assert "Aborted by AbortReq." in answer.text
    leg = asyncio.create_task(client.post(sglang.unified, "/generate", body))
    await client.until(sglang.unified, lambda state: state["load"]["running"] == 1)
    await client.post(sglang.unified, "/abort_request", {"abort_all": True})
    got = (await leg).json()
    assert got["meta_info"]["finish_reason"] == {"type": "abort", "message": "Aborted"}
    assert 0 < got["meta_info"]["completion_tokens"] == len(got["output_ids"]) < 20000
    assert (await client.post(sglang.unified, "/abort_request", {"rid": "nobody"})).status_code == 200
    await client.idle(sglang.unified, sglang.prefill, sglang.decode)


async def test_a_client_that_leaves_frees_everything(sglang: Any, client: Any) -> None:
    body = {"model": "sim", "prompt": "x", "max_tokens": 30000, "ignore_eos": True, "stream": True}
    async with client.http.stream("POST", sglang.unified.url + "/v1/completions", json=body) as answer:
        async for _ in answer.aiter_bytes():
            break
    await client.idle(sglang.unified)


async def test_optimistic_prefill_warms_the_cache_without_a_peer(client: Any) -> None:
    with SimProcess("--role", "prefill", "--optimistic-prefill", "--speed", "40") as prefill:
        body = {
            "input_ids": list(range(500, 1524)), "rid": "slice", "bootstrap_host": "127.0.0.1",
            "bootstrap_port": 1, "bootstrap_room": 77,
        }  # fmt: skip
        leg = asyncio.create_task(client.post(prefill, "/generate", body))
        await client.until(prefill, lambda state: state["load"]["held"] == 1)
        loads = (await client.get(prefill, "/v1/loads")).json()["loads"][0]
        assert loads["disaggregation"]["prefill_inflight_queue_reqs"] == 1
        assert loads["num_used_tokens"] == 1024
        await client.post(prefill, "/abort_request", {"rid": "slice"})
        assert (await leg).status_code == 500
        state = await client.state(prefill)
        assert (state["load"]["used_tokens"], state["load"]["cached_tokens"]) == (0, 1024)


async def test_cached_tokens_are_the_prefill_sides_and_told_by_both(sglang: Any, client: Any) -> None:
    body = {"model": "sim", "prompt": list(range(3000, 3640)), "max_tokens": 2}
    await client.sglang(sglang, "/v1/completions", body)
    for answer in await client.sglang(sglang, "/v1/completions", body):
        assert answer.json()["usage"]["prompt_tokens_details"] == {"cached_tokens": 576}


async def test_input_logprobs_come_from_prefill_and_output_logprobs_from_decode(
    sglang: Any, client: Any
) -> None:
    body = {
        "text": "one two three", "return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 2,
        "sampling_params": {"max_new_tokens": 5, "ignore_eos": True},
    }  # fmt: skip
    alone = (await client.post(sglang.unified, "/generate", body)).json()["meta_info"]
    prefill, decode = (a.json()["meta_info"] for a in await client.sglang(sglang, "/generate", body))
    assert prefill["input_token_logprobs"] == alone["input_token_logprobs"] != []
    assert decode["input_token_logprobs"] == []
    assert decode["output_token_logprobs"] == alone["output_token_logprobs"]
    assert len(alone["output_top_logprobs"]) == 5


SHAPES: list[tuple[str, str, dict[str, Any]]] = [
    ("chat", "/v1/chat/completions", {**CHAT, "max_tokens": 8}),
    ("chat_stream", "/v1/chat/completions",
     {**CHAT, "max_tokens": 2000, "stream": True, "stream_options": {"include_usage": True}}),
    ("comp", "/v1/completions", {"model": "sim", "prompt": "x", "max_tokens": 8}),
    ("comp_stream", "/v1/completions",
     {"model": "sim", "prompt": "x", "max_tokens": 2000, "stream": True,
      "stream_options": {"include_usage": True}}),
    ("err_toolong", "/generate", {"input_ids": [1] * 9000}),
    ("err_toolong_oai", "/v1/completions", {"model": "sim", "prompt": [1] * 9000}),
    ("err_maxtok", "/v1/completions", {"model": "sim", "prompt": "x", "max_tokens": 100_000}),
    ("err_noinput", "/generate", {}),
    ("err_noprompt", "/v1/completions", {"model": "sim"}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "path", "body"), SHAPES, ids=[s[0] for s in SHAPES])
async def test_bodies_have_the_captured_shape(
    client: Any, captures: Any, read_events: Any, stream_kinds: Any, shape_of: Any, small: SimProcess,
    name: str, path: str, body: dict[str, Any],
) -> None:  # fmt: skip
    recorded = captures["sglang"][name]
    body = {**body, "ignore_eos": True}
    answer = await client.post(small, path, body)
    if name.startswith("err"):
        assert answer.status_code == 400
    if recorded.startswith("data: "):
        assert stream_kinds(read_events(answer.text)) == stream_kinds(read_events(recorded))
    else:
        assert shape_of(answer.json()) == shape_of(json.loads(recorded))
    if name in ("err_toolong", "err_toolong_oai"):
        assert answer.text.replace("9000", "12000") == recorded.strip()


@pytest.fixture(scope="module")
def small() -> Any:
    with SimProcess("--speed", "40", "--max-model-len", "8192", "--load-delay-s", "1") as process:
        yield process


async def test_generate_has_the_captured_fields(
    small: SimProcess, client: Any, captures: Any, read_events: Any
) -> None:
    """All but the timings that only a real scheduler has."""
    params = {"max_new_tokens": 6, "ignore_eos": True}
    for name, more in (
        ("gen", {}),
        ("gen_stream", {"stream": True}),
        ("gen_logprob", {"return_logprob": True}),
    ):
        answer = await client.post(small, "/generate", {"text": "x", "sampling_params": params, **more})
        recorded = captures["sglang"][name]
        if more.get("stream"):
            chunks = read_events(answer.text)[:-1]
            got, wanted = chunks[-1], read_events(recorded)[-2]
            # Each chunk has all the text so far.
            assert all(b["text"].startswith(a["text"]) for a, b in itertools.pairwise(chunks))
        else:
            got, wanted = answer.json(), json.loads(recorded)
        assert list(got) == list(wanted)
        own = list(got["meta_info"])
        assert own == [field for field in wanted["meta_info"] if field in own]
        missing = set(wanted["meta_info"]) - set(own)
        assert missing <= {"input_top_logprobs", "output_top_logprobs"}


async def test_what_it_tells_of_its_time_is_real(sglang: Any, client: Any) -> None:
    """Forty times as fast: what it says it took is within what a clock beside it saw."""
    body = {"text": "hello", "sampling_params": {"max_new_tokens": 100, "ignore_eos": True}}
    before = (await client.get(sglang.unified, "/v1/loads")).json()["loads"][0]
    began_s = time.monotonic()
    answer = await client.post(sglang.unified, "/generate", body)
    took_s = time.monotonic() - began_s
    after = (await client.get(sglang.unified, "/v1/loads")).json()["loads"][0]
    busy_us = after["total_prefill_busy_us"] - before["total_prefill_busy_us"]
    steps_us = after["decode_moments"][2] - before["decode_moments"][2]
    assert 0 < busy_us + steps_us <= took_s * 1e6
    meta = answer.json()["meta_info"]
    assert 0 < meta["first_token_latency"] <= meta["e2e_latency"] <= took_s


async def test_pages_have_the_captured_shape(
    small: SimProcess, client: Any, captures: Any, shape_of: Any
) -> None:
    loads = (await client.get(small, "/v1/loads")).json()
    assert shape_of(loads) == shape_of(json.loads(captures["sglang"]["v1_loads"]))
    info = (await client.get(small, "/model_info")).json()
    assert list(info) == list(json.loads(captures["sglang"]["model_info"]))
    models = (await client.get(small, "/v1/models")).json()
    assert shape_of(models) == shape_of(json.loads(captures["sglang"]["v1_models"]))
    assert models["data"][0]["max_model_len"] == 8192
    assert (await client.get(small, "/v1/loads?include=nonsense")).status_code == 500
    assert "sglang_num_running_reqs" in (await client.get(small, "/v1/loads?format=prometheus")).text
    assert (await client.get(small, "/get_load")).status_code == 404
    flushed = await client.post(small, "/flush_cache", {})
    assert flushed.text.strip() == captures["sglang"]["flush"].strip()
    server = (await client.get(small, "/server_info")).json()
    assert server["internal_states"][0]["effective_max_running_requests_per_dp"] == 256
    assert (server["version"], server["page_size"], server["disaggregation_mode"]) == ("0.5.23", 64, "null")
    switch = await client.post(small, "/pd_role_switch", {"new_role": "decode"})
    assert switch.status_code == 400
    assert switch.json()["message"] == "--enable-pd-role-switch is not set on this server"


async def test_the_model_name_is_not_checked(small: SimProcess, client: Any) -> None:
    answer = await client.post(small, "/v1/completions", {"model": "wrong", "prompt": "x", "max_tokens": 1})
    assert (answer.status_code, answer.json()["model"]) == (200, "wrong")


async def test_probes(small: SimProcess, client: Any) -> None:
    for path in ("/ready", "/ping", "/health", "/health_generate"):
        answer = await client.get(small, path)
        assert (answer.status_code, answer.content) == (200, b"")
    assert (await client.post(small, "/pause_generation", {"mode": "in_place"})).status_code == 200
    assert (await client.get(small, "/ready")).status_code == 503
    assert (await client.get(small, "/ping")).status_code == 200
    await client.post(small, "/continue_generation", {})
    assert (await client.get(small, "/ready")).status_code == 200


async def test_tokenize_and_back(small: SimProcess, client: Any) -> None:
    got = (await client.post(small, "/tokenize", {"prompt": "hello there"})).json()
    assert got["count"] == len(got["tokens"]) == 2
    back = await client.post(small, "/detokenize", {"tokens": got["tokens"]})
    assert back.json() == {"text": "hello there"}


async def test_stop_strings_and_the_end_of_sequence(small: SimProcess, client: Any) -> None:
    body = {"model": "sim", "prompt": "stop here", "max_tokens": 40, "ignore_eos": True}
    whole = text_of(await client.post(small, "/v1/completions", body))
    stop = whole[20:26]
    cut = (await client.post(small, "/v1/completions", {**body, "stop": stop})).json()["choices"][0]
    assert cut["text"] == whole[: whole.index(stop)]
    assert (cut["finish_reason"], cut["matched_stop"]) == ("stop", stop)
    ended = {"model": "sim", "prompt": "until the end", "max_tokens": 5000}
    choice = (await client.post(small, "/v1/completions", ended)).json()["choices"][0]
    assert choice["finish_reason"] == "stop"


async def test_the_bootstrap_server(sglang: Any, client: Any) -> None:
    base = f"http://127.0.0.1:{sglang.prefill.ports['bootstrap']}"
    names = ("prefill_dp_rank", "prefill_cp_rank", "target_tp_rank", "target_pp_rank")
    assert (await client.http.get(base + "/health")).text == "OK"
    topology = await client.http.get(base + "/route", params=dict.fromkeys(names, -1))
    assert topology.json()["page_size"] == 64
    assert topology.json()["prefill_http_port"] == sglang.prefill.port
    rank = await client.http.get(base + "/route", params=dict.fromkeys(names, 0))
    assert set(rank.json()) == {"rank_ip", "rank_port"}
    assert (await client.http.get(base + "/route", params=dict.fromkeys(names, 7))).status_code == 404
    assert (await client.http.get(base + "/route")).status_code == 400
    await client.http.post(base + "/register_dp_rank", json={"bootstrap_room": 5, "dp_rank": 1})
    ranks = await client.http.post(base + "/query_dp_ranks", json={"bootstrap_rooms": [5, 6]})
    assert ranks.json() == {"5": 1}


async def test_metrics_of_each_role(sglang: Any, client: Any) -> None:
    await client.sglang(sglang, "/v1/completions", {"model": "sim", "prompt": "count me", "max_tokens": 4})
    prefill = (await client.get(sglang.prefill, "/metrics")).text
    decode = (await client.get(sglang.decode, "/metrics")).text
    assert "sglang:num_prefill_bootstrap_queue_reqs{" in prefill
    # A real prefill engine exports no request figures.
    assert "time_to_first_token" not in prefill
    assert 'sglang:time_to_first_token_seconds_bucket{engine_type="decode"' in decode
    assert 'sglang:num_requests_total{engine_type="decode"' in decode
    assert 'le="0.1"' in decode
    assert 'le="+Inf"' in decode


async def test_term_drains_still_serving(client: Any) -> None:
    with SimProcess("--speed", "40", "--drain-poll-s", "1") as engine:
        body = {"model": "sim", "prompt": "x", "max_tokens": 9000, "ignore_eos": True}
        long = asyncio.create_task(client.post(engine, "/v1/completions", body))
        await client.until(engine, lambda state: state["calls"] == 1)
        engine.terminate()
        await client.until(engine, lambda state: state["draining"])
        assert (await client.get(engine, "/ready")).status_code == 503
        assert (await client.get(engine, "/health")).status_code == 503
        late = await client.post(engine, "/v1/completions", {"prompt": "late", "max_tokens": 2})
        assert late.status_code == 200
        assert (await long).json()["usage"]["completion_tokens"] == 9000
        assert engine.wait() == 0


async def test_counters_of_a_new_incarnation_start_at_zero(client: Any) -> None:
    """SGLang reports no start time: a counter that runs backwards is the only sign of a restart."""
    seen = []
    for _ in range(2):
        with SimProcess("--speed", "40") as engine:
            seen.append(
                (await client.get(engine, "/v1/loads")).json()["loads"][0]["total_prefill_uncached_tokens"]
            )
            await client.post(engine, "/generate", {"text": "x"})
            seen.append(
                (await client.get(engine, "/v1/loads")).json()["loads"][0]["total_prefill_uncached_tokens"]
            )
    assert seen == [0, 1, 0, 1]


async def test_the_key_is_demanded_but_not_for_probes(client: Any) -> None:
    with SimProcess("--api-key", "secret", "--speed", "40") as engine:
        refused = await client.post(engine, "/generate", {"text": "x"})
        assert (refused.status_code, refused.json()) == (401, {"error": "Unauthorized"})
        headers = {"authorization": "Bearer secret"}
        assert (await client.post(engine, "/generate", {"text": "x"}, headers=headers)).status_code == 200
        assert (await client.get(engine, "/health")).status_code == 200
        assert (await client.get(engine, "/v1/models")).status_code == 401


async def test_a_live_request_id_is_not_taken_twice(small: SimProcess, client: Any) -> None:
    body = {"text": "x", "rid": "mine", "sampling_params": {"max_new_tokens": 2000, "ignore_eos": True}}
    first = asyncio.create_task(client.post(small, "/generate", body))
    await client.until(small, lambda state: state["calls"] == 1)
    second = await client.post(small, "/generate", body)
    assert second.status_code == 400
    assert "Duplicate request ID" in second.text
    first.cancel()
    await client.idle(small)
    assert (await client.post(small, "/generate", {"text": "x", "rid": "mine"})).status_code == 200


async def test_an_idle_connection_is_closed_after_five_real_seconds(small: SimProcess) -> None:
    """As uvicorn does under both real engines; a router must not reuse such a connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", small.port)
    writer.write(b"GET /ready HTTP/1.1\r\nhost: x\r\n\r\n")
    assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
    assert await asyncio.wait_for(reader.read(), 30) == b""
    writer.close()


async def test_clients_that_come_and_go_leave_nothing_behind(fresh_sglang: Any, client: Any) -> None:
    rng = Random(5)

    async def one(number: int) -> None:
        body = {"model": "sim", "prompt": [100 + number] * rng.randint(1, 900), "max_tokens": 200,
                "ignore_eos": True, "stream": bool(number % 2)}  # fmt: skip
        leg = asyncio.ensure_future(client.sglang(fresh_sglang, "/v1/completions", body))
        if number % 3:
            await asyncio.sleep(rng.uniform(0.0, 0.3))
            leg.cancel()
        else:
            _, decode = await leg
            assert decode.status_code == 200

    await asyncio.gather(*(one(number) for number in range(60)))
    # A prefill leg whose decode leg left before it asked for KV waits for its time-out: end it.
    await client.post(fresh_sglang.prefill, "/abort_request", {"abort_all": True})
    await client.idle(fresh_sglang.prefill, fresh_sglang.decode)
    assert (await client.state(fresh_sglang.prefill))["rooms"] == 0
    body = {"model": "sim", "prompt": "still well", "max_tokens": 20}
    alone = await client.post(fresh_sglang.unified, "/v1/completions", body)
    _, decode = await client.sglang(fresh_sglang, "/v1/completions", body)
    assert text_of(decode) == text_of(alone)


async def test_roles_are_switched_while_nothing_is_under_way(client: Any) -> None:
    flags = [("--role", role, "--enable-pd-role-switch") for role in ("prefill", "decode")]
    with spawn(*flags) as (first, second):
        body = {"model": "sim", "prompt": "hello", "max_tokens": 8}
        told = await client.post(first, "/pd_role_switch", {"new_role": "decode"})
        assert (told.status_code, told.json()["safe_to_restore"]) == (400, True)
        assert (
            told.json()["message"] == "decode_cuda_graph_memory_gb is required before capturing decode graphs"
        )
        asked = {"new_role": "decode", "decode_cuda_graph_memory_gb": 0}
        told = (await client.post(first, "/pd_role_switch", asked)).json()
        assert (told["success"], told["old_role"], told["new_role"]) == (True, "prefill", "decode")
        assert (await client.get(first, "/model_info")).json()["disaggregation_mode"] == "decode"
        assert (await client.get(first, "/server_info")).json()["disaggregation_mode"] == "prefill"
        told = await client.post(second, "/pd_role_switch", {"new_role": "prefill"})
        assert told.status_code == 200
        room = {
            "bootstrap_room": 1,
            "bootstrap_host": "127.0.0.1",
            "bootstrap_port": second.ports["bootstrap"],
        }
        answers = await asyncio.gather(
            *(client.post(engine, "/v1/completions", {**body, **room}) for engine in (second, first))
        )
        assert [a.status_code for a in answers] == [200, 200]
        assert answers[1].json()["usage"]["completion_tokens"] == 8
