"""Engines' error bodies as clients are told of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from orchestrator.engines import errors
from orchestrator.errors import (
    BadRequest,
    LegFailed,
    NoCapacity,
    NotServed,
    Overloaded,
    RequestError,
    TooLarge,
)

Captured = Callable[[str], bytes]


@pytest.mark.parametrize(
    ("status", "name", "kind", "says"),
    [
        (400, "sglang/error_native.json", BadRequest, "without bootstrap room id"),
        (400, "sglang/error_flat.json", BadRequest, "without bootstrap room id"),
        (200, "sglang/error_event.sse", BadRequest, "without bootstrap room id"),
        (400, "sglang/error_bad_json.json", BadRequest, "JSON decode error"),
        (404, "sglang/error_model.json", NotServed, "The model 'nope' does not exist"),
        (404, "sglang/error_path.json", NotServed, "Not Found"),
        (500, "sglang/error_decode_500.json", LegFailed, "timed out after 10.0s"),
        (400, "vllm/error_bad.json", BadRequest, "Either prompt or prompt_embeds"),
        (404, "vllm/error_model.json", NotServed, "Valid aliases: tiny"),
        (403, "vllm/error_forbidden.json", LegFailed, "router's own credentials"),
        (500, "vllm/error_500.json", LegFailed, "Internal server error"),
        (200, "vllm/error_event.sse", LegFailed, "Internal server error"),
    ],
)
def test_captured_errors(
    captured: Captured, status: int, name: str, kind: type[RequestError], says: str
) -> None:
    error = errors.to_error(status, captured(name))
    assert type(error) is kind
    assert says in error.message


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("sglang/error_too_long.json", "8192"),
        ("sglang/error_too_long_native.json", "8192"),
        ("sglang/error_max_tokens.json", "8192"),
        ("vllm/error_max_tokens.json", "4096"),
    ],
)
def test_case_30_an_over_long_prompt_is_refused_with_the_engines_limit(
    captured: Captured, name: str, limit: str
) -> None:
    error = errors.to_error(400, captured(name))
    assert error.http_status == 400
    assert error.reason == "context-length"
    assert limit in error.message


def test_the_offending_field_is_passed_on(captured: Captured) -> None:
    assert errors.to_error(400, captured("vllm/error_max_tokens.json")).param == "max_tokens"


@pytest.mark.parametrize(
    "message",
    [
        "The engine is currently busy and cannot accept new requests. Please try again later.",
        "The engine has reached its prefill token backlog limit.",
        "The request queue is full.",
    ],
)
def test_a_full_engine_is_overload(message: str) -> None:
    error = errors.to_error(503, b'{"error":{"message":"%s","code":503}}' % message.encode())
    assert type(error) is Overloaded
    assert error.reason == "engine-queue-full"


def test_other_statuses() -> None:
    assert type(errors.to_error(503, b"")) is NoCapacity
    assert type(errors.to_error(413, b"")) is TooLarge
    assert type(errors.to_error(422, b'{"detail":[{"loc":["body"]}]}')) is BadRequest
    assert type(errors.to_error(418, b"")) is BadRequest
    assert type(errors.to_error(401, b'{"error": "Unauthorized"}')) is LegFailed
    assert type(errors.to_error(502, b"<html>")) is LegFailed


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b"data: ", b'{"error":{}}', b'{"error":[1]}', b"\xff"]
)
@pytest.mark.parametrize("status", [200, 400, 404, 500, 503])
def test_no_body_is_too_strange(body: bytes, status: int) -> None:
    error = errors.to_error(status, body)
    assert error.message
    assert error.http_status >= 400


@pytest.mark.parametrize(
    "inside",
    [
        "http://10.1.2.3:8998/route",
        "10.1.2.3:31900",
        "10.1.2.3",
        "[fd00::1]:8998",
        "localhost:8000",
        "node-7.cluster.local:30000",
        "tcp://192.0.2.2:40685",
        "/opt/engine/lib/python3.11/site-packages/sglang/srt/utils.py",
    ],
)
def test_the_inside_of_the_fleet_stays_inside(inside: str) -> None:
    told = f"Lost connection with prefill instance (at {inside}), giving up"
    for status in (400, 500):
        message = errors.to_error(status, b'{"message":"%s"}' % told.encode()).message
        assert inside not in message
        assert message.endswith("giving up")


def test_a_traceback_is_cut_off(captured: Captured) -> None:
    message = errors.to_error(400, captured("sglang/error_bad_json.json")).message
    assert "File" not in message
    assert "site-packages" not in message


def test_messages_are_bounded() -> None:
    message = errors.to_error(400, b'{"message":"%s"}' % (b"x" * 5000)).message
    assert len(message) == errors.MAX_MESSAGE


def test_ordinary_words_are_left_alone() -> None:
    told = "Expected a value between 1/2 and 3.5 for top_p, got 7 (and/or nothing) in /v1/completions"
    assert errors.describe(told) == told
