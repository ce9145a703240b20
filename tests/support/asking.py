"""Requests to an OpenAI-compatible endpoint, and what of its answers must be equal to another's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from typing import Any

import httpx
from deployment import GUARD_S, MODEL

CHAT, COMPLETION, GENERATE = "/v1/chat/completions", "/v1/completions", "/generate"
WORDS = "a river does not ask the stone why it lies there "


def limited(path: str, body: dict[str, Any], tokens: int) -> dict[str, Any]:
    """The body with a limit of output tokens."""
    if path == GENERATE:
        sampling = {"max_new_tokens": tokens, "temperature": 0, **body.get("sampling_params", {})}
        return {**body, "sampling_params": sampling}
    return {"model": MODEL, "max_tokens": tokens, "temperature": 0, **body}


def streaming(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The body as a stream that tells its usage."""
    return {
        **body,
        "stream": True,
        **({} if path == GENERATE else {"stream_options": {"include_usage": True}}),
    }


def events(answer: httpx.Response) -> list[dict[str, Any]]:
    """The events of a stream, which ends by exactly one `[DONE]` and has no error among them."""
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    data = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    assert data[-1] == "[DONE]"
    found = [json.loads(one) for one in data[:-1]]
    assert not [one for one in found if "error" in one]
    return found


def core(path: str, body: Any) -> Any:
    """What of a whole answer must be equal: not ids, clocks, nor what lay in whose prefix cache."""
    if path == GENERATE:
        return [_generated(one) for one in body] if isinstance(body, list) else _generated(body)
    return body["choices"], _counts(body["usage"]), body["model"], body["object"]


def streamed(path: str, found: list[dict[str, Any]]) -> Any:
    """What of a stream must be equal: by index, the text and how it ended; and the usage."""
    if path == GENERATE:
        last = {one.get("index"): one for one in found}
        return {index: _generated(one) for index, one in last.items()}
    texts: dict[int, str] = {}
    ends: dict[int, str] = {}
    usages = []
    for event in found:
        for choice in event["choices"]:
            index = choice["index"]
            piece = choice["delta"].get("content") if path == CHAT else choice["text"]
            texts[index] = texts.get(index, "") + (piece or "")
            if choice["finish_reason"]:
                assert index not in ends
                ends[index] = choice["finish_reason"]
        if event.get("usage") and not event["choices"]:
            usages.append(_counts(event["usage"]))
    return texts, ends, usages


def _generated(one: dict[str, Any]) -> Any:
    names = ("prompt_tokens", "completion_tokens", "finish_reason")
    return one["text"], one["output_ids"], {name: one["meta_info"][name] for name in names}


def _counts(usage: dict[str, Any]) -> dict[str, int]:
    return {name: usage[f"{name}_tokens"] for name in ("prompt", "completion", "total")}


@contextmanager
def flowing(client: httpx.Client, body: dict[str, Any]) -> Iterator[Future[str]]:
    """A streamed completion that has begun, read in the background; its result is the whole text.

    Reading it raises AssertionError if the stream does not end by `[DONE]`.
    """
    begun = Event()

    def read() -> str:
        text = ""
        try:
            with client.stream("POST", COMPLETION, json={**body, "stream": True}) as answer:
                assert answer.status_code == 200, answer.read()
                data = ""
                for line in answer.iter_lines():
                    if line.startswith("data: "):
                        data = line[6:]
                        text += "" if data == "[DONE]" else _piece(data)
                        begun.set()
                assert data == "[DONE]", data
        finally:
            begun.set()
        return text

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(read)
        assert begun.wait(GUARD_S)
        yield future


def _piece(data: str) -> str:
    event = json.loads(data)
    assert "error" not in event, event
    return "".join(choice["text"] for choice in event["choices"])
