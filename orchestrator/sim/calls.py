"""Requests as the engines' APIs spell them, read into prompts and parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.sim.text import VOCABULARY, chat_prompt, encode


class BadCall(Exception):
    """A request body that no engine would take; `param` is the field at fault, `missing` if it is absent."""

    def __init__(self, message: str, param: str | None = None, *, missing: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.missing = missing


@dataclass(frozen=True, slots=True)
class Params:
    """How to generate. `logprobs`: top alternatives per token (None: off); `max_tokens` None: no limit."""

    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    logprobs: int | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """One API call: `prompts` and `params` run in parallel, each prompt sampled `n` times.

    `kind` is `chat`, `completion` or `generate`; `batch` tells a list of prompts from a single one.
    """

    kind: str
    body: Mapping[str, Any]
    model: str
    prompts: tuple[tuple[int, ...], ...]
    params: tuple[Params, ...]
    n: int = 1
    batch: bool = False
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    echo: bool = False
    token_ids: bool = False
    input_logprobs: bool = False
    texts: tuple[str | None, ...] = ()

    def prompt_text(self, index: int) -> str:
        """The prompt as text, for `echo`."""
        return self.texts[index] or ""


def chat_call(body: Mapping[str, Any]) -> Call:
    """A `/v1/chat/completions` body. Raises BadCall."""
    messages = body.get("messages")
    if messages is None:
        raise BadCall("Field required", "messages", missing=True)
    if not isinstance(messages, list) or not messages:
        raise BadCall("messages must be a non-empty list", "messages")
    try:
        text = chat_prompt(messages, continues=body.get("continue_final_message") is True)
    except ValueError as error:
        raise BadCall(str(error), "messages") from None
    logprobs = _integer(body, "top_logprobs", 0) if body.get("logprobs") else None
    limit = body.get("max_completion_tokens", body.get("max_tokens"))
    params = _params(body, limit, logprobs)
    return _openai("chat", body, (tuple(encode(text)),), params, texts=(text,))


def completion_call(body: Mapping[str, Any]) -> Call:
    """A `/v1/completions` body. Raises BadCall."""
    prompt = body.get("prompt")
    if prompt is None or prompt == "" or prompt == []:
        raise BadCall("Field required", "prompt", missing=True)
    prompts, texts, batch = _prompts(prompt, "prompt")
    logprobs = None if body.get("logprobs") is None else _integer(body, "logprobs", 0)
    limit = body.get("max_tokens", 16)
    return _openai("completion", body, prompts, _params(body, limit, logprobs), texts=texts, batch=batch)


def generate_call(body: Mapping[str, Any]) -> Call:
    """SGLang's own `/generate` body. Raises BadCall."""
    given = body.get("text") if body.get("text") is not None else body.get("input_ids")
    if given is None:
        raise BadCall("Either text, input_ids or input_embeds should be provided.", "text", missing=True)
    prompts, texts, batch = _prompts(given, "text")
    sampling = body.get("sampling_params") or {}
    each = sampling if isinstance(sampling, list) else [sampling] * len(prompts)
    if len(each) != len(prompts) or not all(isinstance(one, dict) for one in each):
        raise BadCall("sampling_params does not match the batch", "sampling_params")
    logprobs = _integer(body, "top_logprobs_num", 0) if body.get("return_logprob") else None
    start = body.get("logprob_start_len", -1)
    return Call(
        kind="generate",
        body=body,
        model=str(body.get("model", "")),
        prompts=prompts,
        params=tuple(_params(one, one.get("max_new_tokens", 128), logprobs) for one in each),
        n=_integer(each[0], "n", 1),
        batch=batch,
        stream=bool(body.get("stream")),
        input_logprobs=logprobs is not None and isinstance(start, int) and start >= 0,
        texts=texts,
    )


def _openai(
    kind: str,
    body: Mapping[str, Any],
    prompts: tuple[tuple[int, ...], ...],
    params: Params,
    *,
    texts: tuple[str | None, ...],
    batch: bool = False,
) -> Call:
    options = body.get("stream_options") or {}
    if not isinstance(options, dict):
        raise BadCall("stream_options must be an object", "stream_options")
    n = _integer(body, "n", 1)
    if n < 1:
        raise BadCall("n must be at least 1", "n")
    return Call(
        kind=kind,
        body=body,
        model=str(body.get("model", "")),
        prompts=prompts,
        params=(params,) * len(prompts),
        n=n,
        batch=batch,
        stream=bool(body.get("stream")),
        include_usage=bool(options.get("include_usage")),
        continuous_usage=bool(options.get("continuous_usage_stats")),
        echo=bool(body.get("echo")) and kind == "completion",
        token_ids=bool(body.get("return_token_ids")),
        texts=texts,
    )


def _params(source: Mapping[str, Any], limit: Any, logprobs: int | None) -> Params:
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
        raise BadCall(f"max_tokens must be at least 1, got {limit}.", "max_tokens")
    stop = source.get("stop") or []
    stops = [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, list) or not all(isinstance(one, str) for one in stops):
        raise BadCall("stop must be a string or a list of strings", "stop")
    return Params(
        max_tokens=limit,
        min_tokens=_integer(source, "min_tokens", _integer(source, "min_new_tokens", 0)),
        ignore_eos=bool(source.get("ignore_eos")),
        stop=tuple(one for one in stops if one),
        logprobs=logprobs,
    )


def _prompts(given: Any, field: str) -> tuple[tuple[tuple[int, ...], ...], tuple[str | None, ...], bool]:
    """(token ids of each, text of each if it was text, whether a batch was asked for)."""
    if isinstance(given, str):
        return (tuple(encode(given)),), (given,), False
    if isinstance(given, list) and given and all(isinstance(one, int) for one in given):
        return (_ids(given, field),), (None,), False
    if not isinstance(given, list) or not given:
        raise BadCall(f"{field} must be text, token ids, or a list of either", field)
    ids: list[tuple[int, ...]] = []
    texts: list[str | None] = []
    for one in given:
        if isinstance(one, str):
            ids.append(tuple(encode(one)))
            texts.append(one)
        elif isinstance(one, list) and one and all(isinstance(token, int) for token in one):
            ids.append(_ids(one, field))
            texts.append(None)
        else:
            raise BadCall(f"{field} must be text, token ids, or a list of either", field)
    return tuple(ids), tuple(texts), True


def _ids(tokens: list[int], field: str) -> tuple[int, ...]:
    if min(tokens) < 0 or max(tokens) >= VOCABULARY:
        raise BadCall("Token id is out of vocabulary", field)
    return tuple(tokens)


def _integer(source: Mapping[str, Any], field: str, default: int) -> int:
    value = source.get(field)
    if value is None:
        return default
    if not isinstance(value, int):
        raise BadCall(f"{field} must be an integer", field)
    return int(value)
