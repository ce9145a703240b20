"""Engines' error bodies, in every shape they come in, as the errors that clients are told."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import orjson

from orchestrator.errors import (
    BadRequest,
    LegFailed,
    NoCapacity,
    NotServed,
    Overloaded,
    RequestError,
    TooLarge,
)

MAX_MESSAGE = 600
"""Characters of an engine's message that a client is shown."""

_TOO_LONG = re.compile(
    r"longer than the model's context length|maximum context length|maximum model length"
    r"|exceeds model's maximum|cannot be greater than max_model_len|exceeds the maximum",
    re.IGNORECASE,
)
_QUEUE_FULL = re.compile(r"queue|busy|backlog|too many requests|overload", re.IGNORECASE)

# What tells of the inside: a validation error's traceback, URLs, addresses, paths of files.
_INSIDE = (
    (re.compile(r"\n\s*File \".*", re.DOTALL), ""),
    (re.compile(r"\b[a-z][a-z0-9+.]*://[^\s\"'<>)\]}]+", re.IGNORECASE), "[address]"),
    (re.compile(r"\(?bootstrap_addr: [^)\s]+\)?"), ""),
    (re.compile(r"\[[0-9a-fA-F]*:[0-9a-fA-F:.]+\](?::\d+)?"), "[address]"),
    (re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}(?::\d+)?\b"), "[address]"),
    (re.compile(r"\b(?:localhost|[\w-]+(?:\.[\w-]+)+):\d{2,5}\b"), "[address]"),
    (re.compile(r"(?<![\w.])/(?!v1/)(?:[\w.+@-]+/)+[\w.+@-]*"), "[path]"),
)


class Mistake(NamedTuple):
    """An engine's error as it told it. `code` is the HTTP status that the body itself names, if any."""

    message: str
    code: int | None = None
    param: str | None = None


def read(body: bytes) -> Mistake:
    """The error in a body: OpenAI's shape, SGLang's flat one, FastAPI's `detail`, an SSE event, or text."""
    text = body.strip()
    if text.startswith(b"data:"):
        text = text[5:].split(b"\n", 1)[0].strip()
    try:
        told = orjson.loads(text)
    except orjson.JSONDecodeError:
        return Mistake(text.decode("utf-8", "replace"))
    return _mistake(told)


def describe(message: str) -> str:
    """`message` for a client: of bounded length, without addresses, paths and tracebacks of the inside."""
    for pattern, instead in _INSIDE:
        message = pattern.sub(instead, message)
    message = re.sub(r"[ \t]{2,}", " ", message).strip()
    return message if len(message) <= MAX_MESSAGE else message[: MAX_MESSAGE - 1] + "…"


def to_error(status: int, body: bytes) -> RequestError:
    """What the client is told for an engine's error answer or error event (`status` below 400).

    A refusal of the request (400, 404, 413, 422) stays one, with the engine's message. A refusal of the
    router itself (401, 403) and every failure is a failed leg: the client is not to blame.
    """
    mistake = read(body)
    if status < 400:
        status = mistake.code if mistake.code is not None and mistake.code >= 400 else 500
    message = describe(mistake.message)
    if status in (400, 422):
        reason = "context-length" if _TOO_LONG.search(message) else None
        return BadRequest(message or "the engine refused the request", reason=reason, param=mistake.param)
    if status == 404:
        return NotServed(message or "the engine does not know the path or the model", param=mistake.param)
    if status == 413:
        return TooLarge(message or "the engine refused the body's size")
    if status in (401, 403):
        return LegFailed("an engine refused the router's own credentials", reason="engine-auth")
    if status == 429 or (status == 503 and _QUEUE_FULL.search(message)):
        return Overloaded(message or "the engine's queue is full", reason="engine-queue-full")
    if status == 503:
        return NoCapacity(message or "the engine is not taking requests now", reason="engine-unavailable")
    if status < 500:
        return BadRequest(message or f"the engine refused the request (HTTP {status})", param=mistake.param)
    return LegFailed(f"the engine failed: {message}" if message else f"the engine failed (HTTP {status})")


def _mistake(told: Any) -> Mistake:
    if not isinstance(told, dict):
        return Mistake(str(told))
    inner = told.get("error", told)
    if not isinstance(inner, dict):
        return Mistake(str(inner))
    message = inner.get("message", inner.get("detail", ""))
    param = inner.get("param")
    return Mistake(
        message if isinstance(message, str) else orjson.dumps(message).decode(),
        _code(inner.get("code")),
        param if isinstance(param, str) else None,
    )


def _code(code: object) -> int | None:
    if isinstance(code, str) and code.isdigit():
        code = int(code)
    return code if isinstance(code, int) and not isinstance(code, bool) else None
