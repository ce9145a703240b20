"""Clients that leave: what they asked for ends in both engines, and its KV is free again."""

from __future__ import annotations

import httpx
import pytest
from asks import TIMEOUT_S, Ask, completion, events, tokens
from families import FAMILIES
from pair import Pair
from running import eventually

LONG = 3_000
"""Output tokens that take tens of seconds; somebody who leaves early must have cut them short."""


def long(**fields: object) -> Ask:
    """A request that runs until somebody ends it."""
    return completion(tokens(500, seed=3), max_tokens=LONG, **fields)


def leave(pair: Pair, ask: Ask, after_s: float) -> None:
    """Send it, and hang up before the answer."""
    with pytest.raises(httpx.ReadTimeout):
        pair.client.post(ask.path, json=ask.body, timeout=httpx.Timeout(TIMEOUT_S, read=after_s))


def assert_cut(pair: Pair, generated_before: float) -> None:
    """Everything is free again, and the rest of the output was never made."""
    pair.wait_until_idle()
    generated = pair.family.generated(pair.urls["decode-0"]) - generated_before
    assert generated < LONG, f"{generated} tokens were generated for nobody"


@pytest.mark.parametrize("pair", FAMILIES, indirect=True)
def test_a_stream_cut_in_the_middle(pair: Pair) -> None:
    pair.wait_until_idle()
    before = pair.family.generated(pair.urls["decode-0"])
    ask = long(stream=True)
    with pair.client.stream("POST", ask.path, json=ask.body) as response:
        arriving = events(response.iter_lines())
        for _ in range(20):
            assert next(arriving)["choices"]
        eventually(lambda: (held := pair.held()["decode-0"]).running and held.kv, "decode is at work")
        assert pair.router("pdctl_inflight_requests") == 1
    assert_cut(pair, before)
    pair.assert_serves()


def test_an_answer_nobody_waits_for(pair: Pair) -> None:
    pair.wait_until_idle()
    before = pair.family.generated(pair.urls["decode-0"])
    leave(pair, long(), 1.0)
    assert_cut(pair, before)
    pair.assert_serves()


def test_leaving_at_any_moment(pair: Pair) -> None:
    """From before the prompt is read to the first tokens."""
    pair.wait_until_idle()
    before = pair.family.generated(pair.urls["decode-0"])
    for index in range(10):
        leave(pair, completion(tokens(2_500, seed=10 + index), max_tokens=LONG // 3), 0.02 + 0.04 * index)
    assert_cut(pair, before)
    pair.assert_serves()
