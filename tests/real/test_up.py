"""`pdctl up` of the real examples: ready under the supervisor, seen by `ps` and `logs`."""

from __future__ import annotations

import os
import signal

import pytest
from families import FAMILIES
from pair import Pair
from running import eventually

from orchestrator.launch.paths import controller_pid

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


def test_up_again_changes_nothing(pair: Pair) -> None:
    again = pair.deployment.up()
    assert again.code == 0, pair.deployment.told("pdctl up", again)
    pair.assert_serves()
    assert {one["pid"] for one in pair.deployment.ps().values()} == {p.pid for p in pair.processes.values()}


def test_engines_and_router_outlive_the_controller(pair: Pair) -> None:
    controller = controller_pid(pair.deployment.state)
    assert controller
    os.kill(controller, signal.SIGKILL)
    eventually(lambda: controller_pid(pair.deployment.state) is None, "the controller is gone")
    pair.assert_serves()
    again = pair.deployment.up()
    assert again.code == 0, pair.deployment.told("pdctl up", again)
    assert controller_pid(pair.deployment.state) not in (None, controller)
    found = pair.deployment.ps()
    assert {one["pid"] for one in found.values()} == {p.pid for p in pair.processes.values()}
    assert {one["restarts"] for one in found.values()} == {0}
    pair.assert_serves()


def test_the_logs_are_the_engines_own(pair: Pair) -> None:
    for name in ("prefill-0", "decode-0"):
        done = pair.deployment.pdctl("logs", name, "-n", "100000")
        assert done.code == 0, done.err
        assert "startup complete" in done.out
