"""One topology on two hosts: here nodes at two loopback addresses, each with a controller of its own."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from deployment import GUARD_S, MODEL, Deployment, eventually, sim
from portshare import free_ports

from orchestrator.launch.paths import StateDir, controller_pid

pytestmark = pytest.mark.integration

NODES = ("a", "b")


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Deployment]:
    ports = {name: free_ports(30) for name in (*NODES, "idle")}
    nodes = [
        {"name": name, "address": f"127.0.0.{n}", "ports": f"{ports[name]}-{ports[name] + 29}"}
        for n, name in enumerate(ports, start=1)
    ]
    pools = {"prefill": sim("prefill") | {"nodes": ["a"]}, "decode": sim("decode") | {"nodes": ["b"]}}
    made = Deployment(tmp_path / "d", pools, nodes=nodes)
    yield made
    for node in NODES:
        made.here("down", "--force", "--node", node)
    assert not any(controller_pid(state(made, node)) for node in NODES)
    made.client.close()


def state(made: Deployment, node: str) -> StateDir:
    return StateDir(made.folder / f"state@{node}")


def pids(made: Deployment, node: str) -> dict[str, int]:
    return {i["name"]: i["pid"] for i in json.loads(made.here("ps", "--json", "--node", node).stdout)}


def up(made: Deployment, node: str) -> str:
    done = made.pdctl("up", "--detach", "--node", node)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_each_node_starts_its_own_and_the_router_finds_them_all(made: Deployment) -> None:
    assert up(made, "b").startswith("http://127.0.0.2:"), "without the router, the engines' own URLs"
    assert up(made, "a") == f"{made.url}\n"
    assert set(pids(made, "a")) == {"prefill-0", "router"}
    assert set(pids(made, "b")) == {"decode-0"}
    made.serves("prefill-0", "decode-0")
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
    answer = made.client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    lock = json.loads(state(made, "b").lockfile.read_text())
    assert (lock["node"], list(lock["processes"])) == ("b", ["decode-0"])
    assert made.here("plan", "--diff", "--node", "b").returncode == 0


def test_a_stop_on_one_node_is_announced_to_the_router_on_another(made: Deployment) -> None:
    up(made, "b")
    up(made, "a")
    made.serves("prefill-0", "decode-0")
    assert made.pdctl("down", "--node", "b").returncode == 0
    assert made.endpoints()["decode-0"]["gates"]
    assert set(pids(made, "a")) == {"prefill-0", "router"}
    up(made, "b")
    made.serves("prefill-0", "decode-0")


def test_a_controller_that_dies_is_the_business_of_its_node_alone(made: Deployment) -> None:
    up(made, "b")
    up(made, "a")
    before = {node: pids(made, node) for node in NODES}
    controller = controller_pid(state(made, "a"))
    assert controller
    os.kill(controller, signal.SIGKILL)
    eventually(lambda: controller_pid(state(made, "a")) is None)
    assert controller_pid(state(made, "b"))
    up(made, "a")
    assert {node: pids(made, node) for node in NODES} == before


def test_a_node_that_is_not_there_or_has_nothing_to_do_is_refused(made: Deployment) -> None:
    done = made.here("up", "--detach", "--node", "c")
    assert (done.returncode, "there is no node 'c'" in done.stderr) == (2, True), done.stderr
    done = made.here("up", "--detach", "--node", "idle")
    assert done.returncode == 2
    assert "nothing of it runs on node idle (it runs on a, b)" in done.stderr
    made.topology["nodes"] = [{"name": n, "address": f"10.0.0.{i}"} for i, n in enumerate(NODES)]
    made.write()
    done = made.here("up", "--detach")
    assert done.returncode == 2
    assert "its engines run on several hosts (10.0.0.0, 10.0.0.1); which one is this?" in done.stderr
    assert "--node NAME` on each, with the name of its node: a, b" in done.stderr


@pytest.mark.parametrize("dialect", ["sglang", "vllm"])
def test_an_instance_on_two_nodes_serves_and_is_ended_by_its_first_process(
    made: Deployment, dialect: str
) -> None:
    pools = made.topology["pools"]
    pools["prefill"] = sim("prefill", dialect) | {"nodes": ["a", "b"], "nnodes": 2}
    pools["decode"] = sim("decode", dialect) | {"nodes": ["b"]}
    made.write()
    # Neither is ready without the other.
    second = made.start("up", "--detach", "--node", "b")
    up(made, "a")
    said, errors = second.communicate(timeout=GUARD_S)
    assert second.returncode == 0, (said, errors)
    assert set(pids(made, "b")) == {"prefill-0.1", "decode-0"}
    made.serves("prefill-0", "decode-0")
    assert set(made.endpoints()) == {"prefill-0", "decode-0"}, "further processes are no endpoints"
    body = {"model": MODEL, "prompt": "hello", "max_tokens": 4}
    assert made.client.post("/v1/completions", json=body).status_code == 200
    follower = pids(made, "b")["prefill-0.1"]
    assert made.pdctl("down", "--node", "a").returncode == 0
    log = state(made, "b").log("controller")
    eventually(lambda: "prefill-0.1: exited with code 0 while it was serving" in log.read_text())
    assert pids(made, "b")["prefill-0.1"] != follower
    assert made.pdctl("down", "--node", "b", "--force").returncode == 0


@pytest.mark.parametrize("dialect", ["sglang", "vllm"])
def test_a_further_process_killed_alone_brings_the_whole_instance_back(
    made: Deployment, dialect: str
) -> None:
    """Its engine cannot go on without it: process 0 ends by itself, and both nodes start theirs anew."""
    pools = made.topology["pools"]
    pools["prefill"] = sim("prefill", dialect) | {"nodes": ["a", "b"], "nnodes": 2}
    pools["decode"] = sim("decode", dialect) | {"nodes": ["b"]}
    made.write()
    second = made.start("up", "--detach", "--node", "b")
    up(made, "a")
    said, errors = second.communicate(timeout=GUARD_S)
    assert second.returncode == 0, (said, errors)
    made.serves("prefill-0", "decode-0")
    first, further = pids(made, "a")["prefill-0"], pids(made, "b")["prefill-0.1"]
    os.kill(further, signal.SIGKILL)
    eventually(lambda: pids(made, "a").get("prefill-0") not in (None, first))
    eventually(lambda: pids(made, "b").get("prefill-0.1") not in (None, further))
    made.serves("prefill-0", "decode-0")
    body = {"model": MODEL, "prompt": "hello", "max_tokens": 4}
    assert made.client.post("/v1/completions", json=body).status_code == 200
    assert "killed by SIGKILL while it was serving" in state(made, "b").log("controller").read_text()
    assert made.pdctl("down", "--node", "a", "--force").returncode == 0
    assert made.pdctl("down", "--node", "b", "--force").returncode == 0
