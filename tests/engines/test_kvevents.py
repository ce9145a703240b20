"""KV events from bytes, as captured from both engines, and what else an adapter may know (`kv`)."""

import hashlib
import json
from pathlib import Path

import msgspec
import pytest

from orchestrator.core.kvblocks import KvBlocks, token_chain
from orchestrator.core.kvevents import BlocksCleared, BlocksRemoved, BlocksStored, Tier, key
from orchestrator.engines.kv import TellsCache, Tokenizes, port_of, reachable, written
from orchestrator.engines.kvevents import decode, pack, tokens_in
from orchestrator.engines.sglang import SGLang
from orchestrator.engines.sim import Sim, SimVLLM
from orchestrator.engines.vllm import VLLM

CAPTURED = Path(__file__).parents[1] / "data" / "kv_events"


def captured(engine):
    lines = (CAPTURED / f"{engine}.jsonl").read_text().splitlines()
    return [(one["number"], bytes.fromhex(one["batch"])) for one in map(json.loads, lines)]


def batch(*events):
    return msgspec.msgpack.encode([1.5, list(events), 0])


def stored(**more):
    event = {
        "type": "BlockStored", "block_hashes": [5], "parent_block_hash": None, "token_ids": [1, 2],
        "block_size": 2, "lora_id": None, "medium": "GPU",
    }  # fmt: skip
    return decode(batch(event | more))


def test_vllm_as_captured():
    told = {number: decode(body) for number, body in captured("vllm")}
    (first,) = told[1]
    assert (first.block_tokens, first.parent, len(first.tokens)) == (32, None, 128)
    assert first.hashes == [key(16439749044121075088)]
    assert (first.tier, first.private, first.group) == (Tier.DEVICE, False, 0)
    kinds = [type(event) for event in told[0x16]]
    assert kinds == [BlocksRemoved] * 5 + [BlocksStored]
    assert [type(event) for event in told[0x1F]] == [BlocksCleared, BlocksStored]


def test_sglang_as_captured():
    told = [event for _, body in captured("sglang") for event in decode(body)]
    assert isinstance(told[0], BlocksCleared)
    first, second = told[1], told[2]
    assert (first.block_tokens, first.parent, len(first.hashes)) == (1, None, 5)
    assert second.parent == first.hashes[-1], "signed hashes and parents are the same numbers"
    salted = [event for event in told if isinstance(event, BlocksStored) and event.private]
    assert len(salted) == 1, "blocks under a cache salt"


def test_sglang_s_own_hashes_are_what_its_tokens_make_them():
    """The engine's hash is reproducible; the index does not depend on it, but the capture must be sound."""
    first = decode(captured("sglang")[1][1])[0]
    digest, hashes = b"", []
    for at in range(0, len(first.tokens), 4):
        digest = hashlib.sha256(digest + first.tokens[at : at + 4]).digest()
        hashes.append(key(int.from_bytes(digest[:8], "big")))
    assert hashes == first.hashes


def test_captured_life_of_a_cache():
    """Forks, a chain that goes on, a second tenant's copy: what SGLang held by its events."""
    held, bodies = KvBlocks(0, 1, 1000), captured("sglang")
    events = [event for _, body in bodies[1:8] for event in decode(body)]
    for event in events:
        held.store(event)
    long = events[0].tokens + events[1].tokens
    assert held.leading(token_chain(0, long, 1)) == 8
    fork = events[0].tokens[:8] + events[2].tokens + events[3].tokens
    assert held.leading(token_chain(0, fork, 1)) == 8
    names = [*events[1].hashes[::-1], *events[0].hashes[::-1]]
    held.remove(BlocksRemoved(names))
    assert held.leading(token_chain(0, long, 1)) == 5, "the tenant's copy is still there"


def test_a_whole_digest_is_known_by_its_end():
    digest = hashlib.sha256(b"x").digest()
    (event,) = stored(block_hashes=[digest], parent_block_hash=digest)
    assert event.hashes == [event.parent] == [key(int.from_bytes(digest, "big"))]


@pytest.mark.parametrize(
    "more",
    [
        {"lora_name": "a"},
        {"lora_id": 0},
        {"cache_salt": "s"},
        {"extra_keys": [["image", 4]]},
        {"token_ids": [1, -5]},
        {"token_ids": [1, 2**40]},
    ],
)
def test_what_depends_on_more_than_tokens_is_private(more):
    assert stored(**more)[0].private


def test_what_says_nothing_of_prefixes_is_left_out():
    assert stored(kv_cache_spec_kind="sliding_window") == []
    assert stored(medium="TAPE") == []
    assert decode(batch({"type": "BlockMoved", "block_hashes": [1]})) == []
    assert not stored(extra_keys=[None])[0].private
    assert stored(medium=None)[0].tier is Tier.DEVICE


@pytest.mark.parametrize(
    ("medium", "tier"),
    [("CPU", Tier.HOST), ("CPU_PINNED", Tier.HOST), ("DISK", Tier.STORAGE), ("EXTERNAL", Tier.STORAGE)],
)
def test_tiers_behind_the_device(medium, tier):
    assert stored(medium=medium)[0].tier is tier
    (gone,) = decode(batch({"type": "BlockRemoved", "block_hashes": [1], "medium": medium, "group_idx": 2}))
    assert (gone.tier, gone.group) == (tier, 2)


def test_a_batch_may_leave_out_its_rank():
    assert decode(msgspec.msgpack.encode([1.5, [{"type": "AllBlocksCleared"}]])) == [BlocksCleared()]


@pytest.mark.parametrize(
    "body", [b"", b"\xc1", msgspec.msgpack.encode({}), msgspec.msgpack.encode([1, [["BlockStored"]], 0])]
)
def test_what_is_no_batch_is_refused(body):
    with pytest.raises(ValueError, match="not a batch of KV events"):
        decode(body)


def test_tokens_of_an_answer():
    assert tokens_in(b'{"count":2,"tokens":[4,5]}') == [4, 5]
    for bad in (b"[]", b"{}", b'{"tokens":[[1]]}', b'{"tokens":["a"]}', b"x"):
        with pytest.raises(ValueError, match=r"."):
            tokens_in(bad)
    assert pack([1, 2**32]) is None
    assert pack([258]) == b"\x02\x01\0\0"


def test_adapters_say_what_they_know():
    for adapter in (SGLang(), VLLM(), Sim(), SimVLLM()):
        assert isinstance(adapter, TellsCache)
        assert isinstance(adapter, Tokenizes)


def test_addresses():
    assert port_of("tcp://*:5557") == 5557
    assert port_of("ipc:///tmp/x") is None
    assert port_of(None) is None
    assert reachable("::1", 5) == "tcp://[::1]:5"
    source = written({"kv_events_url": "tcp://h:1", "kv_replay_url": "tcp://h:2", "block_size": 16})
    assert source is not None
    assert (source.events, source.replay, source.block_tokens) == ("tcp://h:1", "tcp://h:2", 16)
    assert written({}) is None
