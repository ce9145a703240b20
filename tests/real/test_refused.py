"""What clients must not say to an engine: it is taken out or refused, and the engines live on."""

from __future__ import annotations

from typing import Any

import pytest
from asks import Ask, ask_for, chat, completion, generate, post, read, tokens
from families import EXAMPLES
from pair import Pair

OUT_OF_VOCABULARY = ([1, 99_999], [2_048], [1, -5])
ONE_OF_TWO = [[5, 6], [7, 2_048]]

STRIPPED: dict[str, dict[str, Any]] = {
    "host-without-room": {"bootstrap_host": "127.0.0.1"},
    "room-alone": {"bootstrap_room": 5},
    "a-whole-bootstrap": {"bootstrap_host": "127.0.0.1", "bootstrap_port": 1, "bootstrap_room": 5},
    "kv-params": {"kv_transfer_params": {"do_remote_prefill": True}},
    "kv-params-for-decode": {"kv_transfer_params": {"do_remote_decode": True}},
    "ec-params": {"ec_transfer_params": {"a": {"peer_host": "127.0.0.1", "peer_port": 1}}},
    "routed-rank": {"routed_dp_rank": 5},
    "prefill-rank": {"disagg_prefill_dp_rank": 7},
    "old-rank": {"data_parallel_rank": 3},
    "rid": {"rid": ["a", "b"]},
    "request-id": {"request_id": "mine"},
}
"""Fields that are taken out: the answer is the one without them."""

XARGS: tuple[dict[str, Any], ...] = (
    {"kv_transfer_params": ""},
    {"kv_transfer_params": []},
    {"kv_transfer_params": 0},
)

REFUSED: dict[str, dict[str, list[Ask]]] = {
    "sglang": {
        "token-ids": [completion(bad) for bad in (*OUT_OF_VOCABULARY, ONE_OF_TWO)]
        + [generate(tokens(5)).having(input_ids=bad) for bad in (*OUT_OF_VOCABULARY, ONE_OF_TWO)]
        + [
            chat("hello", input_ids=[1, 99_999]),
            completion(tokens(5), stop_token_ids=[99_999], min_tokens=5),
        ],
        "logprobs": [
            completion(tokens(5), logprobs=5_000),
            chat("hello", logprobs=True, top_logprobs=5_000),
            generate(tokens(5), return_logprob=True, top_logprobs_num=5_000),
        ],
        "odds": [
            completion(tokens(5), temperature=1, repetition_penalty=0),
            completion(tokens(5), temperature=1, logit_bias={"5": 1e38}),
            completion(tokens(5), stop_regex="(a|a)*b"),
        ],
        "top-k": [
            completion(tokens(5), temperature=1, top_k=10**12),
            chat("hello", temperature=1, top_k=10**12),
            generate(tokens(5)).having(sampling_params={"temperature": 1, "top_k": 10**12}),
        ],
    },
    "vllm": {
        "xargs": [completion(tokens(5), vllm_xargs=xargs) for xargs in XARGS]
        + [chat("hello", vllm_xargs=xargs) for xargs in XARGS],
        "token-ids": [completion(bad) for bad in OUT_OF_VOCABULARY],
        "logprobs": [completion(tokens(5), logprobs=5_000), chat("a", logprobs=True, top_logprobs=5_000)],
        "top-k": [completion(tokens(5), temperature=1, top_k=-7)],
    },
}
"""What only a 400 can answer, by engine."""

KINDS = [(name, kind) for name in EXAMPLES for kind in REFUSED[name]]
BELOW_LEASE_S = 20.0
"""Of vLLM: prefill keeps KV that nobody fetches for 30 s."""


@pytest.mark.parametrize("name", STRIPPED)
def test_a_guarded_field_never_arrives(pair: Pair, name: str) -> None:
    fields = STRIPPED[name]
    before = {field: pair.router("pdctl_stripped_fields_total", field=field) for field in fields}
    for ask in (ask_for("completion", 16), ask_for("chat", 16)):
        response = post(pair.client, ask.having(**fields))
        assert response.status_code == 200, response.text[:500]
        way = "chat" if "messages" in ask.body else "completion"
        assert read(response.json()).agrees(pair.reference.answers[way, 16]), response.text[:500]
        assert '"mine' not in response.text
    for field, count in before.items():
        assert pair.router("pdctl_stripped_fields_total", field=field) == count + 2
    pair.assert_serves()


def test_a_guarded_header_never_arrives(pair: Pair) -> None:
    ask = ask_for("completion", 16)
    for name in ("X-Data-Parallel-Rank", "X-Request-Id", "X-Override-Bootstrap-Room"):
        told = post(pair.client, Ask(ask.path, ask.body, {name: "7"}))
        assert told.status_code == 200, f"{name}: {told.text[:500]}"
        assert read(told.json()).agrees(pair.reference.answers["completion", 16])
    pair.assert_serves()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(("pair", "kind"), KINDS, indirect=["pair"])
def test_what_ends_an_engine_is_refused(pair: Pair, kind: str, stream: bool) -> None:
    pair.wait_until_idle()
    for ask in REFUSED[pair.family.engine][kind]:
        response = post(pair.client, ask.having(stream=stream))
        assert response.status_code == 400, f"{ask.body}: {response.status_code} {response.text[:500]}"
        error = response.json()["error"]
        assert error["type"] == "invalid_request_error"
        assert error["message"]
        pair.assert_serves()
    if kind == "logprobs":
        # Decode has a limit for them too: refused there alone, the request's KV would stay in prefill.
        pair.wait_until_idle(within_s=BELOW_LEASE_S)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_prompt_over_the_limit_is_refused_with_the_limit(pair: Pair, stream: bool) -> None:
    limit = pair.family.context
    for prompt in (tokens(limit), tokens(limit + 1_000), "lambda yield " * limit):
        refused = post(pair.client, completion(prompt, stream=stream))
        assert refused.status_code == 400, refused.text[:500]
        message = refused.json()["error"]["message"]
        assert str(limit) in message, message
    ask = chat("lambda yield " * limit)
    refused = post(pair.client, pair.family.streamed(ask) if stream else ask)
    assert refused.status_code == 400, refused.text[:500]
    assert str(limit) in refused.json()["error"]["message"]
    pair.assert_serves()


def test_an_unknown_model_or_path_reaches_no_engine(pair: Pair) -> None:
    refused = post(pair.client, completion(tokens(5), model="other"))
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "unknown-model")
    for path in ("/abort_request", "/flush_cache", "/pause", "/v1/loads", "/metrics", "/reset_prefix_cache"):
        assert pair.client.post(path, json={"abort_all": True}).status_code == 404
    pair.assert_serves()
