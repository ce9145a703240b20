"""What is fuzzed: a check that must hold for any bytes, and what to make the bytes of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from zlib import crc32


@dataclass(frozen=True, slots=True)
class Target:
    """`check` fails by whatever it raises; `seeds` are whole inputs, `words` what inputs are made of."""

    name: str
    check: Callable[[bytes], None]
    seeds: Sequence[bytes]
    words: Sequence[bytes]


def splits(data: bytes) -> Iterator[list[bytes]]:
    """The bytes as several reads may bring them: some cuts that hang on the bytes alone, then each byte."""
    rng = Random(crc32(data))
    for count in (1, 2, 5):
        cuts = sorted({0, len(data), *(rng.randint(0, len(data)) for _ in range(count))})
        yield [data[a:b] for a, b in pairwise(cuts)]
    if len(data) <= 600:
        yield [data[i : i + 1] for i in range(len(data))]
