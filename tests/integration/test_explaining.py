"""What a request went through, as the router recorded it: the stages of each hand-off add up."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from asking import COMPLETION, WORDS
from deployment import MODEL, Deployment, Fleet, eventually, sim

pytestmark = pytest.mark.integration

ASK = {"model": MODEL, "prompt": WORDS * 40, "max_tokens": 8, "temperature": 0}
MICROSECOND = 1e-6


def recorded(deployment: Deployment, request_id: str) -> dict[str, Any]:
    """The record of a request, once it is written."""
    found: list[dict[str, Any]] = []

    def there() -> bool:
        done = deployment.pdctl("explain", request_id, "--json")
        found[:] = [json.loads(line) for line in done.stdout.splitlines()]
        return bool(found)

    eventually(there)
    return found[0]


def streamed(client: httpx.Client) -> tuple[str, float]:
    """A stream's id, and when its first event came, seconds after it was asked for."""
    asked_s = time.monotonic()
    with client.stream("POST", COMPLETION, json={**ASK, "stream": True}) as answer:
        assert answer.status_code == 200
        lines = answer.iter_lines()
        next(line for line in lines if line.startswith("data: "))
        first_s = time.monotonic() - asked_s
        assert [line for line in lines if line][-1] == "data: [DONE]"
        return answer.headers["x-pdctl-request-id"], first_s


def check_sums(record: dict[str, Any], first_s: float) -> None:
    """The stages up to the first token are its time, no longer than the client's; all are the whole."""
    stages = dict(record["stages"])
    rounding = MICROSECOND * len(stages)
    assert sum(stages.values()) == pytest.approx(record["e2e_s"], abs=rounding)
    del stages["decode"]
    assert sum(stages.values()) == pytest.approx(record["ttft_s"], abs=rounding)
    assert all(seconds >= 0 for seconds in stages.values())
    assert 0 < record["ttft_s"] <= first_s


def test_stages_of_pairs_add_up_to_the_time_to_first_token(fleet: Fleet) -> None:
    request_id, first_s = streamed(fleet.deployment.client)
    record = recorded(fleet.deployment, request_id)
    check_sums(record, first_s)
    assert {"queue", "connect", "first_token", "decode"} <= record["stages"].keys()
    if fleet.name == "nixl":
        # Decode starts when prefill has answered; elsewhere both start at once.
        assert {"prefill", "bind"} <= record["stages"].keys()
    assert set(record["route"]) == {"prefill", "decode"}
    assert [choice["role"] for choice in record["choices"]] == ["prefill", "decode"]


def test_stages_of_one_engine_alone_add_up_to_the_time_to_first_token(
    deploy: Callable[..., Deployment],
) -> None:
    deployment = deploy({"all": sim("unified")}).up()
    request_id, first_s = streamed(deployment.client)
    record = recorded(deployment, request_id)
    check_sums(record, first_s)
    assert list(record["stages"]) == ["queue", "connect", "first_token", "decode"]
    whole = deployment.client.post(COMPLETION, json=ASK)
    record = recorded(deployment, whole.headers["x-pdctl-request-id"])
    assert sum(record["stages"].values()) == pytest.approx(record["e2e_s"], abs=5 * MICROSECOND)
    assert list(record["stages"]) == ["queue", "connect", "answer"]


def test_a_request_is_explained_by_the_clients_id_also_when_nothing_runs_any_more(
    deploy: Callable[..., Deployment],
) -> None:
    deployment = deploy().up()
    for body in (ASK, {**ASK, "n": 0}):
        deployment.client.post(COMPLETION, json=body, headers={"x-request-id": "mine"})
    assert deployment.pdctl("down").returncode == 0
    done = deployment.pdctl("explain", "mine")
    assert done.returncode == 0, done.stderr
    assert "Refused" in done.stdout
    assert "prefill: prefill-0" in done.stdout
    assert "Completed: 8 tokens" in done.stdout
    assert WORDS[:12] not in "".join(p.read_text() for p in (deployment.state.root / "decisions").iterdir())
    shown = deployment.pdctl("explain", "--refused")
    assert len(shown.stdout.splitlines()) == 2
