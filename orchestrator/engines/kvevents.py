"""Engines' accounts of their KV caches, from bytes to events: both real engines write the same maps."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from typing import Any

import msgspec
import orjson

from orchestrator.core.kvevents import BlocksCleared, BlocksRemoved, BlocksStored, KvEvent, Tier, key

_TIERS = {
    "GPU": Tier.DEVICE,
    "CPU": Tier.HOST,
    "CPU_PINNED": Tier.HOST,
    "DISK": Tier.STORAGE,
    "STORAGE": Tier.STORAGE,
    "EXTERNAL": Tier.STORAGE,
}
_WHOLE = frozenset((None, "full_attention", "mla_attention", "sink_full_attention"))
"""Kinds of layers that need every block of a prefix. Of others (windows, states) a part does, and which part
is the engine's business: what they tell says nothing of a prefix by itself."""


class _Event(msgspec.Struct, gc=False):
    """Any event; which fields it has depends on its `type`."""

    type: str
    block_hashes: list[int | bytes] = []
    parent_block_hash: int | bytes | None = None
    token_ids: list[int] = []
    block_size: int = 0
    medium: str | None = None
    lora_id: int | None = None
    lora_name: str | None = None
    cache_salt: str | None = None
    extra_keys: list[Any] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None


class _Batch(msgspec.Struct, array_like=True, gc=False):
    """What a scheduler published of one step."""

    at_s: float
    events: list[_Event]
    dp_rank: int | None = None


_DECODER = msgspec.msgpack.Decoder(_Batch)


def decode(batch: bytes) -> list[KvEvent]:
    """The events of one batch, in order; those of kinds that are not known are left out.

    Raises ValueError for bytes that are no batch.
    """
    try:
        told = _DECODER.decode(batch)
    except msgspec.MsgspecError as error:
        raise ValueError(f"not a batch of KV events: {error}") from error
    return [event for one in told.events if (event := _event(one)) is not None]


def _event(told: _Event) -> KvEvent | None:
    if told.type == "BlockStored":
        if told.kv_cache_spec_kind not in _WHOLE:
            return None
        return _stored(told)
    tier = _tier(told.medium)
    if told.type == "BlockRemoved" and tier is not None:
        return BlocksRemoved([_key(one) for one in told.block_hashes], tier, told.group_idx or 0)
    return BlocksCleared() if told.type == "AllBlocksCleared" else None


def _stored(told: _Event) -> BlocksStored | None:
    tier = _tier(told.medium)
    if tier is None:
        return None
    private = (
        told.lora_id is not None
        or told.lora_name is not None
        or told.cache_salt is not None
        or (told.extra_keys is not None and any(told.extra_keys))
    )
    try:
        tokens = _bytes(told.token_ids)
    except OverflowError:
        # What stands for an image is no token of any vocabulary.
        private, tokens = True, b""
    parent = None if told.parent_block_hash is None else _key(told.parent_block_hash)
    hashes = [_key(one) for one in told.block_hashes]
    return BlocksStored(hashes, parent, tokens, told.block_size, tier, private, told.group_idx or 0)


def _tier(medium: str | None) -> Tier | None:
    return Tier.DEVICE if medium is None else _TIERS.get(medium)


def _key(told: int | bytes) -> int:
    """A whole digest is known by its last eight bytes, as the engine itself shortens it."""
    return key(told if isinstance(told, int) else int.from_bytes(told[-8:], "big"))


def _bytes(tokens: Sequence[int]) -> bytes:
    """Tokens as the core wants them. Raises OverflowError for what is not a token id of 32 bits."""
    packed = array("I", tokens)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def pack(tokens: Sequence[int]) -> bytes | None:
    """Token ids as the core names blocks by, 4 bytes each, little-endian; None if they are no token ids."""
    try:
        return _bytes(tokens)
    except (OverflowError, TypeError):
        return None


def tokens_in(body: bytes) -> list[int]:
    """The token ids in the answer of either engine's /tokenize. Raises ValueError if there are none."""
    told = orjson.loads(body)
    tokens = told.get("tokens") if isinstance(told, dict) else None
    if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
        raise ValueError("no list of token ids under `tokens`")
    return tokens
