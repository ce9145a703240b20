"""A stream that may go on elsewhere: what its client has been given is kept, and the rest made to fit."""

from __future__ import annotations

import re
from typing import Any

import orjson

from orchestrator.engines import continuing
from orchestrator.engines.splice import JsonBody
from orchestrator.errors import LegFailed
from orchestrator.router import replies
from orchestrator.router.answer import Single
from orchestrator.router.record import Record
from orchestrator.router.stream import Usage, role_only
from orchestrator.wire.exchange import Exchange

FOLD_BYTES = 32 * 1024
"""Events are kept as they came until there is so much of them, and only then read."""

MAX_TEXT = 1024 * 1024
"""Characters of an answer beyond which a stream is not kept any longer, and could not go on."""

_ID = re.compile(rb'"id":"([^"]*)"')
_CUT = (b'"finish_reason":"abort"', b'"finish_reason":{"type":"abort"')


class Lasting(Single):
    """One item whose bytes go through untouched, and are kept for a request that goes on where they end.

    After `resume` they are the rest of that answer: they get its id, say no role again, and their usage
    counts the whole. An engine that gives up in the middle is a failure here, and its last words stay behind.
    """

    __slots__ = (
        "_before", "_body", "_fresh", "_id", "_kept", "_prompt", "_size", "_theirs", "_told", "resumed",
    )  # fmt: skip

    def __init__(self, exchange: Exchange, record: Record, body: JsonBody) -> None:
        super().__init__(exchange, record)
        self._body = body
        self._told = continuing.Told()
        self._kept: list[bytes] = []
        self._size = 0
        self._id = b""
        self._theirs = b""
        self._before = 0
        self._prompt: int | None = None
        self._fresh = False
        self.resumed = 0
        """How often the stream has gone on elsewhere."""

    def events(self, item: int, headers: replies.Headers, data: bytes) -> None:
        """Pass the events on, and keep them. Raises LegFailed where the engine gives up in them."""
        if any(mark in data for mark in _CUT):
            raise LegFailed("the engine ended the request in the middle", reason="engine-aborted")
        if self.resumed:
            data = self._fitted(data)
            if not data:
                return
        elif not self._id:
            found = _ID.search(data)
            self._id = found[0] if found else b""
        super().events(item, headers, data)
        if self._told.size > MAX_TEXT:
            return
        self._kept.append(data)
        self._size += len(data)
        if self._size > FOLD_BYTES:
            self._fold()

    def rest(self, prompt_tokens: int | None) -> JsonBody | None:
        """The request for the rest of the answer; None if there can be none.

        `prompt_tokens` is what the prompt of the first attempt had, if it is known.
        """
        self._fold()
        if self._prompt is None:
            self._prompt = prompt_tokens
        if self._told.size > MAX_TEXT:
            return None
        return continuing.request(self._record.kind, self._body, self._told)

    @property
    def tokens(self) -> int:
        """Tokens that the client has been given, at least."""
        return self._told.tokens

    def resume(self) -> None:
        """What comes from now on is another engine's."""
        self.resumed += 1
        self._fresh, self._before = True, self._told.tokens

    def total(self, usage: Usage) -> Usage:
        """The tokens of the whole answer, from those of its last part."""
        if not self.resumed or usage.prompt is None or usage.completion is None:
            return usage
        return Usage(*self._counts(usage.prompt, usage.completion), usage.cached)

    def _counts(self, prompt: int, completion: int) -> tuple[int, int]:
        """What the last part calls its prompt is in part the answer."""
        first = prompt - self._before if self._prompt is None else min(prompt, self._prompt)
        return first, prompt - first + completion

    def _fold(self) -> None:
        if self._kept:
            self._told.read(self._record.kind, b"".join(self._kept))
            self._kept.clear()
            self._size = 0

    def _fitted(self, data: bytes) -> bytes:
        """Another engine's events as if the first had sent them."""
        if self._fresh:
            self._fresh = False
            found = _ID.search(data)
            self._theirs = found[0] if found else b""
            data = b"".join(e for e in _split(data) if not _says_nothing(e))
        if self._theirs and self._id:
            data = data.replace(self._theirs, self._id)
        if b'"usage":{' in data:
            data = b"".join(self._recounted(e) if b'"usage":{' in e else e for e in _split(data))
        return data

    def _recounted(self, event: bytes) -> bytes:
        told = _parsed(event)
        usage = told.get("usage")
        if not isinstance(usage, dict):
            return event
        prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
        if type(prompt) is not int or type(completion) is not int:
            return event
        prompt, completion = self._counts(prompt, completion)
        usage |= {"prompt_tokens": prompt, "completion_tokens": completion}
        usage["total_tokens"] = prompt + completion
        return b"data: %b\n\n" % orjson.dumps(told)


def _split(events: bytes) -> list[bytes]:
    return [event + b"\n\n" for event in events.split(b"\n\n") if event]


def _says_nothing(event: bytes) -> bool:
    """Whether an event only says again who speaks."""
    return role_only(_parsed(event))


def _parsed(event: bytes) -> dict[str, Any]:
    """What an event of one line holds; nothing where that is no JSON object."""
    try:
        told = orjson.loads(event[5:]) if event.startswith(b"data: {") else None
    except orjson.JSONDecodeError:
        return {}
    return told if isinstance(told, dict) else {}
