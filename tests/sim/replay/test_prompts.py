"""Prompts are as long as the trace says, to engines and router, and share what it says they share."""

from __future__ import annotations

import json
from pathlib import Path

import orjson

from orchestrator.core.prefix import chain
from orchestrator.core.types import PathKind
from orchestrator.engines.splice import JsonBody
from orchestrator.router.view import BLOCK_BYTES, BYTES_PER_TOKEN, Prompt, prompt_of
from orchestrator.sim.replay.loading import load
from orchestrator.sim.replay.prompts import Prompts
from orchestrator.sim.replay.requests import Requests
from orchestrator.sim.replay.trace import Entry, Trace
from orchestrator.sim.text import block_hashes, block_states, encode

MOONCAKE = Path(__file__).parents[2] / "data" / "traces" / "mooncake_synthetic_400.jsonl"


def as_router_sees(text: bytes) -> Prompt:
    return prompt_of(PathKind.COMPLETION, JsonBody(b'{"prompt":"' + text + b'"}'))


def common(a: list[int] | tuple[int, ...], b: list[int] | tuple[int, ...]) -> int:
    """How many items two sequences share from the start."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def test_a_real_trace_is_cut_the_same_by_router_engine_and_replay() -> None:
    """Any two prompts share as many blocks in text, in tokens, and in the replay's own hashes."""
    whole = load(MOONCAKE)
    trace = whole.noted([e for e in whole.entries[:150] if e.prompt_tokens <= 8192], "short ones")
    count = len(trace.entries)
    prompts, requests = Prompts(trace), Requests(trace, block_tokens=128, engine_block_tokens=64)
    texts = [prompts.text(i) for i in range(count)]
    seen = [as_router_sees(text) for text in texts]
    tokens = [encode(text.decode()) for text in texts]
    assert [len(one) for one in tokens] == [e.prompt_tokens for e in trace.entries]
    assert [one.tokens for one in seen] == [e.prompt_tokens for e in trace.entries]
    router = [chain(7, one.text, BLOCK_BYTES) for one in seen]
    engine = [block_hashes(block_states(one, 64), 7) for one in tokens]
    assert BLOCK_BYTES == 128 * BYTES_PER_TOKEN
    shared = 0
    for i in range(count):
        assert len(router[i]) == len(requests.hashes[i])
        assert len(engine[i]) == len(requests.engine_hashes[i])
        for j in range(i):
            both = common(requests.hashes[i], requests.hashes[j])
            pages = common(requests.engine_hashes[i], requests.engine_hashes[j])
            assert common(router[i], router[j]) == both
            assert common(engine[i], engine[j]) == pages
            shared += both
    assert shared > 0


def test_text_is_the_same_each_time_and_needs_no_escape() -> None:
    trace = Trace("t", (Entry(0.0, 1000, 1, (5, 6)),), 512)
    text = Prompts(trace).text(0)
    assert text == Prompts(trace).text(0)
    assert orjson.dumps(text.decode()) == b'"' + text + b'"' == json.dumps(text.decode()).encode()


def test_what_has_no_ids_shares_nothing() -> None:
    prompts = Prompts(Trace("t", (Entry(0.0, 700, 1), Entry(0.0, 700, 1))))
    assert common(encode(prompts.text(0).decode()), encode(prompts.text(1).decode())) == 0


def test_ids_that_end_early_are_filled_up() -> None:
    entries = (Entry(0.0, 1500, 1, (1,)), Entry(0.0, 1500, 1, (1,)))
    first, second = (Prompts(Trace("t", entries, 512)).text(i) for i in (0, 1))
    assert common(encode(first.decode()), encode(second.decode())) == 512
    assert as_router_sees(first).tokens == as_router_sees(second).tokens == 1500


def test_the_shortest_prompts() -> None:
    prompts = Prompts(Trace("t", tuple(Entry(0.0, n, 1) for n in range(1, 5))))
    texts = [prompts.text(i) for i in range(4)]
    assert [len(encode(text.decode())) for text in texts] == [1, 2, 3, 4]
    assert [as_router_sees(text).tokens for text in texts] == [1, 2, 3, 4]
