"""Makes one answer of the answers to a split request; the only place where an answer's bytes are edited."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from orchestrator.core.types import PathKind
from orchestrator.errors import LegFailed
from orchestrator.router.stream import Usage

_COUNTS_OF_PROMPT = ("prompt_tokens", "prompt_tokens_details")


def bodies(kind: PathKind, parts: Sequence[bytes], samples: int) -> bytes:
    """One body of the bodies of all items, in item order; `samples` items in a row share a prompt.

    Raises LegFailed when a part is not what an engine answers.
    """
    if kind is PathKind.GENERATE:
        return b"[%b]" % b",".join(parts)
    answers = [_parse(part) for part in parts]
    merged = dict(answers[0])
    merged["choices"] = [choice for item, answer in enumerate(answers) for choice in _indexed(answer, item)]
    usages = [answer.get("usage") for answer in answers]
    if all(isinstance(usage, dict) for usage in usages):
        merged["usage"] = _sum_usage(usages, samples)
    return orjson.dumps(merged)


class Events:
    """Interleaves the events of several items under their index, with one id and one usage event."""

    def __init__(self, kind: PathKind, items: int, samples: int) -> None:
        self._kind = kind
        self._samples = samples
        self._usages: list[dict[str, Any] | None] = [None] * items
        self._id: Any = None
        self._last: dict[str, Any] | None = None

    def take(self, item: int, events: bytes) -> bytes:
        """The whole `events` of `item` as they go to the client; may be empty.

        Raises LegFailed for an event that is not what an engine sends.
        """
        out = []
        for event in events.splitlines():
            if not event.startswith(b"data:"):
                continue
            text = event[5:].strip()
            if text != b"[DONE]":
                out.append(self._rewrite(item, _parse(text)))
        return b"".join(out)

    def rest(self) -> bytes:
        """The usage event of all items, if every item gave one."""
        usages = [usage for usage in self._usages if usage is not None]
        if self._last is None or len(usages) < len(self._usages):
            return b""
        merged = {**self._last, "usage": _sum_usage(usages, self._samples)}
        return b"data: %b\n\n" % orjson.dumps(merged)

    def _rewrite(self, item: int, event: dict[str, Any]) -> bytes:
        if self._kind is PathKind.GENERATE:
            event["index"] = item
            return b"data: %b\n\n" % orjson.dumps(event)
        if self._id is None:
            self._id = event.get("id")
        if "id" in event:
            event["id"] = self._id
        if event.get("choices") == [] and isinstance(event.get("usage"), dict):
            self._usages[item] = event["usage"]
            self._last = event
            return b""
        event["choices"] = _indexed(event, item)
        return b"data: %b\n\n" % orjson.dumps(event)


def total(parts: Sequence[Usage], samples: int) -> Usage:
    """The tokens of all items; None where an item did not say."""
    return Usage(
        prompt=_sum([part.prompt for part in parts[::samples]]),
        completion=_sum([part.completion for part in parts]),
        cached=_sum([part.cached for part in parts[::samples]]),
    )


def _sum(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _parse(text: bytes) -> dict[str, Any]:
    try:
        parsed = orjson.loads(text)
    except orjson.JSONDecodeError:
        parsed = None
    if not isinstance(parsed, dict):
        raise LegFailed("an engine's answer is not the JSON object it should be", reason="bad-answer")
    return parsed


def _indexed(answer: dict[str, Any], item: int) -> list[Any]:
    """The choices of one item under the item's index; each item was asked for one."""
    choices = answer.get("choices")
    if not isinstance(choices, list):
        raise LegFailed("an engine's answer has no `choices`", reason="bad-answer")
    return [{**choice, "index": item} for choice in choices if isinstance(choice, dict)]


def _sum_usage(usages: Sequence[Any], samples: int) -> dict[str, Any]:
    """Sums the counts field by field, details within; a prompt's own count once per prompt."""
    merged: dict[str, Any] = {}
    for place, usage in enumerate(usages):
        for name, value in usage.items():
            first_of_prompt = place % samples == 0
            if name in _COUNTS_OF_PROMPT and not first_of_prompt:
                continue
            merged[name] = _add(merged.get(name), value)
    if {"prompt_tokens", "completion_tokens", "total_tokens"} <= merged.keys():
        merged["total_tokens"] = (merged["prompt_tokens"] or 0) + (merged["completion_tokens"] or 0)
    return merged


def _add(one: Any, other: Any) -> Any:
    if isinstance(one, dict) and isinstance(other, dict):
        return {**one, **{name: _add(one.get(name), value) for name, value in other.items()}}
    if isinstance(one, int) and isinstance(other, int):
        return one + other
    return other if one is None else one
