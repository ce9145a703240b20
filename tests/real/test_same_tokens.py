"""Prefill and decode apart generate what the unified server generated, token for token."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import combinations

import pytest
from asks import OUTPUT, SIZES, ask_for, completion, tokens
from families import FAMILIES
from pair import Pair

WAYS = [(name, way) for name, family in FAMILIES.items() for way in family.ways]
ALL = pytest.mark.parametrize("pair", FAMILIES, indirect=True)
AT_ONCE = 8
FRESH = (100, 500, 1500)


@ALL
def test_prompts_differ_in_their_answers(pair: Pair) -> None:
    """Or nothing below could tell one prompt's KV from another's."""
    answers = pair.reference.answers
    for way in pair.family.ways:
        texts = [answers[way, size].choices[0].text for size in SIZES]
        assert all(one != other for one, other in combinations(texts, 2))
    assert [answers["completion", size].prompt_tokens for size in SIZES] == list(SIZES)
    assert {answers["completion", size].output_tokens for size in SIZES} == {OUTPUT}
    longest = answers["chat", SIZES[-1]].prompt_tokens
    assert answers["chat", SIZES[0]].prompt_tokens < 20 < 2000 < longest


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("pair", "way"), WAYS, indirect=["pair"])
def test_same_as_unified(pair: Pair, way: str, size: int, stream: bool) -> None:
    ask, expected = ask_for(way, size), pair.reference.answers[way, size]
    told = pair.ask(pair.family.streamed(ask) if stream else ask)
    assert told.agrees(expected), f"{told}\nunified: {expected}"
    tells = way != "chat" or not stream or pair.family.engine == "vllm"
    assert (told.choices[0].tokens is not None) == tells


@ALL
def test_same_when_all_are_asked_at_once(pair: Pair) -> None:
    keys = [(way, size) for way in pair.family.ways for size in SIZES] * 2
    with ThreadPoolExecutor(AT_ONCE) as threads:
        told = list(threads.map(lambda key: pair.ask(ask_for(*key)), keys))
    wrong = [key for key, one in zip(keys, told, strict=True) if not one.agrees(pair.reference.answers[key])]
    assert not wrong


@ALL
def test_decode_got_its_kv_from_prefill(pair: Pair) -> None:
    """Decode computing the prompts by itself would give the same tokens."""
    prefill, decode = pair.urls["prefill-0"], pair.urls["decode-0"]
    before = pair.family.handed_over(prefill, decode)
    for size in FRESH:
        pair.ask(completion(tokens(size, seed=2)))
    after = pair.family.handed_over(prefill, decode)
    by_prefill, by_decode, failed = (b - a for a, b in zip(before, after, strict=True))
    assert by_prefill >= sum(FRESH)
    # Decode computes the last token of a prompt anew, and may do so with the block around it.
    assert by_decode <= 32 * len(FRESH)
    assert not failed
