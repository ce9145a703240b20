"""KV events of pairs: the caches of both sides are known to the block, and agree with what engines report."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from asking import COMPLETION
from crowd import completion
from deployment import Deployment, eventually, sim

pytestmark = pytest.mark.integration

SIZE = 16
PREFIX = [256 + n * 7 % 150 for n in range(60 * SIZE)]
SCHEDULING = {"kv_index": {"tokens_within": "10s"}}


@pytest.fixture(scope="module", params=["vllm", "sglang"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    dialect = request.param
    more: dict[str, Any] = {"page-size": SIZE, **({"transfer": "nixl"} if dialect == "vllm" else {})}
    pools = {role: {**sim(role, dialect, 2, **more), "kv_events": True} for role in ("prefill", "decode")}
    with Deployment(
        tmp_path_factory.mktemp(f"kv-pairs-{dialect}"), pools, scheduling=SCHEDULING
    ) as deployment:
        yield deployment.up()


def test_pairs_are_known_exactly(made: Deployment) -> None:
    def states() -> dict[str, str]:
        return {name: one["kv_events"]["state"] for name, one in made.endpoints().items()}

    eventually(lambda: set(states().values()) == {"exact"}, states)
    asked = 0
    for turn in range(6):
        own = [300 + turn * 31 + n % 50 for n in range(5 * SIZE)]
        for prompt in (PREFIX + own, PREFIX + own + own[::-1]):
            answer = made.client.post(COMPLETION, json={**completion(tokens=4), "prompt": prompt})
            assert answer.status_code == 200, answer.text
            asked += len(prompt)
    eventually(lambda: made.metric("pdctl_prefix_prompt_tokens_total") == asked)
    # The first computes the prefix, wherever; from then on all of it is found, and predicted to the block.
    assert made.metric("pdctl_prefix_hit_tokens_total") >= 11 * len(PREFIX)
    assert made.metric("pdctl_prefix_reported_tokens_total") >= 11 * len(PREFIX)
    assert made.metric("pdctl_prefix_wrong_tokens_total") == 0
    assert set(states().values()) == {"exact"}
    blocks = {name: n for name, n in made.metrics().items() if name.startswith("pdctl_kv_blocks") and n}
    assert any("prefill" in name for name in blocks)
