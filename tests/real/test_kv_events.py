"""A router that goes by real engines' KV events: conversations of one beginning, more than caches hold."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from families import FAMILIES, metric
from running import GUARD_S, Deployment, eventually

CONVERSATIONS, TURNS, AT_ONCE = 10, 4, 3
FLEETS = {
    "vllm": (2, {"block-size": 32, "kv-cache-memory-bytes": 6 * 1024 * 1024, "max-model-len": 4096}),
    "sglang": (1, {"page-size": 64, "max-total-tokens": 6400}),
}
"""Engines, and flags for a cache of some 6,000 tokens each: the conversations need 9,000."""

WORDS = [
    line.strip()
    for line in [
        "def",
        "return",
        "import",
        "self",
        "for",
        "in",
        "if",
        "not",
        "else",
        "class",
        "while",
        "try",
        "with",
        "as",
    ]
]


def words(count: int, seed: int) -> str:
    rng = random.Random(seed)
    return " ".join(rng.choice(WORDS) for _ in range(count))


@pytest.fixture(scope="module", params=FLEETS)
def deployment(
    request: pytest.FixtureRequest, installed: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Deployment]:
    """Unified engines with small caches behind a router."""
    family = next(f for f in FAMILIES.values() if f.engine == request.param)
    engines, flags = FLEETS[request.param]
    settings = [
        f"pools.unified.instances={engines}",
        "pools.prefill.instances=0",
        "pools.decode.instances=0",
        "pools.unified.kv_events=true",
        # A busy machine tokenizes late; it is the index that is looked at here.
        "scheduling.kv_index.tokens_within=5s",
        *(f"pools.unified.flags.{name}={value}" for name, value in flags.items()),
    ]
    made = Deployment(family.example, tmp_path_factory.mktemp("kv-events"), settings)
    try:
        up = made.up()
        assert up.code == 0, up.err
        yield made
    finally:
        made.down()


def state(deployment: Deployment) -> dict[str, Any]:
    """What the router says of each endpoint's KV events."""
    told = httpx.get(f"{deployment.admin}/endpoints", timeout=10.0, trust_env=False).json()
    return {one["name"]: one["kv_events"] or {"state": "not joined"} for one in told["endpoints"]}


def converse(url: str, number: int) -> None:
    messages = [{"role": "system", "content": words(300, 0)}]
    with httpx.Client(timeout=GUARD_S, trust_env=False) as client:
        for turn in range(TURNS):
            messages.append({"role": "user", "content": words(90, 100 * number + turn)})
            body = {"model": "tiny", "messages": messages, "max_tokens": 16, "temperature": 0}
            answer = client.post(f"{url}/v1/chat/completions", json=body)
            assert answer.status_code == 200, answer.text
            messages.append(answer.json()["choices"][0]["message"] | {"role": "assistant"})


def counted(deployment: Deployment) -> dict[str, float]:
    text = httpx.get(f"{deployment.admin}/metrics", timeout=10.0, trust_env=False).text
    names = ("prompt", "hit", "ceiling", "predicted", "reported", "wrong")
    return {name: metric(text, f"pdctl_prefix_{name}_tokens_total") for name in names}


def test_predictions_are_what_the_engines_report(deployment: Deployment) -> None:
    eventually(
        lambda: {one["state"] for one in state(deployment).values()} == {"exact"},
        "every engine is read from its beginning",
    )
    # What is being computed while others come may be shared with them or not: the engine's affair.
    converse(deployment.url, 0)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda n: converse(deployment.url, n), range(1, CONVERSATIONS)))
    told, counts = state(deployment), counted(deployment)
    assert {one["state"] for one in told.values()} == {"exact"}
    assert any(one["blocks"] for one in told.values())
    assert not any("lost" in one["resets"] for one in told.values())
    assert counts["reported"] > 0.3 * counts["prompt"]
    assert counts["wrong"] <= 0.01 * counts["prompt"]
