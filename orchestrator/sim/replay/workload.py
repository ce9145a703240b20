"""Synthetic traces: Poisson arrivals, and groups of requests that share a prefix."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from orchestrator.sim.replay.trace import Entry, Trace

BLOCK_TOKENS = 128
"""What one id of a synthetic prompt stands for."""


def poisson(stages: Sequence[tuple[float, float]], rng: Random) -> Iterator[float]:
    """Moments of arrival: for each stage (seconds, requests a second) at random at that rate."""
    start_s = 0.0
    for seconds, rate in stages:
        at_s = start_s
        end_s = start_s + seconds
        while rate > 0 and (at_s := at_s + rng.expovariate(rate)) < end_s:
            yield at_s
        start_s = end_s


@dataclass(frozen=True, slots=True)
class Prefixes:
    """Requests that share prefixes: `groups` of one prefix each, asked by `users` in turn at random.

    A user's own questions share nothing but the group's prefix, unless `turns` is more than 1: then each goes
    on where the user's last one and its answer ended, for so many turns. Lengths are in tokens.
    """

    groups: int
    users: int
    prefix: int
    question: int
    output: int
    turns: int = 1

    def trace(self, name: str, stages: Sequence[tuple[float, float]], rng: Random) -> Trace:
        """Poisson arrivals of it."""
        fresh = iter(range(1, 1 << 62))
        shared = [_take(fresh, self.prefix) for _ in range(self.groups)]
        talks: dict[tuple[int, int], tuple[int, list[int]]] = {}
        entries = []
        for at_s in poisson(stages, rng):
            group, user = rng.randrange(self.groups), rng.randrange(self.users)
            turn, ids = talks.get((group, user), (0, shared[group]))
            tokens = self.prefix + (turn + 1) * self.question + turn * self.output
            # A block that the prefix only begins is another one for each question.
            ids = [*ids, *_take(fresh, tokens - len(ids) * BLOCK_TOKENS)]
            entries.append(Entry(at_s, tokens, self.output, tuple(ids)))
            if turn + 1 < self.turns:
                whole = (tokens + self.output) // BLOCK_TOKENS
                answered = _take(fresh, (whole - len(ids)) * BLOCK_TOKENS)
                talks[group, user] = (turn + 1, [*ids, *answered])
            else:
                talks.pop((group, user), None)
        note = (
            f"synthetic: {self.groups} prefixes of {self.prefix} tokens, {self.users} users each, questions "
            f"of {self.question} and answers of {self.output} tokens, {self.turns} turns, Poisson arrivals"
        )
        return Trace(name, tuple(entries), BLOCK_TOKENS, (note,))


def uniform(name: str, stages: Sequence[tuple[float, float]], prompt: int, output: int, rng: Random) -> Trace:
    """Poisson arrivals of prompts of one length that share nothing."""
    entries = tuple(Entry(at_s, prompt, output) for at_s in poisson(stages, rng))
    note = f"synthetic: prompts of {prompt} and answers of {output} tokens, nothing shared, Poisson arrivals"
    return Trace(name, entries, None, (note,))


def _take(ids: Iterator[int], tokens: int) -> list[int]:
    """Fresh ids for the full blocks of so many tokens."""
    return [next(ids) for _ in range(max(0, tokens) // BLOCK_TOKENS)]
