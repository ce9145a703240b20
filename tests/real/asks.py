"""Requests for greedy tokens, and what is compared of their answers: texts, token ids, counts."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import httpx

MODEL = "tiny"
FIRST_TOKEN, VOCABULARY = 5, 2048
"""Token ids that stand for text: the ones below are the tokenizer's special tokens."""

SIZES = (5, 16, 33, 100, 129, 500, 1500, 3000)
"""Prompt lengths in tokens: within one KV block of 32, just over a block, of several prefill chunks."""
WORDS = {5: 1, 16: 4, 33: 10, 100: 30, 129: 60, 500: 200, 1500: 700, 3000: 1500}
"""Words of a chat's text instead: 14 to about 2,100 tokens with the template's."""

OUTPUT = 24
TIMEOUT_S = 120.0

_WORDS = (
    *("def", "class", "return", "import", "lambda", "yield", "while", "socket", "thread", "buffer", "signal"),
    *("parser", "token", "stream", "error", "value", "index", "table", "queue", "format"),
)


@dataclass(frozen=True)
class Ask:
    """One request."""

    path: str
    body: Mapping[str, Any]
    headers: Mapping[str, str] | None = None

    def having(self, **fields: Any) -> Ask:
        """The same with other or more fields."""
        return replace(self, body={**self.body, **fields})

    def without(self, *names: str) -> Ask:
        """The same without some fields."""
        return replace(self, body={n: v for n, v in self.body.items() if n not in names})

    @property
    def stream(self) -> bool:
        """Whether the answer is a stream."""
        return bool(self.body.get("stream"))


@dataclass(frozen=True)
class Choice:
    """One text of an answer. `tokens` is None where the engine does not tell them on this path."""

    text: str
    tokens: tuple[int, ...] | None
    finish: str | None


@dataclass(frozen=True)
class Answer:
    """What was generated, and the counts of prompt and output tokens."""

    choices: tuple[Choice, ...]
    prompt_tokens: int
    output_tokens: int

    def agrees(self, other: Answer) -> bool:
        """Same texts, ends and counts; same tokens where both tell them."""
        pairs = list(zip(self.choices, other.choices, strict=False))
        return (
            len(self.choices) == len(other.choices)
            and (self.prompt_tokens, self.output_tokens) == (other.prompt_tokens, other.output_tokens)
            and all((a.text, a.finish) == (b.text, b.finish) for a, b in pairs)
            and all(a.tokens == b.tokens for a, b in pairs if a.tokens is not None and b.tokens is not None)
        )


def tokens(size: int, seed: int = 0) -> list[int]:
    """A prompt of `size` token ids."""
    return random.Random(1000 * seed + size).choices(range(FIRST_TOKEN, VOCABULARY), k=size)


def text(words: int, seed: int = 0) -> str:
    """A prompt of so many words."""
    return " ".join(random.Random(1000 * seed + words).choices(_WORDS, k=words))


def completion(prompt: Any, **fields: Any) -> Ask:
    """Of text, token ids, or a list of either; the answer tells token ids."""
    greedy = {"max_tokens": OUTPUT, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    return Ask("/v1/completions", {"model": MODEL, "prompt": prompt, **greedy, **fields})


def chat(content: str, **fields: Any) -> Ask:
    """Of one message."""
    messages = [{"role": "user", "content": content}]
    greedy = {"max_tokens": OUTPUT, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    return Ask("/v1/chat/completions", {"model": MODEL, "messages": messages, **greedy, **fields})


def generate(prompt: Sequence[int], **fields: Any) -> Ask:
    """SGLang's own path."""
    sampling = {"max_new_tokens": OUTPUT, "temperature": 0, "ignore_eos": True}
    return Ask("/generate", {"input_ids": list(prompt), "sampling_params": sampling, **fields})


def ask_for(way: str, size: int) -> Ask:
    """The request of one way and size."""
    if way == "chat":
        return chat(text(WORDS[size]))
    return (generate if way == "generate" else completion)(tokens(size))


def streamed(ask: Ask) -> Ask:
    """The same as a stream, with the counts at its end."""
    if ask.path == "/generate":
        return ask.having(stream=True)
    return ask.having(stream=True, stream_options={"include_usage": True})


def post(client: httpx.Client, ask: Ask) -> httpx.Response:
    """Send it, and read the whole answer."""
    return client.post(ask.path, json=ask.body, headers=dict(ask.headers or {}), timeout=TIMEOUT_S)


def answer(client: httpx.Client, ask: Ask) -> Answer:
    """The answer, which must be a good one."""
    response = post(client, ask)
    assert response.status_code == 200, f"{response.status_code} {response.text[:500]}"
    return read_stream(response.text) if ask.stream else read(response.json())


def read(body: Any) -> Answer:
    """A whole answer's JSON, in OpenAI's form or /generate's."""
    if "choices" not in body:
        body = body if isinstance(body, list) else [body]
        return _of_generate(body)
    choices = sorted(body["choices"], key=lambda choice: choice["index"])
    usage = body["usage"]
    return Answer(
        tuple(Choice(_text(c), _tokens(c), c["finish_reason"]) for c in choices),
        usage["prompt_tokens"],
        usage["completion_tokens"],
    )


def read_stream(body: str) -> Answer:
    """A whole stream of events, which must have its last mark and no error."""
    parsed = list(events(body.splitlines()))
    assert body.rstrip().endswith("data: [DONE]"), f"the stream has no last mark: {body[-200:]}"
    assert not any("error" in event for event in parsed), body[-500:]
    if parsed and "choices" not in parsed[0]:
        return _of_generate([parsed[-1]])
    found: dict[int, Choice] = {}
    usage: Mapping[str, Any] = {}
    for event in parsed:
        usage = event.get("usage") or usage
        for piece in event["choices"]:
            found[piece["index"]] = _joined(found.get(piece["index"]), piece)
    return Answer(
        tuple(found[index] for index in sorted(found)),
        usage["prompt_tokens"],
        usage["completion_tokens"],
    )


def events(lines: Iterable[str]) -> Iterator[Any]:
    """The JSON of each event but the last mark."""
    for line in lines:
        if line.startswith("data:") and line != "data: [DONE]":
            yield json.loads(line.removeprefix("data:"))


def _joined(before: Choice | None, piece: Mapping[str, Any]) -> Choice:
    told = _tokens(piece)
    if before is None:
        return Choice(_text(piece), told, piece["finish_reason"])
    both = before.tokens if told is None else (before.tokens or ()) + told
    return Choice(before.text + _text(piece), both, piece["finish_reason"] or before.finish)


def _text(choice: Mapping[str, Any]) -> str:
    inner = choice.get("message") or choice.get("delta")
    return (inner["content"] if inner and "content" in inner else choice.get("text")) or ""


def _tokens(choice: Mapping[str, Any]) -> tuple[int, ...] | None:
    told = choice.get("token_ids") or choice.get("response_token_ids")
    return tuple(told) if told is not None else None


def _of_generate(answers: Sequence[Mapping[str, Any]]) -> Answer:
    metas = [one["meta_info"] for one in answers]
    return Answer(
        tuple(
            Choice(one["text"], tuple(one["output_ids"]), one["meta_info"]["finish_reason"]["type"])
            for one in answers
        ),
        sum(meta["prompt_tokens"] for meta in metas),
        sum(meta["completion_tokens"] for meta in metas),
    )
