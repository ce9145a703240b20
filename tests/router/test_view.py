"""What is read out of a body for a decision: the model, the prompt's size and hashes, counts and limits."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from orchestrator.core.types import PathKind, RequestView
from orchestrator.engines.splice import JsonBody
from orchestrator.errors import BadRequest, NotServed
from orchestrator.router.view import (
    BLOCK_BYTES,
    MEDIA_TOKENS,
    Asked,
    Prompt,
    check_depth,
    check_length,
    model_of,
    prompt_of,
    read,
)

ASKED = Asked(id="r", arrived_s=1.5, slo_class="gold", tenant="acme", headers={"x-a": "b"})


def body(**fields: Any) -> JsonBody:
    return JsonBody(orjson.dumps(fields))


def view(kind: PathKind, seed: int = 7, **fields: Any) -> RequestView:
    parsed = body(**fields)
    return read(kind, parsed, "m", prompt_of(kind, parsed), seed, ASKED)


def chat(*texts: Any, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text} for text in texts], **more}


def test_the_model() -> None:
    assert model_of(body(model="a"), ("a", "b")) == "a"
    assert model_of(body(), ("a",)) == "a"
    assert model_of(body(model=None), ("a",)) == "a"
    with pytest.raises(NotServed, match="served: a, b"):
        model_of(body(model="c"), ("a", "b"))
    with pytest.raises(BadRequest, match="a, b"):
        model_of(body(), ("a", "b"))
    with pytest.raises(BadRequest):
        model_of(body(model=["a"]), ("a",))


@pytest.mark.parametrize(
    ("kind", "fields", "tokens", "count", "exact"),
    [
        (PathKind.COMPLETION, {"prompt": "a" * 398}, 100, 1, False),
        (PathKind.COMPLETION, {"prompt": ["a" * 97, "b" * 98]}, 51, 2, False),
        (PathKind.COMPLETION, {"prompt": [1, 2, 3]}, 3, 1, True),
        (PathKind.COMPLETION, {"prompt": [[1, 2, 3], [4]]}, 4, 2, True),
        (PathKind.COMPLETION, {}, 0, 1, False),
        (PathKind.COMPLETION, {"prompt": []}, 1, 1, False),
        (PathKind.COMPLETION, {"prompt": {"odd": 1}}, 3, 1, False),
        (PathKind.GENERATE, {"text": "a" * 38}, 10, 1, False),
        (PathKind.GENERATE, {"input_ids": [5] * 9}, 9, 1, True),
        (PathKind.GENERATE, {"text": None, "input_ids": [[5] * 9, [6]]}, 10, 2, True),
        (PathKind.EMBED, {"input": ["aaaa", "bbbb"]}, 4, 2, False),
        (PathKind.TOKENIZE, {"prompt": "a" * 38}, 10, 1, False),
        (PathKind.RESPONSES, {"input": "a" * 38}, 10, 1, False),
    ],
)
def test_prompts(kind: PathKind, fields: dict[str, Any], tokens: int, count: int, exact: bool) -> None:
    prompt = prompt_of(kind, body(**fields))
    assert (prompt.tokens, prompt.number, prompt.exact) == (tokens, count, exact)


def test_a_chat_is_estimated_by_its_text() -> None:
    assert abs(prompt_of(PathKind.CHAT, body(**chat("a" * 4000))).tokens - 1000) < 20
    many = prompt_of(PathKind.CHAT, body(**chat(*["a" * 40] * 100))).tokens
    assert 1000 <= many <= 1500
    tools = [{"type": "function", "function": {"name": "f", "description": "a" * 4000}}]
    assert prompt_of(PathKind.CHAT, body(**chat("a", tools=tools))).tokens > 1000


def test_an_image_is_not_counted_by_its_bytes() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 1_000_000}}
    text = {"type": "text", "text": "a" * 400}
    prompt = prompt_of(PathKind.CHAT, body(**chat([text, image, image])))
    assert 2 * MEDIA_TOKENS <= prompt.tokens < 2 * MEDIA_TOKENS + 200
    assert prompt.media == 2
    assert prompt_of(PathKind.CHAT, body(**chat("a"))).media == 0
    audio = {"type": "input_audio", "input_audio": {"data": "A" * 1_000_000, "format": "wav"}}
    assert prompt_of(PathKind.CHAT, body(**chat([audio]))).tokens < MEDIA_TOKENS + 100


def test_odd_messages_are_left_to_the_engine() -> None:
    for messages in (["text"], [7], [{"content": ["x", 7]}], [{"content": {"a": 1}}], "text", {"a": 1}, []):
        prompt_of(PathKind.CHAT, body(messages=messages))


def test_the_view() -> None:
    got = view(PathKind.CHAT, **chat("hi"), stream=True, n=3, max_tokens=9)
    assert (got.id, got.model, got.path, got.arrived_s) == ("r", "m", PathKind.CHAT, 1.5)
    assert (got.stream, got.n, got.max_tokens) == (True, 3, 9)
    assert (got.slo_class, got.tenant, got.headers) == ("gold", "acme", {"x-a": "b"})


@pytest.mark.parametrize(
    ("kind", "fields", "limit"),
    [
        (PathKind.CHAT, {}, 4096),
        (PathKind.CHAT, {"max_tokens": 5}, 5),
        (PathKind.CHAT, {"max_tokens": 5, "max_completion_tokens": 7}, 7),
        (PathKind.CHAT, {"max_tokens": None}, 4096),
        (PathKind.CHAT, {"max_tokens": 5.0}, 5),
        (PathKind.COMPLETION, {}, 16),
        (PathKind.GENERATE, {}, 128),
        (PathKind.GENERATE, {"sampling_params": {"max_new_tokens": 3}}, 3),
        (PathKind.GENERATE, {"sampling_params": [{"max_new_tokens": 3}]}, 128),
        (PathKind.RESPONSES, {"max_output_tokens": 3}, 3),
    ],
)
def test_limits(kind: PathKind, fields: dict[str, Any], limit: int) -> None:
    assert view(kind, **fields).max_tokens == limit


def test_answers_asked_for() -> None:
    assert view(PathKind.COMPLETION, prompt=["a", "b"], n=3).n == 6
    assert view(PathKind.GENERATE, text="a", sampling_params={"n": 2}).n == 2
    for wrong in (0, -1, 1.5, True, "2", [1], 1025):
        with pytest.raises(BadRequest) as caught:
            view(PathKind.CHAT, **chat("a"), n=wrong)
        assert caught.value.param == "n"
    assert view(PathKind.CHAT, **chat("a"), n=None).n == 1


def test_a_longer_conversation_shares_its_beginning() -> None:
    texts = [f"turn {i} " + "lorem ipsum " * 60 for i in range(6)]
    short = view(PathKind.CHAT, **chat(*texts[:4])).block_hashes
    long = view(PathKind.CHAT, **chat(*texts)).block_hashes
    other = view(PathKind.CHAT, **chat("x" + texts[0], *texts[1:])).block_hashes
    assert len(short) > 4
    assert long[: len(short)] == short
    assert not set(other) & set(long)
    assert view(PathKind.CHAT, 8, **chat(*texts)).block_hashes[0] != long[0]


def test_tools_come_first_in_the_hashes() -> None:
    tools = [{"description": "a" * BLOCK_BYTES}]
    with_tools = view(PathKind.CHAT, tools=tools, **chat("b" * 2 * BLOCK_BYTES)).block_hashes
    without = view(PathKind.CHAT, **chat("b" * 2 * BLOCK_BYTES)).block_hashes
    same = view(PathKind.CHAT, tools=tools, **chat("c" * 2 * BLOCK_BYTES)).block_hashes
    assert not set(with_tools) & set(without)
    assert with_tools[0] == same[0]


def test_length() -> None:
    exact = Prompt(b"", 20, 10, True, 2)
    check_length(exact, 11)
    check_length(exact, None)
    check_length(Prompt(b"", 20, 10, False, 1), 5)
    with pytest.raises(BadRequest, match="limit of 10") as caught:
        check_length(exact, 10)
    assert caught.value.reason == "prompt-too-long"


@pytest.mark.parametrize("opening", ['{"a":', "[1,"])
def test_a_body_may_be_nested_so_deep_and_no_deeper(opening: str) -> None:
    closing = "}" if opening[0] == "{" else "]"

    def nested(levels: int) -> JsonBody:
        inner = opening * (levels - 1) + "1" + closing * (levels - 1)
        return JsonBody(f'{{"text": "{"[" * 100}", "many": [{"[]," * 100}0], "deep": {inner}}}'.encode())

    for levels in (2, 10, 64):
        check_depth(nested(levels), 64)
    for levels in (65, 200, 900):
        with pytest.raises(BadRequest, match="more than 64 levels deep") as refused:
            check_depth(nested(levels), 64)
        assert refused.value.reason == "too-deep"
    check_depth(body(a=1), 1)
    with pytest.raises(BadRequest):
        check_depth(body(a=[]), 1)


def test_what_no_parser_takes_by_recursion_is_no_json() -> None:
    with pytest.raises(BadRequest) as refused:
        JsonBody(b'{"a":' * 100_000 + b"1" + b"}" * 100_000)
    assert refused.value.reason == "bad-json"
