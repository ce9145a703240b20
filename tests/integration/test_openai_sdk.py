"""The OpenAI Python SDK as a client, unchanged but for its base URL."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest
from asking import CHAT
from deployment import GUARD_S, MODEL, Fleet

pytestmark = pytest.mark.integration

MESSAGES: list[openai.types.chat.ChatCompletionMessageParam] = [
    {"role": "user", "content": "which way is the sea"}
]
TOOL: openai.types.chat.ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"at": {"type": "string"}}},
    },
}


@pytest.fixture
def sdk(fleet: Fleet) -> Iterator[openai.OpenAI]:
    url = f"{fleet.deployment.url}/v1"
    with openai.OpenAI(base_url=url, api_key="unused", max_retries=0, timeout=GUARD_S) as client:
        yield client


@pytest.fixture
def text(fleet: Fleet) -> str:
    """What a unified engine answers to MESSAGES."""
    asked = {"model": MODEL, "messages": MESSAGES, "max_tokens": 16}
    content = fleet.unified.post(CHAT, json=asked).json()["choices"][0]["message"]["content"]
    assert isinstance(content, str)
    return content


def test_chat(sdk: openai.OpenAI, text: str) -> None:
    answer = sdk.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=16)
    assert answer.choices[0].message.content == text
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 16


def test_streamed_chat(sdk: openai.OpenAI, text: str) -> None:
    options: openai.types.chat.ChatCompletionStreamOptionsParam = {"include_usage": True}
    stream = sdk.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=16, stream=True, stream_options=options
    )
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == text
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 16


def test_samples_tools_and_fields_that_the_sdk_does_not_know(sdk: openai.OpenAI, text: str) -> None:
    answer = sdk.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        max_tokens=16,
        n=2,
        tools=[TOOL],
        temperature=0.7,
        logprobs=True,
        extra_body={"top_k": 4, "chat_template_kwargs": {"enable_thinking": False}},
    )
    assert [c.index for c in answer.choices] == [0, 1]
    for choice in answer.choices:
        assert choice.logprobs is not None
        assert choice.logprobs.content is not None
        assert "".join(one.token for one in choice.logprobs.content) == choice.message.content == text


def test_completions(sdk: openai.OpenAI) -> None:
    batch = sdk.completions.create(model=MODEL, prompt=["one", "two"], max_tokens=8)
    assert [c.index for c in batch.choices] == [0, 1]
    for choice, prompt in zip(batch.choices, ("one", "two"), strict=True):
        stream = sdk.completions.create(model=MODEL, prompt=prompt, max_tokens=8, stream=True)
        assert "".join(chunk.choices[0].text for chunk in stream) == choice.text


def test_models(sdk: openai.OpenAI) -> None:
    assert [model.id for model in sdk.models.list()] == [MODEL]
    assert sdk.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError) as raised:
        sdk.models.retrieve("other")
    assert raised.value.code == "unknown-model"


def test_errors_are_the_sdks_own(sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        sdk.chat.completions.create(model="other", messages=MESSAGES)
    assert (unknown.value.code, unknown.value.param) == ("unknown-model", "model")
    assert f"served: {MODEL}" in unknown.value.message
    with pytest.raises(openai.BadRequestError) as long:
        sdk.completions.create(model=MODEL, prompt=[1] * 50_000)
    assert long.value.code == "prompt-too-long"
    assert "40960" in long.value.message
