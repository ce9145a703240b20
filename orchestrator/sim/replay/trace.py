"""A trace: when requests came, how long they were, and which prefixes they share; never what they said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random

_MASK = (1 << 64) - 1
_ODD = 0xFF51AFD7ED558CCD


@dataclass(frozen=True, slots=True)
class Entry:
    """One request of a trace. `at_s` counts from the trace's beginning.

    `ids` name the blocks of the prompt, first block first; equal ids in two requests mean that all up to
    there is equal too if what is before them is. A last block that is not full may have one. `output_tokens`
    is the truth known only at the end: no policy sees it. `max_tokens` is the client's own limit, if known.
    """

    at_s: float
    prompt_tokens: int
    output_tokens: int
    ids: tuple[int, ...] = ()
    slo_class: str | None = None
    max_tokens: int | None = None
    tenant: str | None = None


@dataclass(frozen=True, slots=True)
class Trace:
    """Entries in order of arrival. `block_tokens` is what one of their ids stands for; None: there are none.

    `notes` say what was done to it, for the report.
    """

    name: str
    entries: tuple[Entry, ...]
    block_tokens: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """From the first arrival to the last."""
        return self.entries[-1].at_s - self.entries[0].at_s if self.entries else 0.0

    @property
    def rate(self) -> float:
        """Mean arrivals a second; infinite if all come at once."""
        return len(self.entries) / self.seconds if self.seconds > 0 else float("inf")

    def noted(self, entries: Sequence[Entry], note: str) -> Trace:
        """The trace with other entries, and why."""
        return replace(self, entries=tuple(entries), notes=(*self.notes, note))

    def first(self, n: int) -> Trace:
        """Its first `n` requests."""
        if n >= len(self.entries):
            return self
        return self.noted(self.entries[:n], f"first {n} of {len(self.entries)} requests")

    def faster(self, factor: float) -> Trace:
        """All of it in a `factor`-th of the time: think times shrink as well."""
        if factor == 1.0:
            return self
        entries = [replace(e, at_s=e.at_s / factor) for e in self.entries]
        return self.noted(entries, f"time divided by {factor:g}")

    def spread(self, quantum_s: float) -> Trace:
        """Arrivals at one recorded moment spread evenly over `quantum_s`: for traces that round their times.

        Raises ValueError for a quantum that is not positive.
        """
        if quantum_s <= 0:
            raise ValueError(f"a quantum is a positive number of seconds, not {quantum_s:g}")
        together = Counter(e.at_s for e in self.entries)
        seen: Counter[float] = Counter()
        entries = []
        for e in self.entries:
            entries.append(replace(e, at_s=e.at_s + quantum_s * seen[e.at_s] / together[e.at_s]))
            seen[e.at_s] += 1
        entries.sort(key=lambda e: e.at_s)
        return self.noted(entries, f"arrivals spread inside quanta of {quantum_s:g} s")

    def quantum_s(self) -> float | None:
        """What its times seem to be rounded to: the least gap, if most requests share their moment."""
        moments = sorted({e.at_s for e in self.entries})
        if len(moments) < 2 or len(moments) * 2 > len(self.entries):
            return None
        return min(b - a for a, b in pairwise(moments))

    def mixed(self, shares: Mapping[str, float], rng: Random) -> Trace:
        """Each request given a class at random, by `shares`; what they leave of 1 keeps its own.

        Raises ValueError for shares that are negative or add up to more than 1.
        """
        if any(share < 0 for share in shares.values()) or sum(shares.values()) > 1 + 1e-9:
            raise ValueError("class shares are positive and add up to 1 at most")
        entries = []
        for e in self.entries:
            draw = rng.random()
            for name, share in shares.items():
                draw -= share
                if draw < 0:
                    e = replace(e, slo_class=name)
                    break
            entries.append(e)
        told = ", ".join(f"{share:.0%} {name}" for name, share in shares.items())
        return self.noted(entries, f"classes drawn at random: {told}")


def chained(
    ids: Sequence[int], prompt_tokens: int, id_tokens: int, block_tokens: int, seed: int
) -> tuple[int, ...]:
    """The chained 64-bit hashes of a prompt's full blocks of `block_tokens`, from ids of `id_tokens` each.

    Raises ValueError if neither size is a multiple of the other.
    """
    if id_tokens % block_tokens and block_tokens % id_tokens:
        raise ValueError(f"blocks of {block_tokens} tokens cannot be made of blocks of {id_tokens}")
    parts, every = max(1, id_tokens // block_tokens), max(1, block_tokens // id_tokens)
    running = _mix(seed)
    hashes = []
    for one in ids:
        running = _mix(running * _ODD + one)
        hashes.append(running)
        for part in range(1, parts):
            hashes.append(_mix(running + part))
    return tuple(hashes[every - 1 :: every][: prompt_tokens // block_tokens])


def ceiling(entries: Sequence[Entry], block_tokens: int) -> tuple[int, int]:
    """Tokens of full blocks that were seen before (an infinite cache has them), and prompt tokens in all."""
    seen: set[int] = set()
    hit = total = 0
    for entry in entries:
        total += entry.prompt_tokens
        usable = min((entry.prompt_tokens - 1) // block_tokens, len(entry.ids))
        known = 0
        while known < usable and entry.ids[known] in seen:
            known += 1
        hit += known * block_tokens
        seen.update(entry.ids[: entry.prompt_tokens // block_tokens])
    return hit, total


def _mix(value: int) -> int:
    """A bijection of 64-bit numbers without structure (SplitMix64's finisher); larger ones lose high bits."""
    z = (value + 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)
