"""Fault scripts: what is to go wrong in a simulated engine, when, and how often."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from random import Random
from typing import Any

import orjson

KINDS = {
    "refuse": "new connections are refused (the listener is closed) for `for_s`",
    "error": "answer `status` with a message, before any work is done",
    "hang": "take requests and never answer them; health stays good",
    "freeze": "nothing that runs goes on; health stays good",
    "die": "the process exits after `after_tokens` output tokens in all (0: at the next request)",
    "slow": "every step takes `factor` times as long",
    "slow-link": "KV takes `factor` times as long to leave (NIXL: to be fetched)",
    "garbage": "KV received from `peer` (host:port, or * for any) is wrong",
    "truncate": "streams end cleanly after `after_tokens` tokens, without a finish reason or [DONE]",
    "close": "connections are cut after `after_tokens` tokens of their answer",
    "no-kv": "KV for `peer` is never sent (prefill side), or never asked for (decode side)",
}


class BadFault(ValueError):
    """A fault script that cannot be read; the message names the rule and the field."""


@dataclass(slots=True)
class Rule:
    """One thing that goes wrong. `rate` is the share of requests it takes, `count` at most how many of them
    (None: no end), `path` a prefix of the URLs it applies to, `for_s` how long it holds (virtual seconds)."""

    kind: str
    rate: float = 1.0
    count: int | None = None
    path: str = "/"
    status: int = 500
    message: str = "injected fault"
    after_tokens: int = 0
    factor: float = 1.0
    peer: str = "*"
    for_s: float | None = None
    id: int = field(default=0)


def parse(script: str | bytes | Any) -> list[Rule]:
    """Rules from inline JSON, a JSON file's path, or data: a list, or `{"rules": [...]}`. Raises BadFault."""
    data = _load(script)
    rules = data.get("rules") if isinstance(data, dict) and "kind" not in data else data
    if isinstance(rules, dict):
        rules = [rules]
    if not isinstance(rules, list):
        raise BadFault('a fault script is a list of rules, or {"rules": [...]}')
    return [_rule(index, entry) for index, entry in enumerate(rules)]


def _load(script: str | bytes | Any) -> Any:
    if not isinstance(script, str | bytes):
        return script
    text = script.encode() if isinstance(script, str) else script
    source = "the fault script"
    if not text.lstrip().startswith((b"{", b"[")):
        source = text.decode(errors="replace")
        try:
            text = Path(source).read_bytes()
        except OSError as error:
            raise BadFault(f"{source}: {error.strerror}") from None
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise BadFault(f"{source}: not JSON: {error}") from None


def _rule(index: int, entry: Any) -> Rule:
    if not isinstance(entry, dict) or entry.get("kind") not in KINDS:
        raise BadFault(f"rule {index}: `kind` must be one of {', '.join(KINDS)}")
    known = {f.name: f.default for f in fields(Rule) if f.name not in ("id", "kind")}
    for name, value in entry.items():
        if name == "kind":
            continue
        if name not in known:
            raise BadFault(
                f"rule {index} ({entry['kind']}): unknown field {name!r}; known: {', '.join(known)}"
            )
        wanted: tuple[type, ...] = (str,) if isinstance(known[name], str) else (int, float)
        if not isinstance(value, wanted) or isinstance(value, bool):
            raise BadFault(f"rule {index} ({entry['kind']}): {name} has the wrong type: {value!r}")
    return Rule(**entry)


class Faults:
    """The rules in force, and the dice they are thrown with."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._ids = itertools.count(1)
        self.rules: dict[int, Rule] = {}
        self.fired: dict[str, int] = {}
        """How often each kind has struck."""

    def add(self, rules: Iterable[Rule]) -> list[Rule]:
        """Put rules in force; each gets an id."""
        added = list(rules)
        for rule in added:
            rule.id = next(self._ids)
            self.rules[rule.id] = rule
        return added

    def clear(self) -> None:
        """Everything is well again."""
        self.rules.clear()

    def drop(self, rule: Rule) -> None:
        """One rule is over."""
        self.rules.pop(rule.id, None)

    def first(self, kind: str) -> Rule | None:
        """A rule of this kind in force, without throwing its dice."""
        return next((rule for rule in self.rules.values() if rule.kind == kind), None)

    def strike(self, kind: str, path: str = "/", peer: str | None = None) -> Rule | None:
        """The rule of this kind that hits this request or peer, if one does; counts it."""
        if not self.rules:
            return None
        for rule in tuple(self.rules.values()):
            if rule.kind != kind or not path.startswith(rule.path):
                continue
            if peer is not None and rule.peer not in ("*", peer):
                continue
            if rule.rate < 1.0 and self._rng.random() >= rule.rate:
                continue
            if rule.count is not None:
                rule.count -= 1
                if rule.count <= 0:
                    self.drop(rule)
            self.fired[kind] = self.fired.get(kind, 0) + 1
            return rule
        return None

    def factor(self, kind: str = "slow") -> float:
        """How much slower every step is now; with `slow-link`, every transfer of KV."""
        product = 1.0
        for rule in self.rules.values():
            if rule.kind == kind:
                product *= rule.factor
        return product
