"""Input log-probabilities, which only SGLang's prefill leg knows, put into decode's answer."""

from __future__ import annotations

from typing import Any

import orjson

from orchestrator.core.types import PathKind
from orchestrator.engines.splice import JsonBody, quote
from orchestrator.errors import BadRequest, LegFailed

_META = ("input_token_logprobs", "input_top_logprobs", "input_token_ids_logprobs")
_CHOICE = ("text_offset", "token_logprobs", "tokens", "top_logprobs")


def wanted(kind: PathKind, body: JsonBody) -> bool:
    """Whether the answer must hold log-probabilities of the prompt."""
    fields = body.fields
    if kind is PathKind.COMPLETION:
        return bool(fields.get("echo")) and bool(fields.get("logprobs"))
    if kind is not PathKind.GENERATE or not _any(fields.get("return_logprob")):
        return False
    start = fields.get("logprob_start_len")
    starts = start if isinstance(start, list) else [start]
    return any(isinstance(s, int) and s >= 0 for s in starts)


def merge(kind: PathKind, prefill_body: bytes, decode_body: bytes) -> bytes:
    """Decode's answer with prefill's input log-probabilities in front of its own, all else decode's bytes.

    Raises LegFailed when the two answers do not belong together.
    """
    try:
        prefill = orjson.loads(prefill_body)
        if kind is PathKind.COMPLETION:
            return _completion(prefill, JsonBody(decode_body))
        if isinstance(prefill, list):
            return quote(_batch(prefill, orjson.loads(decode_body)))
        return _single(prefill, JsonBody(decode_body))
    except (BadRequest, KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        raise LegFailed(
            "the prefill and decode engines' answers do not fit together", reason="bad-answer"
        ) from error


def _single(prefill: dict[str, Any], decode: JsonBody) -> bytes:
    meta = JsonBody(decode.text("meta_info"))
    edited = meta.edit({name: quote(value) for name, value in _inputs(prefill, meta.fields).items()})
    return b"".join(decode.edit({"meta_info": b"".join(edited)}))


def _batch(prefill: list[Any], decode: list[Any]) -> list[Any]:
    for ours, theirs in zip(prefill, decode, strict=True):
        theirs["meta_info"] |= _inputs(ours, theirs["meta_info"])
    return decode


def _inputs(prefill: dict[str, Any], decode_meta: dict[str, Any]) -> dict[str, Any]:
    told = prefill["meta_info"]
    return {
        name: told[name] + (decode_meta.get(name) or []) for name in _META if isinstance(told.get(name), list)
    }


def _completion(prefill: dict[str, Any], decode: JsonBody) -> bytes:
    choices = decode.fields["choices"]
    for ours, theirs in zip(prefill["choices"], choices, strict=True):
        # Prefill lists the prompt and the first token, decode the output with the first token again.
        theirs["logprobs"] = {
            name: ours["logprobs"][name][:-1] + theirs["logprobs"][name]
            for name in _CHOICE
            if isinstance(theirs["logprobs"].get(name), list)
        }
    return b"".join(decode.edit({"choices": quote(choices)}))


def _any(value: object) -> bool:
    return any(value) if isinstance(value, list) else bool(value)
