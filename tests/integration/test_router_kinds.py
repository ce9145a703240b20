"""Other routers, no router, and engines that somebody else runs."""

from __future__ import annotations

import json
from collections.abc import Callable

import httpx
import pytest
from asking import COMPLETION, limited
from deployment import GUARD_S, MODEL, Deployment, sim

from orchestrator.sim.testing import SimProcess, spawn

pytestmark = pytest.mark.integration

Deploy = Callable[..., Deployment]
ASK = limited(COMPLETION, {"prompt": "which way is the sea"}, 12)


def test_no_router(deploy: Deploy) -> None:
    """`up` prints where the engines are; a pair is handed over by hand, as the plan's ports say."""
    made = deploy(router={"kind": "none"})
    up = made.pdctl("up", "--detach")
    assert up.returncode == 0, up.stderr
    ps = made.ps()
    assert ps.keys() == {"prefill-0", "decode-0"}
    assert up.stdout.split() == [ps["prefill-0"]["url"], ps["decode-0"]["url"]]
    with pytest.raises(httpx.ConnectError):
        made.client.get("/health")
    assert made.pdctl("restart", "decode-0").returncode == 0
    assert made.pdctl("route").returncode == 2


@pytest.mark.parametrize(
    ("kind", "dialect", "module"),
    [
        ("sglang-router", "sglang", "sglang_router.launch_router"),
        ("vllm-router", "vllm", "vllm_router.launch_router"),
    ],
)
def test_an_existing_router_is_rendered(deploy: Deploy, kind: str, dialect: str, module: str) -> None:
    pools = {"prefill": sim("prefill", dialect, 2), "decode": sim("decode", dialect)}
    made = deploy(pools, router={"kind": kind, "flags": {"policy": "round_robin"}})
    plan = json.loads(made.pdctl("plan", "--json").stdout)
    argv = [word["text"] if isinstance(word, dict) else word for word in plan["router"]["argv"]]
    assert argv[argv.index("-m") + 1] == module
    assert argv[argv.index("--port") + 1] == made.url.rpartition(":")[2]
    for one in plan["instances"]:
        assert one["url"] in argv
        if one["role"] == "prefill" and dialect == "sglang":
            assert argv[argv.index(one["url"]) + 1] == str(one["ports"]["bootstrap"])
    assert argv[argv.index("--policy") + 1] == "round_robin"
    route = made.pdctl("route")
    assert route.returncode == 2
    assert f"router.kind: is '{kind}'" in route.stderr


def external(engine: SimProcess) -> dict[str, object]:
    ports = {"bootstrap_port": engine.ports["bootstrap"]} if "bootstrap" in engine.ports else {}
    return {"url": engine.url, **ports}


def test_engines_that_run_already(deploy: Deploy, references: dict[str, httpx.Client]) -> None:
    """`up` supervises the router alone; what it did not start, it does not stop.

    `route` needs no state, and leaves no other than what explains the requests it served.
    """
    flags = ("--speed", "20", "--served-model-name", MODEL)
    with spawn(("--role", "prefill"), ("--role", "decode"), common=flags) as engines:
        pools = {
            role: {"role": role, "engine": "sglang", "external": [external(engine)]}
            for role, engine in zip(("prefill", "decode"), engines, strict=True)
        }
        made = deploy(pools, model={"served_name": MODEL})
        with made.route():
            made.serves()
            ours = made.client.post(COMPLETION, json=ASK)
            assert ours.json()["choices"] == references["sglang"].post(COMPLETION, json=ASK).json()["choices"]
            served = ours.headers["x-pdctl-request-id"]
        assert [path.name for path in made.state.root.iterdir()] == ["decisions"]
        assert "Sent to prefill-0 > decode-0" in made.pdctl("explain", served).stdout
        assert made.pdctl("down").returncode == 0
        assert made.pdctl("up", "--detach").stdout == f"{made.url}\n"
        ps = made.pdctl("ps")
        assert [line.split()[0] for line in ps.stdout.splitlines()] == [
            "INSTANCE",
            "router",
            "external:",
            "external:",
        ]
        assert made.client.post(COMPLETION, json=ASK).json()["choices"] == ours.json()["choices"]
        assert made.pdctl("down").returncode == 0
        assert all(engine.alive for engine in engines)
        assert httpx.get(f"{engines[0].url}/ready", trust_env=False, timeout=GUARD_S).status_code == 200


def test_one_engine_is_missing(deploy: Deploy) -> None:
    """Case 41: the router starts with what is there, says what is missing, and joins it when it comes."""
    flags = ("--speed", "20", "--served-model-name", MODEL)
    with spawn(("--role", "prefill"), ("--role", "decode"), common=flags) as engines:
        missing = deploy()
        port = missing.url.rpartition(":")[2]
        pools = {
            "prefill": {"role": "prefill", "engine": "sglang", "external": [external(engines[0])]},
            "decode": {
                "role": "decode",
                "engine": "sglang",
                "external": [external(engines[1]), {"url": missing.url}],
            },
        }
        made = deploy(pools, model={"served_name": MODEL})
        with made.route():
            assert made.client.get("/ready").status_code in (200, 503)
            made.serves("prefill-0", "decode-0")
            assert made.client.post(COMPLETION, json=ASK).status_code == 200
            assert made.endpoints()["decode-1"]["why"]
            with spawn(("--role", "decode", "--port", port), common=flags):
                made.serves()
