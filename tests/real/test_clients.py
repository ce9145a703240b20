"""The OpenAI Python SDK against the router."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from asks import MODEL, OUTPUT, WORDS, text, tokens
from openai import BadRequestError, OpenAI
from pair import Pair

SIZE = 129
GREEDY: dict[str, Any] = {
    "model": MODEL,
    "max_tokens": OUTPUT,
    "temperature": 0,
    "extra_body": {"ignore_eos": True},
}


@pytest.fixture
def sdk(pair: Pair) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{pair.deployment.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_chat(pair: Pair, sdk: OpenAI) -> None:
    expected = pair.reference.answers["chat", SIZE]
    told = sdk.chat.completions.create(messages=[{"role": "user", "content": text(WORDS[SIZE])}], **GREEDY)
    assert told.choices[0].message.content == expected.choices[0].text
    assert told.choices[0].finish_reason == "length"
    assert (told.usage.prompt_tokens, told.usage.completion_tokens) == (expected.prompt_tokens, OUTPUT)


def test_a_chat_as_a_stream(pair: Pair, sdk: OpenAI) -> None:
    expected = pair.reference.answers["chat", SIZE]
    stream = sdk.chat.completions.create(
        messages=[{"role": "user", "content": text(WORDS[SIZE])}],
        stream=True,
        stream_options={"include_usage": True},
        **GREEDY,
    )
    chunks = list(stream)
    said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert said == expected.choices[0].text
    assert chunks[-1].usage.completion_tokens == OUTPUT
    assert len(chunks) > 3


def test_a_completion(pair: Pair, sdk: OpenAI) -> None:
    told = sdk.completions.create(prompt=tokens(SIZE), **GREEDY)
    assert told.choices[0].text == pair.reference.answers["completion", SIZE].choices[0].text
    stream = sdk.completions.create(prompt=tokens(SIZE), stream=True, **GREEDY)
    assert "".join(chunk.choices[0].text for chunk in stream) == told.choices[0].text


def test_models_and_errors_are_the_sdk_s_own(sdk: OpenAI) -> None:
    assert [model.id for model in sdk.models.list()] == [MODEL]
    with pytest.raises(BadRequestError) as refused:
        sdk.completions.create(prompt=tokens(9_000), **GREEDY)
    assert refused.value.code == "prompt-too-long"
