"""From a client's bytes to the RequestView that decisions are made on; the body itself goes no further."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from orchestrator.core.prefix import chain
from orchestrator.core.types import PathKind, RequestView
from orchestrator.engines.splice import JsonBody
from orchestrator.errors import BadRequest, NotServed

BYTES_PER_TOKEN = 4
"""Bytes of JSON text one token is taken to be: what byte-pair vocabularies average over English and code.
Other scripts take more bytes in UTF-8, and about as many tokens more."""

BLOCK_BYTES = 128 * BYTES_PER_TOKEN
"""Text that one block hash stands for: 128 tokens, as `core.contracts.Context.block_tokens` has it."""

MESSAGE_BYTES = 16
"""What the JSON around a message's text (32 bytes) has over the marks a chat template puts around it."""

MEDIA_TOKENS = 1024
"""What an image or other medium in a message counts: a 1024x1024 image is 1,300 tokens to Qwen2.5-VL."""

NO_LIMIT_TOKENS = {PathKind.COMPLETION: 16, PathKind.GENERATE: 128}
"""Output tokens of a request that sets no limit, where engines have a default of their own."""

OPEN_ENDED_TOKENS = 4096
"""Output tokens that a request without any limit is taken to ask for; engines go on to the context's end."""

MAX_CHOICES = 1024
"""Most answers that one request may ask for (samples times prompts): each is a generation of its own."""

_NESTS = frozenset((dict, list))
_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens", "max_new_tokens")
_PROMPTS: Mapping[PathKind, tuple[str, ...]] = {
    PathKind.CHAT: ("tools", "messages"),
    PathKind.COMPLETION: ("prompt",),
    PathKind.GENERATE: ("text", "input_ids"),
    PathKind.EMBED: ("input",),
    PathKind.TOKENIZE: ("prompt", "messages"),
    PathKind.RESPONSES: ("instructions", "tools", "input"),
    PathKind.MESSAGES: ("tools", "system", "messages"),
}


class Prompt(NamedTuple):
    """A request's prompt, or prompts: the JSON text that stands for it, its tokens, and how many there are.

    `exact`: the client sent token ids, so that `tokens` is no estimate. `longest` is of a single prompt.
    """

    text: bytes
    tokens: int
    longest: int
    exact: bool
    number: int
    media: int = 0
    """Images and the like in its messages."""


class Asked(NamedTuple):
    """What comes from the request beside its body: see RequestView."""

    id: str
    arrived_s: float
    slo_class: str | None
    tenant: str | None
    headers: Mapping[str, str]


def model_of(body: JsonBody, models: Sequence[str]) -> str:
    """The model a request is for; one that names none means the only one there is.

    Raises NotServed for an unknown model, BadRequest when the name is missing or no name.
    """
    name = body.fields.get("model")
    if name is None:
        if len(models) == 1:
            return models[0]
        raise BadRequest(f"name a model: {', '.join(models)}", param="model")
    if not isinstance(name, str):
        raise BadRequest("`model` must be a string", param="model")
    if name not in models:
        known = ", ".join(models)
        message = f"the model {name!r} is not served here; served: {known}"
        raise NotServed(message, reason="unknown-model", param="model")
    return name


def prompt_of(kind: PathKind, body: JsonBody) -> Prompt:
    """The prompt of a request, estimated as far as the client sent text."""
    fields = body.fields
    text, main = b"", None
    for name in _PROMPTS[kind]:
        value = fields.get(name)
        if value is not None:
            main = value
            text = text + body.text(name) if text else body.text(name)
    if not isinstance(main, list) or not main:
        tokens = -(-len(text) // BYTES_PER_TOKEN)
        return Prompt(text, tokens, tokens, False, 1)
    first = main[0]
    if not isinstance(first, dict):
        lists = _token_lists(main)
        if lists is not None:
            sizes = [len(one) for one in lists]
            return Prompt(text, sum(sizes), max(sizes, default=0), True, max(1, len(sizes)))
        if isinstance(first, str) and set(map(type, main)) == {str}:
            return Prompt(text, _tokens(len(text)), _tokens(max(map(len, main))), False, len(main))
    media_bytes, media = _media(main)
    size = max(0, len(text) - media_bytes - MESSAGE_BYTES * len(main))
    tokens = -(-size // BYTES_PER_TOKEN) + media * MEDIA_TOKENS
    return Prompt(text, tokens, tokens, False, 1, media)


def read(kind: PathKind, body: JsonBody, model: str, prompt: Prompt, seed: int, asked: Asked) -> RequestView:
    """The view of a request. Raises BadRequest for counts that are no counts."""
    fields = body.fields
    sampling = fields.get("sampling_params") if kind is PathKind.GENERATE else fields
    if not isinstance(sampling, dict):
        sampling = {}
    choices = prompt.number
    if sampling.get("n") is not None:
        choices *= _count(sampling, "n", 1)
    if not 1 <= choices <= MAX_CHOICES:
        message = f"asks for {choices} answers; at most {MAX_CHOICES} in one request"
        raise BadRequest(message, param="n")
    limit = NO_LIMIT_TOKENS.get(kind, OPEN_ENDED_TOKENS)
    for name in _LIMITS:
        if sampling.get(name) is not None:
            limit = _count(sampling, name, limit)
            break
    return RequestView(
        id=asked.id,
        model=model,
        path=kind,
        arrived_s=asked.arrived_s,
        prompt_tokens=prompt.tokens,
        max_tokens=limit,
        stream=fields.get("stream") is True,
        n=choices,
        slo_class=asked.slo_class,
        tenant=asked.tenant,
        block_hashes=chain(seed, prompt.text, BLOCK_BYTES),
        headers=asked.headers,
        media=prompt.media,
    )


def check_depth(body: JsonBody, most: int) -> None:
    """Refuse a body nested deeper than `most` levels. Raises BadRequest.

    Whoever reads it next may do so by recursion. Most bodies have too few brackets to be that deep, and are
    only counted through. The body itself is the first level.
    """
    raw = body.raw
    if raw.count(b"[") + raw.count(b"{") <= most:
        return
    level: list[Any] = [body.fields]
    for _ in range(most):
        inner: list[Any] = []
        for one in level:
            values = list(one.values()) if type(one) is dict else one
            # A prompt of token ids is long, and is not to be gone through in Python.
            if not _NESTS.isdisjoint(map(type, values)):
                inner += [value for value in values if type(value) in _NESTS]
        level = inner
        if not level:
            return
    raise BadRequest(f"the body is nested more than {most} levels deep", reason="too-deep")


def check_length(prompt: Prompt, max_model_len: int | None) -> None:
    """Raise BadRequest for a prompt of token ids that no context of the model holds.

    A text is left to the engine, which alone can count it.
    """
    if prompt.exact and max_model_len is not None and prompt.longest >= max_model_len:
        raise BadRequest(
            f"the prompt has {prompt.longest} tokens; with at least one to generate, that is over the "
            f"model's limit of {max_model_len}",
            reason="prompt-too-long",
        )


def _tokens(size_bytes: int) -> int:
    return -(-size_bytes // BYTES_PER_TOKEN)


def _token_lists(value: Any) -> list[list[int]] | None:
    """The prompts in a value that holds token ids; None if it holds anything else."""
    if not isinstance(value, list) or not value:
        return None
    first = value[0]
    if isinstance(first, int):
        return [value]
    if isinstance(first, list) and all(
        isinstance(one, list) and one and isinstance(one[0], int) for one in value
    ):
        return value
    return None


def _media(messages: Sequence[Any]) -> tuple[int, int]:
    """Bytes and number of the parts of messages that are not text: their base64 is no prompt."""
    size = count = 0
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        if not isinstance(content, list):
            continue
        for part in content:
            if not isinstance(part, dict) or isinstance(part.get("text"), str):
                continue
            count += 1
            for value in part.values():
                inner = value.values() if isinstance(value, dict) else (value,)
                size += sum(len(text) for text in inner if isinstance(text, str))
    return size, count


def _count(fields: Mapping[str, Any], name: str, default: int) -> int:
    value = fields.get(name)
    if value is None:
        return default
    whole = value.is_integer() if isinstance(value, float) else type(value) is int
    if not whole or value < 0:
        raise BadRequest(f"`{name}` must be a whole number, not {value!r}", param=name)
    return int(value)
