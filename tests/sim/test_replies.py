"""Answers of several generations, which all end in one step of the engine."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import pytest


@pytest.mark.parametrize("dialect", ["sglang", "vllm"])
async def test_a_streamed_batch_is_whole(request: Any, client: Any, dialect: str) -> None:
    """Every generation's last chunk comes before the stream's end, and says what a whole answer does."""
    engine = request.getfixturevalue(dialect).unified
    body = {"model": "sim", "prompt": ["one", "two", "three"], "n": 2, "max_tokens": 16, "ignore_eos": True}
    whole = (await client.post(engine, "/v1/completions", body)).json()
    answer = await client.post(engine, "/v1/completions", {**body, "stream": True})
    texts: dict[int, str] = defaultdict(str)
    ends = []
    data = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    assert data[-1] == "[DONE]"
    for choice in (one for event in data[:-1] for one in json.loads(event)["choices"]):
        texts[choice["index"]] += choice["text"]
        ends += [choice["index"]] if choice["finish_reason"] else []
    assert texts == {choice["index"]: choice["text"] for choice in whole["choices"]}
    assert sorted(ends) == list(range(6))
    await client.idle(engine)


async def test_samples_of_generate_are_told_apart(sglang: Any, client: Any) -> None:
    """By index, as the real engine does for anything but a single answer."""
    body = {"text": "one", "sampling_params": {"max_new_tokens": 4, "n": 2}, "stream": True}
    answer = await client.post(sglang.unified, "/generate", body)
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    assert {event["index"] for event in events} == {0, 1}
    single = await client.post(
        sglang.unified, "/generate", {**body, "sampling_params": {"max_new_tokens": 4}}
    )
    assert '"index"' not in single.text
