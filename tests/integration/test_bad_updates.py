"""A bad new topology, on real processes: whatever is wrong with it, what runs is not touched."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from deployment import Deployment, sim

pytestmark = pytest.mark.integration


def pids(made: Deployment) -> dict[str, int]:
    return {i["name"]: i["pid"] for i in json.loads(made.here("ps", "--json").stdout)}


def urls(made: Deployment) -> dict[str, str]:
    return {name: one["url"] for name, one in made.ps().items()}


def test_what_runs_survives_every_bad_topology(deploy: Callable[..., Deployment]) -> None:
    made = deploy({"prefill": sim("prefill"), "decode": sim("decode", instances=2)}).up()
    good, before = json.dumps(made.topology), pids(made)
    lock = made.state.lockfile.read_bytes()
    for change, code, word in (
        ({"engine": "nonesuch"}, 2, "nonesuch"),
        ({"role": "prefill"}, 2, "[roles]"),
        ({"flags": {"max-runing": 3}}, 2, "max-running"),
        ({"runtime": {"python": "/no/such/python"}}, 3, "no program '/no/such/python'"),
    ):
        made.topology["pools"]["decode"] |= change
        made.write()
        done = made.pdctl("up", "--detach")
        assert (done.returncode, word in done.stderr) == (code, True), done.stderr
        made.topology = json.loads(good)
        made.write()
        assert pids(made) == before
    assert made.state.lockfile.read_bytes() == lock
    assert made.here("plan", "--diff").returncode == 0


def test_a_roll_that_fails_leaves_the_rest_and_the_lockfile_says_so(
    deploy: Callable[..., Deployment],
) -> None:
    made = deploy({"prefill": sim("prefill"), "decode": sim("decode", instances=2, max_restarts=0)}).up()
    before = pids(made)
    good: dict[str, Any] = json.loads(json.dumps(made.topology))
    made.topology["pools"]["decode"]["flags"] = {"faults": "/no/such/file"}
    made.write()
    told = made.here("plan", "--diff")
    assert told.returncode == 1
    assert "decode-0: replaced\n  --faults /no/such/file is added" in told.stdout
    assert "replaced one after the other: decode-0, decode-1" in told.stdout
    assert made.pdctl("up", "--detach").returncode == 3
    after = pids(made)
    assert {n: after[n] for n in ("prefill-0", "decode-1", "router")} == {
        n: before[n] for n in ("prefill-0", "decode-1", "router")
    }
    made.topology = good
    made.write()
    back = json.loads(made.here("plan", "--diff", "--json").stdout)
    assert [(c["name"], c["action"]) for c in back["changes"]] == [("decode-0", "replaced")]
    assert made.up() is made
    assert pids(made)["decode-1"] == before["decode-1"]


def test_a_pool_above_the_others_moves_nobody_and_down_forgets(deploy: Callable[..., Deployment]) -> None:
    made = deploy({"prefill": sim("prefill"), "decode": sim("decode", instances=2)}).up()
    before, where = pids(made), urls(made)
    made.topology["pools"] = {"early": sim("unified"), **made.topology["pools"]}
    made.write()
    told = json.loads(made.here("plan", "--diff", "--json").stdout)
    assert [(c["name"], c["action"]) for c in told["changes"] if c["name"] != "router"] == [
        ("early-0", "started")
    ]
    assert made.pdctl("up", "--detach").returncode == 0
    after = pids(made)
    assert {name: after[name] for name in before if name != "router"} == {
        name: pid for name, pid in before.items() if name != "router"
    }
    assert {name: urls(made)[name] for name in where} == where
    assert made.pdctl("down").returncode == 0
    anew = made.pdctl("plan", "--json")
    assert json.loads(anew.stdout)["instances"][0]["url"] == where["prefill-0"], "laid out from the start"
