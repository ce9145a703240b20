"""`pdctl up` of the real examples: ready under the supervisor, seen by `ps` and `logs`."""

from __future__ import annotations

import pytest
from families import FAMILIES
from pair import Pair

pytestmark = pytest.mark.parametrize("pair", FAMILIES, indirect=True)


def test_the_unified_server_came_up_and_left_nothing(pair: Pair) -> None:
    reference = pair.reference
    assert {name: one["state"] for name, one in reference.ps.items()} == {
        "unified-0": "ready",
        "router": "ready",
    }
    assert reference.stopped.ended.code == 0, reference.stopped.ended.err
    assert not reference.stopped.marked
    assert not reference.stopped.left


def test_prefill_and_decode_are_ready_at_their_first_start(pair: Pair) -> None:
    found = pair.deployment.ps()
    assert {name: (one["state"], one["restarts"]) for name, one in found.items()} == {
        "prefill-0": ("ready", 0),
        "decode-0": ("ready", 0),
        "router": ("ready", 0),
    }
    assert found["router"]["url"] == pair.deployment.url
    assert pair.client.get("/ready").status_code == 200
    assert [model["id"] for model in pair.client.get("/v1/models").json()["data"]] == ["tiny"]


def test_every_process_bears_the_marker(pair: Pair) -> None:
    instances = {marker.split("/")[1] for marker in pair.deployment.marked().values()}
    assert instances == {"prefill-0", "decode-0", "router"}


def test_the_logs_are_the_engines_own(pair: Pair) -> None:
    for name in ("prefill-0", "decode-0"):
        done = pair.deployment.pdctl("logs", name, "-n", "100000")
        assert done.code == 0, done.err
        assert "startup complete" in done.out
