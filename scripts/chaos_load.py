"""The clients of a chaos run: what they ask, what the right answer is, and what became of each request."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from random import Random
from typing import Any

import httpx

from orchestrator.sim import text

MODEL = "demo"
WORDS = [
    "a",
    "river",
    "does",
    "not",
    "ask",
    "the",
    "stone",
    "why",
    "it",
    "lies",
    "there",
    "and",
    "goes",
    "on",
]
PATIENCE_S = 60.0
"""How long a client waits for its next byte: longer than any deadline of the router."""
BEYOND = 2
"""A stream that goes on once has less than so many times its tokens: each event held one at least."""
RIGHT_CODES = frozenset({429, 502, 503, 504})
"""What a request may be refused with for what engines do; 500 would be a fault of the router's own."""


class Fate(StrEnum):
    """What became of a request. The last five are failures of the router."""

    COMPLETED = "completed, with the right text"
    REFUSED = "failed before the first byte, with a right code"
    BROKEN = "ended with an error event"
    LONGER = "completed, with the right text and more of it"
    """Only a stream that went on elsewhere: the tokens that it had by then are counted in events, and an
    engine that is pressed for time puts several into one."""
    LEFT = "left by its client"
    ROUTER_KILLED = "on a router that was killed"
    WRONG_CODE = "failed with a wrong code"
    WRONG_TEXT = "with wrong text"
    SILENT = "ended silently"
    LOST = "lost without an answer"
    STUCK = "never ended"


BAD = (Fate.WRONG_CODE, Fate.WRONG_TEXT, Fate.SILENT, Fate.LOST, Fate.STUCK)


@dataclass(frozen=True, slots=True, eq=False)
class Ask:
    """One request: where, what, and the text that its answer must be. `leaves`: after that many pieces.

    `beyond` is what the engine would say after that text, if it were asked for `BEYOND` times as many tokens.
    """

    path: str
    body: dict[str, Any]
    expected: str
    beyond: str
    leaves: int | None = None


@dataclass(slots=True)
class Books:
    """What became of every request, when the router was killed, and what is worth a look."""

    fates: Counter[Fate] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    kills: list[tuple[float, float]] = field(default_factory=list)
    """When the router was killed, and when the next one answered."""
    remarks: list[str] = field(default_factory=list)
    continuation: bool = False
    """Whether streams may go on elsewhere."""
    ids: dict[Ask, str] = field(default_factory=dict)
    """What the router calls each request."""

    def killed(self, begun_s: float, ended_s: float) -> bool:
        """Whether a request of that time may have been on a router that was killed, or met none."""
        return any(begun_s <= up_s and ended_s >= down_s for down_s, up_s in self.kills)

    @property
    def failures(self) -> int:
        """Requests that nobody may ever see end like that."""
        return sum(self.fates[fate] for fate in BAD)


def make(rng: Random) -> Ask:
    """A request; its answer follows from its prompt alone, whoever gives it."""
    prompt = " ".join(rng.choices(WORDS, k=rng.choice((4, 40, 400)))) + f" {rng.getrandbits(40):x}"
    tokens = rng.choice((2, 16, 64, 200))
    stream = rng.random() < 0.6
    body: dict[str, Any] = {"model": MODEL, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    body["stream"] = stream
    if rng.random() < 0.5:
        messages = [{"role": "user", "content": prompt}]
        path, body["messages"], prompt = "/v1/chat/completions", messages, text.chat_prompt(messages)
    else:
        path, body["prompt"] = "/v1/completions", prompt
    out, _ = text.generate(text.fold(1, text.encode(prompt)), BEYOND * tokens, ignore_eos=True)
    expected, beyond = ("".join(map(text.piece, part)) for part in (out[:tokens], out[tokens:]))
    leaves = rng.randrange(3) if rng.random() < 0.08 else None
    return Ask(path, body, expected, beyond, leaves)


async def ask(client: httpx.AsyncClient, one: Ask, books: Books) -> None:
    """Send a request and note what becomes of it."""
    begun_s, at = time.monotonic(), f"{datetime.now():%H:%M:%S.%f}"
    seen = ""
    status = 0
    try:
        async with (
            asyncio.timeout(2 * PATIENCE_S),
            client.stream("POST", one.path, json=one.body, timeout=PATIENCE_S) as answer,
        ):
            status = answer.status_code
            books.ids[one] = answer.headers.get("x-pdctl-request-id", "")
            if one.leaves == 0:
                return _note(books, Fate.LEFT, one)
            if status != 200 or not one.body["stream"]:
                return _whole(books, one, status, await answer.aread(), answer.headers)
            pieces = 0
            async for line in answer.aiter_lines():
                if not line.startswith("data: "):
                    continue
                data = line.removeprefix("data: ")
                if data == "[DONE]":
                    return _note(books, _ended(books, one, seen), one, seen)
                event = json.loads(data)
                if "error" in event:
                    books.reasons[f"event {event['error'].get('code')}"] += 1
                    fate = Fate.BROKEN if one.expected.startswith(seen) else Fate.WRONG_TEXT
                    return _note(books, fate, one, seen)
                seen += _piece(event)
                pieces += 1
                if one.leaves is not None and pieces > one.leaves:
                    return _note(books, Fate.LEFT, one)
            why = "the stream ended"
    except (httpx.TimeoutException, TimeoutError) as error:
        return _note(books, Fate.STUCK, one, repr(error))
    except httpx.HTTPError as error:
        why = repr(error)
    if books.killed(begun_s, time.monotonic()):
        return _note(books, Fate.ROUTER_KILLED, one)
    return _note(books, Fate.SILENT if status else Fate.LOST, one, f"begun {at}, {why}")


def _whole(books: Books, one: Ask, status: int, body: bytes, headers: httpx.Headers) -> None:
    told = json.loads(body)
    if status == 200:
        choice = told["choices"][0]
        seen = choice["message"]["content"] if "messages" in one.body else choice["text"]
        return _note(books, _right(seen == one.expected), one, seen)
    code = told["error"]["code"]
    books.reasons[f"{status} {code}"] += 1
    right = status in RIGHT_CODES and headers.get("x-pdctl-reason") == code
    return _note(books, Fate.REFUSED if right else Fate.WRONG_CODE, one, f"{status} {body[:200]!r}")


def _ended(books: Books, one: Ask, seen: str) -> Fate:
    """What a whole stream is. Also what is too much must be what the engine would have said next."""
    if books.continuation and len(seen) > len(one.expected):
        return Fate.LONGER if (one.expected + one.beyond).startswith(seen) else Fate.WRONG_TEXT
    return _right(seen == one.expected)


def _right(right: bool) -> Fate:
    return Fate.COMPLETED if right else Fate.WRONG_TEXT


def _piece(event: dict[str, Any]) -> str:
    return "".join(c["delta"].get("content") or "" if "delta" in c else c["text"] for c in event["choices"])


def _note(books: Books, fate: Fate, one: Ask, what: str = "") -> None:
    books.fates[fate] += 1
    if fate in BAD:
        kind = "stream" if one.body["stream"] else "whole"
        told = f"{one.path} {kind} {one.body['max_tokens']} tokens, id {books.ids.get(one, 'unknown')}"
        books.remarks.append(f"{datetime.now():%H:%M:%S.%f} {fate}: {told}: {what[:100]}")


async def load(url: str, asks: Iterable[Ask], rate: float, rng: Random, books: Books) -> None:
    """Send all requests at random moments, `rate` a second, and return when each has its fate."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with (
        httpx.AsyncClient(base_url=url, limits=limits, trust_env=False) as client,
        asyncio.TaskGroup() as group,
    ):
        for one in asks:
            group.create_task(ask(client, one, books))
            await asyncio.sleep(rng.expovariate(rate))
