"""Rendezvous hashing: which endpoints a key prefers, agreed on by every router without a word."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from functools import lru_cache

from orchestrator.core.types import Endpoint

_MASK = (1 << 64) - 1


def hashed(text: str) -> int:
    """A 64-bit hash of `text`, the same in every process."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def preferred(
    key: int, candidates: Sequence[Endpoint], weights: Sequence[float] | None = None
) -> list[float]:
    """1 for the candidate that `key` prefers, 1/2 for its second choice, 1/4 for its third, and so on.

    An endpoint that joins or leaves moves only the keys that prefer it. With `weights`, positive and one
    per candidate, each is the first choice of that share of all keys.
    """
    drawn = [_mixed(key ^ _endpoint_hash(e.id)) for e in candidates]
    if weights is None:
        order = sorted(range(len(drawn)), key=drawn.__getitem__, reverse=True)
    else:
        # The smallest of exponential draws is each one with a probability proportional to its rate.
        late = [-math.log((d + 0.5) / 2**64) / w for d, w in zip(drawn, weights, strict=True)]
        order = sorted(range(len(late)), key=late.__getitem__)
    shares = [0.0] * len(drawn)
    for rank, i in enumerate(order):
        shares[i] = 0.5**rank
    return shares


@lru_cache(maxsize=4096)
def _endpoint_hash(endpoint_id: str) -> int:
    return hashed(endpoint_id)


def _mixed(value: int) -> int:
    """A 64-bit mixing function (the finalizer of MurmurHash3): close inputs, unrelated outputs."""
    value = ((value ^ (value >> 33)) * 0xFF51AFD7ED558CCD) & _MASK
    value = ((value ^ (value >> 33)) * 0xC4CEB9FE1A85EC53) & _MASK
    return value ^ (value >> 33)
