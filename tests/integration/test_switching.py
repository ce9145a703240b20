"""`pdctl switch` on real processes: while requests run, remembered, and over when its process ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from asking import COMPLETION
from deployment import MODEL, Deployment, eventually, sim

from orchestrator.launch.paths import controller_pid

pytestmark = pytest.mark.integration

Deploy = Callable[..., Deployment]
FLAG = {"enable-pd-role-switch": True}


def two(**more: Any) -> dict[str, Any]:
    return {role: sim(role, "sglang", 2, max_restarts=100, **more) for role in ("prefill", "decode")}


def body(n: int) -> dict[str, Any]:
    return {"model": MODEL, "prompt": f"{n} of many", "max_tokens": 12, "temperature": 0, "ignore_eos": True}


def texts(made: Deployment, count: int = 12) -> list[str]:
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda n: made.client.post(COMPLETION, json=body(n)), range(count)))
    assert [a.status_code for a in answers] == [200] * count, answers[0].text
    return [a.json()["choices"][0]["text"] for a in answers]


def roles(made: Deployment) -> dict[str, str]:
    return {name: one["role"] for name, one in made.endpoints().items()}


def test_a_switched_engine_serves_in_its_new_role_until_its_process_ends(
    deploy: Deploy, references: dict[str, httpx.Client]
) -> None:
    made = deploy(two(**FLAG)).up()
    told = [references["sglang"].post(COMPLETION, json=body(n)).json() for n in range(12)]
    right = [one["choices"][0]["text"] for one in told]
    pids = made.pids()
    with ThreadPoolExecutor(1) as pool:
        meanwhile = pool.submit(texts, made, 60)
        done = made.pdctl("switch", "prefill-1", "--to", "decode")
        assert done.returncode == 0, done.stderr + made.log("controller")
        meanwhile.result()
    assert done.stdout.splitlines()[-1] == "prefill-1 is decode now, until its process ends"
    made.serves()
    assert roles(made)["prefill-1"] == "decode"
    # Alone with it, so that it must be the one that decodes.
    for name in ("decode-0", "decode-1"):
        assert made.pdctl("drain", name).returncode == 0
    assert texts(made) == right
    for name in ("decode-0", "decode-1"):
        assert made.pdctl("drain", name, "--undo").returncode == 0
    assert "prefill-1: switched from prefill, which a new process of it is again" in made.pdctl("ps").stdout

    # `up`, another router and another controller take it as it is.
    made.up()
    assert made.pdctl("restart", "router").returncode == 0
    killed = controller_pid(made.state)
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    eventually(lambda: controller_pid(made.state) is None)
    made.up()
    made.serves()
    assert {n: p for n, p in made.pids().items() if n != "router"} == {
        n: p for n, p in pids.items() if n != "router"
    }
    assert (made.ps()["prefill-1"]["role"], roles(made)["prefill-1"]) == ("decode", "decode")
    assert texts(made) == right

    assert made.pdctl("switch", "prefill-1", "--to", "prefill").returncode == 0
    assert made.pdctl("switch", "decode-0", "--to", "prefill").returncode == 0
    made.serves()
    assert texts(made) == right
    assert [name for name, role in roles(made).items() if role == "decode"] == ["decode-1"]
    before = pids["decode-0"]
    assert before
    os.kill(before, signal.SIGKILL)
    made.replaced("decode-0", before)
    made.serves()
    assert roles(made)["decode-0"] == "decode"
    assert made.pdctl("switch", "decode-0", "--to", "prefill").returncode == 0
    assert made.pdctl("restart", "decode-0").returncode == 0
    made.serves()
    assert (made.ps()["decode-0"]["role"], roles(made)["decode-0"]) == ("decode", "decode")
    assert texts(made) == right
    made.at_rest()


def test_what_cannot_be_switched_is_refused_with_the_reason(deploy: Deploy) -> None:
    made = deploy({"prefill": sim("prefill", **FLAG), "decode": sim("decode", instances=2)}).up()
    before = made.pids()

    def refused(name: str, to: str) -> str:
        done = made.pdctl("switch", name, "--to", to)
        assert done.returncode == 3
        return done.stderr.strip()

    assert "it is the only prefill there is" in refused("prefill-0", "decode")
    assert "was not started with `options: {enable-pd-role-switch: true}`" in refused("decode-0", "prefill")
    assert "it is decode already" in refused("decode-0", "decode")
    assert "no instance 'nobody' here" in refused("nobody", "decode")
    assert made.pids() == before
    made.serves()


def test_an_engine_of_another_dialect_cannot_be_switched(deploy: Deploy) -> None:
    made = deploy({role: sim(role, "vllm", 2) for role in ("prefill", "decode")}).up()
    done = made.pdctl("switch", "decode-1", "--to", "prefill")
    assert done.returncode == 3
    assert "decode-1 is not switched to prefill: engine sim cannot change roles while it runs" in done.stderr


def test_a_busy_engine_stays_what_it_is(deploy: Deploy) -> None:
    made = deploy({r: sim(r, "sglang", 2, drain_timeout="0s", **FLAG) for r in ("prefill", "decode")}).up()
    engine = made.engines()["prefill-1"]
    # Past the router, which would wait for it: nobody asks for its KV.
    lonely = {**body(0), "bootstrap_host": "127.0.0.1", "bootstrap_room": 7}
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(httpx.post, f"{engine}{COMPLETION}", json=lonely, timeout=None)
        made.at_work("prefill-1")
        done = made.pdctl("switch", "prefill-1", "--to", "decode")
        httpx.post(f"{engine}/abort_request", json={"abort_all": True})
        waiting.result()
    assert done.returncode == 3
    assert "prefill-1 stays prefill: " in done.stderr
    assert "instance is not idle; drain all requests before switching" in done.stderr
    made.serves()
    assert roles(made)["prefill-1"] == "prefill"
