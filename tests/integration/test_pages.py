"""What the router answers itself, and what it refuses before an engine hears of it."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from asking import CHAT, COMPLETION, GENERATE, limited
from deployment import GUARD_S, MODEL, Deployment, eventually, sim

pytestmark = pytest.mark.integration

CONTEXT = 1024
MAX_BODY = 64 * 1024


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A pair with a short context and small bodies."""
    options: dict[str, Any] = {"max-model-len": CONTEXT}
    pools = {role: sim(role, **options) for role in ("prefill", "decode")}
    folder: Path = tmp_path_factory.mktemp("small")
    with Deployment(folder, pools, router={"limits": {"max_body": "64KiB"}}) as made:
        yield made.up()


def refused(answer: httpx.Response, status: int, reason: str) -> str:
    """The answer is an error in OpenAI's form, for this reason; its message."""
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (status, reason), answer.text
    assert answer.headers["x-pdctl-reason"] == reason
    assert error.keys() == {"message", "type", "param", "code"}
    return str(error["message"])


def test_models(small: Deployment) -> None:
    found = small.client.get("/v1/models").json()
    assert found["object"] == "list"
    assert [one["id"] for one in found["data"]] == [MODEL]
    assert found["data"][0]["object"] == "model"
    assert found["data"][0]["max_model_len"] == CONTEXT
    assert small.client.get(f"/v1/models/{MODEL}").json() == found["data"][0]
    assert MODEL in refused(small.client.get("/v1/models/other"), 404, "unknown-model")


def test_health_and_readiness(small: Deployment) -> None:
    """The router lives while nothing can be served; it is ready only when something can."""
    assert small.client.get("/health").json() == {"status": "ok"}
    assert small.client.get("/ready").status_code == 200
    admin = httpx.Client(base_url=small.admin_url, trust_env=False, timeout=GUARD_S)
    with admin:
        assert admin.post("/gate", json={"instance": "decode-0"}).status_code == 200
        assert small.client.get("/health").status_code == 200
        assert small.client.get("/ready").status_code == 503
        refused(
            small.client.post(COMPLETION, json=limited(COMPLETION, {"prompt": "a"}, 4)), 503, "no-capacity"
        )
        assert admin.post("/ungate", json={"instance": "decode-0"}).status_code == 200
    eventually(lambda: small.client.get("/ready").status_code == 200)


def test_what_benchmark_clients_read(small: Deployment) -> None:
    """`sglang.benchmark.serving` reads `/server_info`: the last decode's internal states."""
    for path in ("/server_info", "/get_server_info"):
        info = small.client.get(path).json()
        for role in ("prefill", "decode"):
            assert [one["id"] for one in info[role]] == [f"{role}-0"]
            assert isinstance(info[role][0]["internal_states"][0], dict)
            assert info[role][0]["max_model_len"] == CONTEXT
        assert "127.0.0.1" not in json.dumps(info), "no address of the inside"
    assert small.client.get("/version").json()["version"]


def test_flushing(small: Deployment) -> None:
    """Asked twice, the second time what was cached is told by the usage; flushed, it is gone."""
    ask = limited(COMPLETION, {"prompt": "the same again " * 60}, 4)
    assert [_cached(small, ask) for _ in range(2)][1] > 0
    flushed = httpx.post(f"{small.admin_url}/flush_cache", trust_env=False, timeout=GUARD_S).json()
    assert flushed["success"] is True
    assert _cached(small, ask) == 0


def _cached(small: Deployment, ask: dict[str, Any]) -> int:
    small.at_rest(well=True)
    details = small.client.post(COMPLETION, json=ask).json()["usage"]["prompt_tokens_details"]
    return int(details["cached_tokens"])


@pytest.mark.parametrize(
    ("method", "path", "status", "reason"),
    [
        ("GET", "/nowhere", 404, "unknown-path"),
        ("POST", "/v1/chat", 404, "unknown-path"),
        ("POST", "/abort_request", 404, "unknown-path"),
        ("POST", "/flush_cache", 404, "unknown-path"),
        ("GET", "/metrics", 404, "unknown-path"),
        ("GET", COMPLETION, 405, "wrong-method"),
        ("POST", "/v1/models", 405, "wrong-method"),
        ("DELETE", "/health", 405, "wrong-method"),
        ("POST", "/v1/responses", 404, "path-not-served"),
        ("POST", "/v1/messages", 404, "path-not-served"),
        ("POST", "/v1/embeddings", 404, "path-not-served"),
    ],
)
def test_paths(small: Deployment, method: str, path: str, status: int, reason: str) -> None:
    body = {"model": MODEL, "input": "a", "prompt": "a", "messages": []} if method == "POST" else None
    answer = small.client.request(method, path, json=body)
    message = refused(answer, status, reason)
    if reason == "path-not-served":
        assert "unified" in message
    if status == 405:
        assert "POST" in answer.headers["allow"] or "GET" in answer.headers["allow"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "bad-json"),
        (b"{", "bad-json"),
        (b"[]", "bad-json"),
        (b'"text"', "bad-json"),
        (b'{"prompt":"a","prompt":"b"}', "duplicate-field"),
        (b'{"prompt":"a","n":0}', "bad-n"),
        (b'{"prompt":"a","n":"2"}', "bad-n"),
        (b'{"prompt":"a","n":2.5}', "bad-n"),
        (b'{"prompt":"a","max_tokens":-1}', "bad-request"),
        (b'{"prompt":"a","model":7}', "bad-request"),
        (b'{"prompt":"a","best_of":3}', "unsupported"),
    ],
)
def test_bodies(small: Deployment, body: bytes, reason: str) -> None:
    refused(small.client.post(COMPLETION, content=body), 400, reason)
    small.at_rest(well=True)


def test_a_model_that_is_not_served(small: Deployment) -> None:
    for path in (CHAT, COMPLETION, GENERATE):
        answer = small.client.post(path, json={"model": "other", "prompt": "a", "text": "a", "messages": []})
        assert f"served: {MODEL}" in refused(answer, 404, "unknown-model")


def test_a_body_over_the_limit(small: Deployment) -> None:
    """Case 28: told with the limit, at once when the length is told, and otherwise when it is reached."""
    big = json.dumps({"prompt": "a" * MAX_BODY}).encode()
    assert str(MAX_BODY) in refused(small.client.post(COMPLETION, content=big), 413, "too-large")
    chunks = iter([big[:40_000], big[40_000:]])
    assert str(MAX_BODY) in refused(small.client.post(COMPLETION, content=chunks), 413, "too-large")
    host, _, port = small.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), GUARD_S) as client:
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n")
        assert client.recv(4096).startswith(b"HTTP/1.1 413 ")
    fits = json.dumps({"prompt": "a", "user": "a" * (MAX_BODY - 50)}).encode()
    assert len(fits) < MAX_BODY
    assert small.client.post(COMPLETION, content=fits).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_over_the_context(small: Deployment, stream: bool) -> None:
    """Case 30: the limit is in the message, for ids by the router and for text by the engine; and 400, also
    of a stream, never 200."""
    ids = small.client.post(COMPLETION, json={"prompt": [7] * CONTEXT, "max_tokens": 1, "stream": stream})
    assert str(CONTEXT) in refused(ids, 400, "prompt-too-long")
    text = limited(COMPLETION, {"prompt": "word " * CONTEXT, "stream": stream}, 1)
    assert str(CONTEXT) in refused(small.client.post(COMPLETION, json=text), 400, "context-length")
    messages = {"messages": [{"role": "user", "content": "word " * CONTEXT}], "stream": stream}
    assert str(CONTEXT) in refused(
        small.client.post(CHAT, json=limited(CHAT, messages, 1)), 400, "context-length"
    )
    small.at_rest(well=True)
