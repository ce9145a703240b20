"""Prefix slices on real processes: long prompts are computed a part at a time, and answered as ever."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import pytest
from asking import COMPLETION, WORDS
from crowd import completion, crowd, sent, under_way, waiting
from deployment import Deployment, eventually, sim

pytestmark = pytest.mark.integration

SCHEDULING = {
    "decisions": {"record": "full"},
    "profile": "sliced",
    "profiles": {"sliced": {"mode": "late", "late": {"slices": "200ms"}}},
    "kv_index": {"tokens_within": "10s"},
}
IDS = [256 + n * 7 % 150 for n in range(12_000)]
"""A prompt of 0.85 s at four times the real pace: four slices and a rest."""

TEXT = WORDS * 600


@pytest.fixture(scope="module", params=["vllm-pair", "vllm-kv-events", "sglang-alone"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "sglang-alone":
        pools = {"unified": sim("unified", speed=4, **{"page-size": 64})}
    else:
        more: dict[str, Any] = {"speed": 4, "transfer": "nixl"}
        pools = {role: sim(role, "vllm", **more) for role in ("prefill", "decode")}
        if request.param == "vllm-kv-events":
            pools = {name: {**pool, "kv_events": True} for name, pool in pools.items()}
    with Deployment(folder, pools, scheduling=SCHEDULING) as deployment:
        yield deployment.up()


def stages(made: Deployment, answer: httpx.Response) -> Mapping[str, float]:
    """What the request's time went to, as recorded."""
    found: list[str] = []

    def there() -> bool:
        found[:] = made.pdctl("explain", answer.headers["x-pdctl-request-id"], "--json").stdout.splitlines()
        return bool(found)

    eventually(there)
    return dict(json.loads(found[0])["stages"])


@pytest.mark.parametrize("prompt", [IDS, TEXT], ids=["ids", "text"])
def test_the_answer_is_what_it_would_be_whole(
    made: Deployment, references: Mapping[str, httpx.Client], prompt: Any
) -> None:
    body = {**completion(tokens=12), "prompt": prompt}
    answer = made.client.post(COMPLETION, json=body)
    assert answer.status_code == 200, answer.text
    dialect = "sglang" if "sglang" in made.folder.name else "vllm"
    theirs = references[dialect].post(COMPLETION, json=body)
    assert answer.json()["choices"][0]["text"] == theirs.json()["choices"][0]["text"]
    assert answer.json()["usage"]["prompt_tokens"] == theirs.json()["usage"]["prompt_tokens"]
    assert stages(made, answer)["slices"] > 0.0


def computing(made: Deployment) -> bool:
    """Whether a part of a prompt is being computed, and nothing else."""
    return under_way(made) == 1 and waiting(made) == 0


def test_who_leaves_in_the_middle_leaves_nothing(made: Deployment) -> None:
    ids = [300 + n * 11 % 140 for n in range(40_000)]
    with sent(made, COMPLETION, {**completion(), "prompt": ids}):
        eventually(lambda: computing(made))
    eventually(lambda: under_way(made) == 0)
    made.at_rest()


def test_an_engine_that_dies_over_a_slice_costs_time_only(
    made: Deployment, references: Mapping[str, httpx.Client]
) -> None:
    """The only one that can compute prompts is killed over a part of one: the client is told so, or gets what
    its next life answers, and never a wrong answer."""
    body = {**completion(tokens=4), "prompt": [310 + n * 13 % 120 for n in range(30_000)]}
    name = "unified-0" if "sglang" in made.folder.name else "prefill-0"
    with crowd(made, 1) as clients:
        answer = clients.ask(body)
        eventually(lambda: computing(made))
        pid = made.engine_state(name)["pid"]
        os.kill(pid, signal.SIGKILL)
        told = answer.result()
    assert told.status_code in (200, 502, 503), told.text
    if told.status_code == 200:
        dialect = "sglang" if "sglang" in made.folder.name else "vllm"
        theirs = references[dialect].post(COMPLETION, json=body)
        assert told.json()["choices"][0]["text"] == theirs.json()["choices"][0]["text"]
    made.replaced(name, pid)
    made.at_rest()
