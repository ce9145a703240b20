"""Lines of pdctl's decision log as entries of a trace; docs/explain.md lists their fields."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median_low
from typing import Any

from orchestrator.plugins import nearest
from orchestrator.sim.replay.trace import Entry

DEFAULT_BLOCK_TOKENS = 128

_NO_ANSWER = frozenset({"embed", "tokenize"})
"""Kinds of request that generate nothing: a replay has no place for them."""

_PARTLY = frozenset({"sample", "quiet"})
"""What `recorded` says in a log that does not hold every request."""


class Bad(Exception):
    """A field of one line is not what it must be."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field: str | None = field or None
        self.message = message


class DecisionLog:
    """Reads lines one by one; `notes` say at the end what a reader of the replay has to know."""

    def __init__(self) -> None:
        self._others = 0
        self._partly = False
        self._unknown = 0

    def entry(self, told: Mapping[str, Any]) -> tuple[Entry, int] | None:
        """One line, and the tokens that each of its block hashes stands for; None: it generates nothing.

        An output that nobody counted, the request having been refused or cut off, is 0 until `completed`.
        Raises Bad.
        """
        if told.get("path") in _NO_ANSWER:
            self._others += 1
            return None
        self._partly |= told.get("recorded") in _PARTLY
        prompt = tokens_of(told, "prompt_tokens")
        block = tokens_of(told, "block_tokens") if told.get("block_tokens") else DEFAULT_BLOCK_TOKENS
        estimated = tokens_of(told, "estimated_tokens") if told.get("estimated_tokens") else prompt
        limit = told.get("max_tokens")
        slo_class = told.get("slo_class")
        tenant = told.get("tenant")
        done = told.get("end", "completed") == "completed"
        entry = Entry(
            at_s=number_of(told, "arrived_s"),
            prompt_tokens=prompt,
            output_tokens=tokens_of(told, "output_tokens") if done else 0,
            ids=_rescaled(_hashes(told), block, estimated, prompt),
            slo_class=slo_class if isinstance(slo_class, str) else None,
            max_tokens=limit if isinstance(limit, int) and limit > 0 else None,
            tenant=tenant if isinstance(tenant, str) else None,
        )
        return entry, block

    def completed(self, entries: Sequence[Entry]) -> list[Entry]:
        """The entries, those without an output given the median of their class: they were offered as well."""
        known: dict[str | None, list[int]] = {}
        for entry in entries:
            if entry.output_tokens:
                known.setdefault(entry.slo_class, []).append(entry.output_tokens)
        everyone = [n for lengths in known.values() for n in lengths]
        if not everyone:
            return list(entries)
        usual = {name: median_low(lengths) for name, lengths in known.items()}
        made = []
        for entry in entries:
            if not entry.output_tokens and entry.prompt_tokens:
                self._unknown += 1
                guess = usual.get(entry.slo_class, median_low(everyone))
                entry = replace(entry, output_tokens=min(guess, entry.max_tokens or guess))
            made.append(entry)
        return made

    @property
    def notes(self) -> tuple[str, ...]:
        """What was not as it should be."""
        notes = []
        if self._partly:
            notes.append("the log is a sample (scheduling.decisions.record): the true rate was higher")
        if self._unknown:
            notes.append(
                f"{self._unknown} requests that got no whole answer are given their class's median output"
            )
        if self._others:
            notes.append(f"{self._others} requests that generate nothing are left out")
        return tuple(notes)


def _hashes(told: Mapping[str, Any]) -> list[int]:
    given = told.get("block_hashes") or []
    try:
        return [int(one, 16) if isinstance(one, str) else int(one) for one in given]
    except (TypeError, ValueError):
        raise Bad("block_hashes", "is no list of hashes") from None


def _rescaled(hashes: Sequence[int], block: int, estimated: int, prompt: int) -> tuple[int, ...]:
    """Hashes of blocks of estimated tokens as ids of blocks of tokens that were really there.

    The router hashes text, a block of which it takes to be so many tokens; what share of the prompt a block
    stands for is right even where that estimate is not.
    """
    if estimated == prompt or not hashes:
        return tuple(hashes)
    ids = []
    for index in range(prompt // block):
        at = math.ceil((index + 1) * estimated / prompt) - 1
        if at >= len(hashes):
            break
        ids.append(hashes[at])
    return tuple(ids)


def number_of(told: Mapping[str, Any], field: str) -> float:
    """A field that must be a finite number. Raises Bad."""
    value = told.get(field)
    if value is None:
        close = nearest(field, told)
        raise Bad(field, f"is missing (did you mean {close!r}?)" if close else "is missing")
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise Bad(field, f"is no number: {value!r}")
    return float(value)


def tokens_of(told: Mapping[str, Any], field: str) -> int:
    """A field that must be a count of tokens. Raises Bad."""
    value = number_of(told, field)
    if value < 0 or value != int(value):
        raise Bad(field, f"is no count of tokens: {told[field]!r}")
    return int(value)
