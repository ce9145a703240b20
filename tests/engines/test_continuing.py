"""Which streams may go on as another request, and how that one is written."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.types import PathKind
from orchestrator.engines import continuing
from orchestrator.engines.continuing import Told
from orchestrator.engines.splice import JsonBody

CHAT, TEXT = PathKind.CHAT, PathKind.COMPLETION
MESSAGES = [{"role": "user", "content": "hi"}]


def body(**fields: Any) -> JsonBody:
    return JsonBody(orjson.dumps({"model": "m", "stream": True, **fields}))


def said(kind: PathKind, *texts: str, **more: Any) -> Told:
    told = Told()
    for text in texts:
        choice = {"delta": {"content": text}} if kind is CHAT else {"text": text}
        told.read(kind, b"data: %b\n\n" % orjson.dumps({"choices": [{**choice, **more}]}))
    return told


def rest(kind: PathKind, told: Told, **fields: Any) -> dict[str, Any]:
    made = continuing.request(kind, body(**fields), told)
    assert made is not None
    return made.fields


def test_a_completions_text_becomes_part_of_its_prompt() -> None:
    made = rest(TEXT, said(TEXT, " a", " b"), prompt="x", max_tokens=10, top_k=5)
    assert made == {"model": "m", "stream": True, "prompt": "x a b", "max_tokens": 8, "top_k": 5}
    assert rest(TEXT, said(TEXT, " a"), prompt="x")["max_tokens"] == 15, "the engines' own limit"


def test_a_chats_text_becomes_the_message_that_is_continued() -> None:
    made = rest(CHAT, said(CHAT, "Hel", "lo"), messages=MESSAGES, max_completion_tokens=9)
    assert made["messages"] == [*MESSAGES, {"role": "assistant", "content": "Hello"}]
    assert made["continue_final_message"] is True
    assert made["add_generation_prompt"] is False
    assert made["max_completion_tokens"] == 7
    assert "max_tokens" not in rest(CHAT, said(CHAT, "a"), messages=MESSAGES)


def test_token_ids_are_taken_where_the_engine_tells_them() -> None:
    asked = {"return_token_ids": True, "max_tokens": 9}
    told = said(TEXT, "a", token_ids=[7, 8], prompt_token_ids=[1, 2])
    assert rest(TEXT, told, prompt="x", **asked)["prompt"] == [1, 2, 7, 8]
    assert rest(TEXT, said(TEXT, "a", token_ids=[7]), prompt=[3], **asked)["prompt"] == [3, 7]
    assert rest(TEXT, told, prompt="x", **asked)["max_tokens"] == 7


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 2}, {"logprobs": True}, {"logprobs": 0}, {"top_logprobs": 3}, {"tools": [{}]}, {"echo": True},
        {"response_format": {"type": "json_object"}}, {"guided_regex": "x"}, {"presence_penalty": 0.5},
        {"stream": False}, {"structured_outputs": {"json": {}}}, {"min_tokens": 5},
    ],
)  # fmt: skip
def test_what_is_more_than_plain_text_does_not_go_on(fields: dict[str, Any]) -> None:
    for kind, plain in ((TEXT, {"prompt": "x"}), (CHAT, {"messages": MESSAGES})):
        asked = body(**plain, **fields)
        if fields == {"logprobs": 0} and kind is CHAT:
            continue
        assert not continuing.sound(kind, asked.fields)
        assert continuing.request(kind, asked, said(kind, "a")) is None


def test_plain_values_written_out_are_plain() -> None:
    asked = body(prompt="x", n=1, echo=False, logprobs=None, response_format={"type": "text"})
    assert continuing.sound(TEXT, asked.fields)
    assert not continuing.sound(PathKind.GENERATE, asked.fields)
    assert not continuing.sound(TEXT, body(prompt=[1, 2]).fields), "its output has no token ids"
    assert not continuing.sound(TEXT, body(prompt=["a", "b"]).fields)


@pytest.mark.parametrize(
    "choice",
    [
        {"delta": {"reasoning_content": "hm"}},
        {"delta": {"tool_calls": [{}]}},
        {"delta": {"content": "a"}, "finish_reason": "stop"},
    ],
)
def test_what_no_prompt_can_say_or_was_over_does_not_go_on(choice: dict[str, Any]) -> None:
    told = Told()
    told.read(CHAT, b"data: %b\n\n" % orjson.dumps({"choices": [choice]}))
    assert continuing.request(CHAT, body(messages=MESSAGES), told) is None


@pytest.mark.parametrize("limit", [3, 4])
def test_what_has_all_the_tokens_it_asked_for_does_not_go_on(limit: int) -> None:
    """Only its end is missing: one token more would be one that nobody asked for."""
    told = said(TEXT, *"abcd")
    assert continuing.request(TEXT, body(prompt="x", max_tokens=limit), told) is None
    told = said(CHAT, *"abcd")
    for name in ("max_tokens", "max_completion_tokens"):
        assert continuing.request(CHAT, body(messages=MESSAGES, **{name: limit}), told) is None
    assert continuing.request(TEXT, body(prompt="x"), said(TEXT, *"a" * 16)) is None, "the engines' own limit"
    assert rest(TEXT, said(TEXT, *"abc"), prompt="x", max_tokens=4)["max_tokens"] == 1


def test_nonsense_does_not_go_on() -> None:
    told = Told()
    told.read(TEXT, b"data: {\n\n")
    assert continuing.request(TEXT, body(prompt="x"), told) is None


@given(st.lists(st.text()), st.text())
def test_no_text_is_lost_or_changed(texts: list[str], prompt: str) -> None:
    texts = [t.encode("utf-8", "ignore").decode() for t in texts]
    prompt = prompt.encode("utf-8", "ignore").decode()
    told = said(TEXT, *texts)
    assert rest(TEXT, told, prompt=prompt, max_tokens=len(texts) + 1)["prompt"] == prompt + "".join(texts)
