"""Synthetic traces have the rates, lengths and shared prefixes that were asked for."""

from __future__ import annotations

from random import Random

import pytest

from orchestrator.sim.replay.trace import ceiling, chained
from orchestrator.sim.replay.workload import BLOCK_TOKENS, Prefixes, poisson, uniform


def test_poisson_arrivals_by_stage() -> None:
    moments = list(poisson([(100.0, 5.0), (50.0, 0.0), (100.0, 20.0)], Random(2)))
    assert moments == sorted(moments)
    assert sum(m < 100 for m in moments) == pytest.approx(500, rel=0.15)
    assert not [m for m in moments if 100 <= m < 150]
    assert sum(m >= 150 for m in moments) == pytest.approx(2000, rel=0.1)
    assert moments[-1] < 250


def test_groups_share_their_prefix_and_nothing_else() -> None:
    trace = Prefixes(4, 3, 6000, 1200, 100).trace("t", [(100.0, 4.0)], Random(1))
    assert {e.prompt_tokens for e in trace.entries} == {7200}
    assert {len(e.ids) for e in trace.entries} == {7200 // BLOCK_TOKENS}
    heads = {e.ids[: 6000 // BLOCK_TOKENS] for e in trace.entries}
    assert len(heads) == 4
    tails = [e.ids[6000 // BLOCK_TOKENS :] for e in trace.entries]
    assert len({i for tail in tails for i in tail}) == sum(map(len, tails))
    hit, total = ceiling(trace.entries, BLOCK_TOKENS)
    assert hit == (len(trace.entries) - 4) * (6000 // BLOCK_TOKENS) * BLOCK_TOKENS
    assert total == 7200 * len(trace.entries)


def test_turns_go_on_where_the_last_ended() -> None:
    trace = Prefixes(1, 1, 1280, 256, 384, turns=3).trace("t", [(20.0, 1.0)], Random(1))
    first, second, third, fourth = trace.entries[:4]
    assert [e.prompt_tokens for e in (first, second, third, fourth)] == [1536, 2176, 2816, 1536]
    assert second.ids[: len(first.ids)] == first.ids
    assert third.ids[: len(second.ids)] == second.ids
    assert fourth.ids[:10] == first.ids[:10]
    assert fourth.ids[10] != first.ids[10]
    assert len(chained(third.ids, third.prompt_tokens, BLOCK_TOKENS, BLOCK_TOKENS, 0)) == 2816 // BLOCK_TOKENS


def test_prompts_of_one_length() -> None:
    trace = uniform("t", [(10.0, 10.0)], 100, 20, Random(1))
    assert {(e.prompt_tokens, e.output_tokens, e.ids) for e in trace.entries} == {(100, 20, ())}
    assert trace.block_tokens is None
