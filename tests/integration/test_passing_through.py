"""`pdctl route` over engines that run already: what of a client's request they get to see, byte for byte.

A recorder stands before each engine. The simulated engines behind them die, hang or answer wrongly of what
must not arrive, as the real ones do.
"""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from asking import CHAT, COMPLETION, GENERATE, limited, streaming
from deployment import MODEL
from line import Line

pytestmark = pytest.mark.integration

EVIL = 6660666
"""Stands in every value that must not arrive."""

HOSTILE: dict[str, Any] = {
    "bootstrap_host": f"10.{EVIL}.evil",
    "bootstrap_port": EVIL,
    "bootstrap_room": EVIL,
    "kv_transfer_params": {
        "do_remote_prefill": True,
        "remote_block_ids": [[EVIL]],
        "remote_engine_id": f"evil-{EVIL}",
        "remote_host": "127.0.0.1",
        "remote_port": EVIL,
        "transfer_id": f"evil-{EVIL}",
    },
    "ec_transfer_params": {"evil": EVIL},
    "routed_dp_rank": EVIL,
    "data_parallel_rank": EVIL,
    "disagg_prefill_dp_rank": EVIL,
    "rid": f"evil-{EVIL}",
    "request_id": f"evil-{EVIL}",
}
OF_ONE_DIALECT: dict[str, dict[str, Any]] = {
    "sglang": {"bootstrap_pair_key": f"evil-{EVIL}", "encoder_urls": ["evil"]},
    "vllm": {},
}
"""Fields that only one engine has a meaning for; to the other they are unknown, and pass."""

HOSTILE_HEADERS = {
    "X-Request-Id": f"evil-{EVIL}",
    "X-Data-Parallel-Rank": str(EVIL),
    "X-vLLM-Priority": str(EVIL),
    "X-Override-Rid": f"evil-{EVIL}",
    "X-Override-Bootstrap-Room": str(EVIL),
    "Authorization": f"Bearer evil-{EVIL}",
    "Cookie": f"session=evil-{EVIL}",
    "X-Custom": f"evil-{EVIL}",
}


def test_case_22_bytes_arrive_as_they_were_sent(line: Line) -> None:
    """Case 22: numbers, spaces, escapes and unknown fields; nothing is read and written anew."""
    sent = (
        b'{"model":"demo",  "prompt" :"caf\\u00e9 \\/ \xc3\xa9", "temperature":0.7,"top_p":0.70 ,'
        b'"min_p": 1e-1,"seed":12345678901234567890,"presence_penalty":0.1000000000000000055511151231257827,'
        b'"x_unknown":{"b":[1.50,null,{}],"a":"\\ud83d\\ude42"},"logit_bias":{"7": -100},\n\t"max_tokens":4}'
    )
    assert line.post(COMPLETION, sent).status_code == 200
    prefill, decode = line.last()
    for piece in sent[1:-1].split(b","):
        assert piece.strip() in decode.body
        assert piece.strip() in prefill.body or b"max_tokens" in piece
    assert sent[1:-1] in decode.body or sent[1:-2] in decode.body


def test_tools_log_probabilities_and_templates_arrive(line: Line) -> None:
    body = {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}],
        "tools": [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}],
        "tool_choice": "auto",
        "logprobs": True,
        "top_logprobs": 2,
        "chat_template_kwargs": {"enable_thinking": False},
        "response_format": {"type": "json_object"},
        "stop": ["\n\n"],
    }
    answer = line.post(CHAT, limited(CHAT, body, 4))
    assert len(answer.json()["choices"][0]["logprobs"]["content"]) == 4
    assert {name: line.last()[1].json[name] for name in body} == body
    assert line.last()[0].json["tools"] == body["tools"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, COMPLETION, GENERATE])
def test_hostile_fields_never_arrive(line: Line, path: str, stream: bool) -> None:
    if path == GENERATE and line.dialect == "vllm":
        path = COMPLETION
    forms: dict[str, dict[str, Any]] = {
        CHAT: {"messages": [{"role": "user", "content": "hello"}]},
        COMPLETION: {"prompt": "hello"},
        GENERATE: {"text": "hello"},
    }
    asked = limited(path, forms[path], 6)
    asked = streaming(path, asked) if stream else asked
    for body in ({**hostile(line), **asked}, {**asked, **hostile(line)}):
        answer = line.post(path, body, headers=HOSTILE_HEADERS)
        assert answer.status_code == 200, answer.text
        assert b"error" not in answer.content
    unharmed(line)


def test_a_single_hostile_field_never_arrives(line: Line) -> None:
    """Alone it may do what it cannot beside the others."""
    for name, value in hostile(line).items():
        answer = line.post(COMPLETION, {"prompt": "hello", name: value, "max_tokens": 3})
        assert answer.status_code == 200, (name, answer.text)
    unharmed(line)


def hostile(line: Line) -> dict[str, Any]:
    """What must not reach this line's engines."""
    return HOSTILE | OF_ONE_DIALECT[line.dialect]


def test_hostile_fields_under_other_spellings(line: Line) -> None:
    """JSON lets a name be written in many ways, and twice."""
    escaped = b'{"prompt":"hello","max_tokens":3,"boot\\u0073trap_room":%d,"r\\u0069d":"evil"}' % EVIL
    assert line.post(COMPLETION, escaped).status_code == 200
    twice = b'{"prompt":"hello","bootstrap_room":%d,"bootstrap_room":%d}' % (EVIL, EVIL)
    answer = line.post(COMPLETION, twice)
    assert (answer.status_code, answer.headers["x-pdctl-reason"]) == (400, "duplicate-field")
    assert line.post(COMPLETION, {"prompt": "hello", "n": 2, "max_tokens": 3, **HOSTILE}).status_code == 200
    lists = {name: [value, value] for name, value in HOSTILE.items()}
    body = {"prompt": ["hello", "there"], "max_tokens": 3, **lists}
    assert line.post(COMPLETION, body).status_code == 200
    nulls = dict.fromkeys(HOSTILE)
    assert line.post(COMPLETION, {"prompt": "hello", "max_tokens": 3, **nulls}).status_code == 200
    if line.dialect == "vllm":
        inside = {"vllm_xargs": {"kv_transfer_params": EVIL}}
        answer = line.post(COMPLETION, {"prompt": "hello", "max_tokens": 3, **inside})
        assert (answer.status_code, answer.headers["x-pdctl-reason"]) == (400, "guarded")
    unharmed(line)


def unharmed(line: Line) -> None:
    """Nothing evil arrived, and both engines live and answer as before."""
    for one in line.generated():
        arrived = one.body + json.dumps(one.headers).encode()
        assert str(EVIL).encode() not in arrived
        assert b"evil" not in arrived
    assert all(engine.alive for engine in line.engines), [engine.errors() for engine in line.engines]
    asked = limited(COMPLETION, {"prompt": "as before"}, 12)
    ours, theirs = line.post(COMPLETION, asked), line.unified.post(COMPLETION, json=asked)
    assert ours.json()["choices"] == theirs.json()["choices"]
    line.deployment.at_rest()


def test_what_was_stripped_is_counted(line: Line) -> None:
    before = line.deployment.metrics()
    assert line.post(COMPLETION, {"prompt": "a", **HOSTILE}, headers=HOSTILE_HEADERS).status_code == 200
    after = line.deployment.metrics()
    for name in (*HOSTILE, "x-request-id", "x-data-parallel-rank"):
        series = f'pdctl_stripped_fields_total{{field="{name}"}}'
        assert after[series] == before.get(series, 0) + 1


def test_headers_of_the_client(line: Line) -> None:
    """Engines see those that the topology passes, and the router's own ids; the client sees his again."""
    answer = line.post(COMPLETION, {"prompt": "a"}, headers={"X-Team": "blue", "X-Request-Id": "mine"})
    ours = answer.headers["x-pdctl-request-id"]
    assert (len(ours), answer.headers["x-request-id"]) == (32, "mine")
    for leg, one in zip("pd", line.last(), strict=True):
        assert one.headers["x-team"] == "blue"
        told = one.json.get("rid") if line.dialect == "sglang" else one.headers["x-request-id"]
        assert told == f"{ours}-{leg}0"
        expected = {"host", "content-length", "content-type", "x-team"}
        assert one.headers.keys() - {"x-request-id", "connection", "accept"} == expected


@pytest.mark.parametrize(
    "path",
    [
        *("/abort_request", "/flush_cache", "/metrics", "/v1/loads", "/sim/state", "/sim/faults", "/v1/chat"),
        *("/update_weights_from_disk", "/v1/completions/", "//generate", "/%76ersion", "/health_generate"),
        *("/v1/models/../x", "/v1/models/../../sim/state", "/"),
    ],
)
def test_unlisted_paths_never_reach_an_engine(line: Line, path: str) -> None:
    for method in ("GET", "POST", "PUT", "DELETE", "OPTIONS"):
        body = b"" if method == "GET" else b'{"prompt":"stray","model":"demo"}'
        request = httpx.Request(method, line.deployment.url, content=body)
        request.url = request.url.copy_with(raw_path=f"{path}?stray=1".encode())
        answer = line.deployment.client.send(request)
        assert answer.status_code == 404 or (answer.status_code == 405 and path.startswith("/v1/models/"))
        assert answer.headers["x-pdctl-reason"] == answer.json()["error"]["code"]
    arrived = (*line.prefill.requests, *line.decode.requests)
    assert not [one for one in arrived if "stray" in one.path or b"stray" in one.body]


def test_what_needs_a_whole_engine_is_404_with_the_reason(line: Line) -> None:
    before = len(line.generated())
    for path in ("/v1/responses", "/v1/messages", "/v1/embeddings"):
        answer = line.post(path, {"model": MODEL, "input": "hello", "messages": []})
        assert (answer.status_code, answer.headers["x-pdctl-reason"]) == (404, "path-not-served")
        assert "unified" in answer.json()["error"]["message"]
    assert len(line.generated()) == before
