"""Reads an engine's answer as it comes: whole server-sent events, the first judged before it is shown."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from orchestrator.core.types import PathKind
from orchestrator.errors import LegFailed, NoCapacity, RequestError

MAX_EVENT_BYTES = 16 * 1024 * 1024
"""A single event that is longer is no engine's (the longest carry log probabilities of a whole prompt)."""

DONE = (b"data: [DONE]\n\n", b"data: [DONE]\r\n\r\n", b"data:[DONE]\n\n")

_ERROR = b'data: {"error"'
_DIGITS = re.compile(rb" *([0-9]{1,24})")
_RECENT = 4  # pieces kept for the end: the last content, the usage and [DONE] may come one by one
_FAILED = frozenset(("error", "abort"))


class Usage(NamedTuple):
    """Tokens as the engine counted them; None where it did not say."""

    prompt: int | None = None
    completion: int | None = None
    cached: int | None = None


NO_USAGE = Usage()


class EngineError(NamedTuple):
    """An error that an engine reported as an event of a stream: what `Engine.map_error` wants to know."""

    status: int
    body: bytes


def last_int(text: bytes, name: bytes) -> int | None:
    """The integer after the last `"name":` in JSON text. Content cannot forge it: its quotes are escaped."""
    key = b'"%b":' % name
    at = text.rfind(key)
    found = _DIGITS.match(text, at + len(key)) if at >= 0 else None
    return int(found[1]) if found else None


def usage(text: bytes) -> Usage:
    """The usage that a body, or the last events of a stream, report."""
    return Usage(
        prompt=last_int(text, b"prompt_tokens"),
        completion=last_int(text, b"completion_tokens"),
        cached=last_int(text, b"cached_tokens"),
    )


def is_error(status: int, body: bytes) -> bool:
    """Whether a whole answer is an error by its status, or by its body in spite of that."""
    return status >= 400 or body.startswith((b'{"error":{', b'{"error": {'))


def unfit(kind: PathKind, status: int, body: bytes) -> RequestError | None:
    """Why a whole answer that is no error cannot be a client's either: no JSON, or nothing generated."""
    first = body.lstrip()[:1]
    if status != 200 or not (first == b"{" or (first == b"[" and kind is PathKind.GENERATE)):
        message = f"the engine's answer (status {status}) is not the JSON it should be"
        return LegFailed(message, reason="bad-answer")
    return unfinished(body)


def unfinished(body: bytes) -> RequestError | None:
    """The error hidden in an answer of status 200: it finished by `error` or `abort`, nothing generated."""
    if b'"abort"' not in body and b'"error"' not in body:
        return None
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    answers = answer if isinstance(answer, list) else [answer]
    for one in answers:
        if isinstance(one, dict) and (found := _hidden(one)) is not None:
            return found
    return None


def _hidden(answer: Mapping[str, Any]) -> RequestError | None:
    """The same for one parsed answer or event."""
    choices = answer.get("choices")
    if not isinstance(choices, list):
        meta = answer.get("meta_info")
        choices = [{**answer, **meta}] if isinstance(meta, dict) else []
    failed = None
    for choice in choices:
        if not isinstance(choice, dict):
            return None
        reason = choice.get("finish_reason")
        detail = reason if isinstance(reason, dict) else {"type": reason}
        if detail.get("type") not in _FAILED or _content(choice):
            return None
        failed = detail
    if failed is None:
        return None
    why = failed.get("message") or failed["type"]
    text = f"the engine ended the request before it generated anything: {why}"
    if failed["type"] == "abort":
        return NoCapacity(text, reason="engine-aborted")
    return LegFailed(text, reason="engine-error")


def _content(choice: Mapping[str, Any]) -> bool:
    """Whether a choice carries anything that was generated."""
    if choice.get("text") or choice.get("output_ids"):
        return True
    said = choice.get("delta") or choice.get("message") or {}
    return isinstance(said, dict) and any(value for name, value in said.items() if name != "role")


class Stream:
    """One streamed answer. `feed` returns what may be passed on; the rest is in the attributes.

    Nothing is passed on until an event shows that the engine is generating: role-only events and comments
    are held back before it, and a failure among them leaves `begun` False, so that it can still become an
    HTTP error. A part of an event is never passed on, so that an error event can follow at any time.
    Exactly one of `engine_error` and `refused` is set by a failure; nothing is passed on after it.
    """

    __slots__ = (
        "_held", "_recent", "_separator", "_tail", "begun", "done", "engine_error", "events", "refused",
    )  # fmt: skip

    def __init__(self) -> None:
        self._tail = b""
        self._held = b""
        self._separator = b""  # whichever of the two comes first
        self._recent: deque[bytes] = deque(maxlen=_RECENT)
        self.begun = False
        self.done = False
        """The last event so far is the mark that nothing is missing."""
        self.engine_error: EngineError | None = None
        self.refused: RequestError | None = None
        self.events = 0

    @property
    def failed(self) -> bool:
        """The engine reported a failure, or what it sends makes no sense."""
        return self.engine_error is not None or self.refused is not None

    def feed(self, data: bytes) -> bytes:
        """Take in what came; the whole events that may be passed on now."""
        if self.engine_error is not None or self.refused is not None:
            return b""
        # As engines write and most reads bring it: whole events and nothing left of one before.
        end = self._separator
        if end and not self._tail and data.endswith(end) and not data.endswith(b"\n" + end):
            events = data
        else:
            events = self._whole(data)
        if not events:
            return b""
        if not self.begun:
            events = self._judge(events)
            if not events:
                return b""
        if _ERROR in events:
            events = self._before_error(events)
        self.done = not self.failed and events.endswith(DONE)
        self.events += events.count(self._separator)
        self._recent.append(events)
        return events

    def usage(self) -> Usage:
        """What the last events report of tokens; without it, events are counted as tokens."""
        found = usage(b"".join(self._recent))
        if found.completion is None and self.begun:
            return Usage(found.prompt, max(0, self.events - int(self.done)), found.cached)
        return found

    def ended_badly(self) -> bool:
        """Whether the last finish reason says that the engine gave up in the middle."""
        text = b"".join(self._recent)
        return any(
            b'"finish_reason":"%b"' % reason in text or b'"finish_reason":{"type":"%b"' % reason in text
            for reason in (b"abort", b"error")
        )

    def _before_error(self, events: bytes) -> bytes:
        """What comes before the first event that has an error on one of its lines; it is the failure."""
        at = 0 if events.startswith(_ERROR) else events.find(b"\n" + _ERROR) + 1
        if not at and not events.startswith(_ERROR):
            return events
        self._error(events[at + len(b"data: ") : events.find(self._separator, at)])
        return events[: _end(events, at, self._separator)]

    def _whole(self, data: bytes) -> bytes:
        if self._tail:
            data = self._tail + data
        if not self._separator:
            one, two = data.find(b"\n\n"), data.find(b"\r\n\r\n")
            if one >= 0 or two >= 0:
                self._separator = b"\n\n" if two < 0 or 0 <= one < two else b"\r\n\r\n"
        at = _end(data, len(data), self._separator)
        if not at:
            self._tail = data
            if len(data) > MAX_EVENT_BYTES:
                self.refused = LegFailed("the engine sent an event without end", reason="bad-answer")
            return b""
        self._tail = data[at:]
        return data[:at]

    def _judge(self, events: bytes) -> bytes:
        """Look at the events before the first that counts; all that was held once one does."""
        held = self._held + events
        start = len(self._held)
        while start < len(held):
            end = held.index(self._separator, start) + len(self._separator)
            if not self._empty(held[start:end]):
                if not self.failed:
                    self.begun = True
                    self._held = b""
                    return held
                return b""
            start = end
        self._held = held
        if len(held) > MAX_EVENT_BYTES:
            self.refused = LegFailed("the engine sends events that say nothing", reason="bad-answer")
        return b""

    def _empty(self, event: bytes) -> bool:
        """Whether the event says nothing yet; sets the failure if it tells of one."""
        lines = [line[5:].strip() for line in event.splitlines() if line.startswith(b"data:")]
        if not lines:
            return True
        if lines == [b"[DONE]"]:
            return False
        try:
            parsed = orjson.loads(b"\n".join(lines))
        except orjson.JSONDecodeError:
            parsed = None
        if not isinstance(parsed, dict):
            self.refused = LegFailed("the engine streams what is not JSON", reason="bad-answer")
            return False
        if parsed.get("error"):
            self._error(b"\n".join(lines))
            return False
        self.refused = _hidden(parsed)
        return self.refused is None and role_only(parsed)

    def _error(self, body: bytes) -> None:
        try:
            code = orjson.loads(body)["error"]["code"]
        except (orjson.JSONDecodeError, KeyError, TypeError):
            code = None
        status = code if isinstance(code, int) and 400 <= code < 600 else 500
        self.engine_error = EngineError(status, body)


def _end(data: bytes, limit: int, separator: bytes) -> int:
    """Where the last whole event before `limit` ends; 0 if none does."""
    at = data.rfind(separator, 0, limit) if separator else -1
    if at < 0:
        return 0
    at += len(separator)
    # Of an odd number of line ends the last belongs to what follows, whichever read brings it.
    line = separator[: len(separator) // 2]
    begin = at
    while data.endswith(line, 0, begin):
        begin -= len(line)
    return at - (at - begin) % len(separator)


def role_only(event: Mapping[str, Any]) -> bool:
    """Whether a parsed chat event says nothing but who speaks."""
    choices = event.get("choices")
    if not isinstance(choices, list) or not choices:
        return False
    for choice in choices:
        delta = choice.get("delta") if isinstance(choice, dict) else None
        if not isinstance(delta, dict) or "role" not in delta:
            return False
        if choice.get("finish_reason") is not None or _content(choice):
            return False
    return True
