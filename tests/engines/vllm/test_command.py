"""vLLM's command lines, environments and ports, of known flags alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from orchestrator.core.types import Role
from orchestrator.engines.base import Carriage, InstanceSpec, Near, Shape
from orchestrator.engines.capabilities import shipped
from orchestrator.engines.vllm import VLLM

Spec = Callable[..., InstanceSpec]
PORTS = {"http": 30000, "side-channel": 30001, "kv-events": 30002}


def line(spec: InstanceSpec) -> list[str]:
    return [word.text for word in VLLM().command(spec).argv]


def env(spec: InstanceSpec) -> dict[str, str]:
    return {name: word.text for name, word in VLLM().command(spec).env.items()}


def transfer(spec: InstanceSpec) -> dict[str, Any]:
    words = line(spec)
    config: dict[str, Any] = orjson.loads(words[words.index("--kv-transfer-config") + 1])
    return config


def test_prefill(spec: Spec) -> None:
    made = spec(Role.PREFILL, ports=PORTS, shape=Shape(tp=2), devices=(0, 1), nics=("mlx5_0",))
    assert line(made) == [
        *("-m", "vllm.entrypoints.cli.main", "serve", "/models/tiny"),
        *("--served-model-name", "tiny", "--host", "10.0.0.1", "--port", "30000"),
        "--kv-transfer-config",
        '{"kv_connector":"NixlConnector","kv_role":"kv_producer",'
        '"kv_connector_extra_config":{"kv_lease_duration":30}}',
        *("--tensor-parallel-size", "2"),
        *("--enable-prompt-tokens-details", "--enable-server-load-tracking", "--shutdown-timeout", "55"),
    ]
    assert env(made) == {
        "PYTHONSAFEPATH": "1",
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "75",
        "VLLM_HOST_IP": "10.0.0.1",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "VLLM_NIXL_SIDE_CHANNEL_HOST": "10.0.0.1",
        "VLLM_NIXL_SIDE_CHANNEL_PORT": "30001",
        "UCX_NET_DEVICES": "mlx5_0:1",
    }


def test_decode_recomputes_what_it_cannot_fetch(spec: Spec) -> None:
    assert transfer(spec(Role.DECODE, ports=PORTS)) == {
        "kv_connector": "NixlConnector",
        "kv_role": "kv_consumer",
        "kv_load_failure_policy": "recompute",
    }


def test_unified_has_no_connector(spec: Spec) -> None:
    made = spec(Role.UNIFIED, ports={"http": 1})
    assert "--kv-transfer-config" not in line(made)
    assert not any("NIXL" in name for name in env(made))


def test_case_1_and_2_the_side_channel_is_at_each_instances_own_address(spec: Spec) -> None:
    first = spec(Role.PREFILL, ports=PORTS)
    second = spec(Role.PREFILL, ports=PORTS | {"side-channel": 31001}, address="10.0.0.2")
    for made, host, port in ((first, "10.0.0.1", "30001"), (second, "10.0.0.2", "31001")):
        assert env(made)["VLLM_NIXL_SIDE_CHANNEL_HOST"] == host
        assert env(made)["VLLM_NIXL_SIDE_CHANNEL_PORT"] == port


@pytest.mark.parametrize("name", ["mooncake", "MooncakeConnector", "mooncake_tcp"])
def test_mooncake(spec: Spec, name: str) -> None:
    ports = {"http": 30000, "bootstrap": 30001}
    made = spec(Role.PREFILL, ports=ports, transfer=name)
    tcp = {"kv_connector_extra_config": {"mooncake_protocol": "tcp"}} if name == "mooncake_tcp" else {}
    assert transfer(made) == {"kv_connector": "MooncakeConnector", "kv_role": "kv_producer"} | tcp
    assert env(made)["VLLM_MOONCAKE_BOOTSTRAP_PORT"] == "30001"
    assert not any("NIXL" in variable for variable in env(made))
    assert VLLM().facts(made)["transfer"] == "mooncake"
    assert VLLM().facts(made)["bootstrap_port"] == 30001


def test_a_users_key_goes_beside_those_of_the_role(spec: Spec) -> None:
    extra = {"kv_buffer_device": "cpu", "kv_connector_extra_config": {"num_threads": 8}}
    made = spec(Role.PREFILL, ports=PORTS, flags={"kv-transfer-config": extra})
    assert transfer(made) == {
        "kv_connector": "NixlConnector",
        "kv_role": "kv_producer",
        "kv_connector_extra_config": {"kv_lease_duration": 30, "num_threads": 8},
        "kv_buffer_device": "cpu",
    }
    (word,) = [w for w in VLLM().command(made).argv if w.text.startswith("{")]
    assert word.origin == "role prefill + topology t.yaml:30"


def test_the_key_is_in_the_environment_and_secret(spec: Spec) -> None:
    command = VLLM().command(spec(ports=PORTS, key="s3cret"))
    assert command.env["VLLM_API_KEY"].text == "s3cret"
    assert command.env["VLLM_API_KEY"].secret
    assert all("s3cret" not in word.text for word in command.argv)


def test_kv_events_get_the_plans_ports_when_asked_for(spec: Spec) -> None:
    made = line(spec(ports=PORTS, flags={"kv-events-config": {"topic": "kv"}}))
    assert orjson.loads(made[-1]) == {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": "tcp://*:30002",
        "replay_endpoint": "tcp://*:30003",
        "topic": "kv",
    }


@pytest.mark.parametrize(
    ("role", "shape", "transfer", "needs"),
    [
        (Role.PREFILL, Shape(), None, [("http", 1), ("side-channel", 1), ("kv-events", 2)]),
        (Role.DECODE, Shape(), "nixl", [("http", 1), ("side-channel", 1), ("kv-events", 2)]),
        (Role.PREFILL, Shape(), "mooncake", [("http", 1), ("bootstrap", 1), ("kv-events", 2)]),
        (Role.DECODE, Shape(), "mooncake", [("http", 1), ("kv-events", 2)]),
        (Role.UNIFIED, Shape(), None, [("http", 1), ("kv-events", 2)]),
        (Role.DECODE, Shape(dp=2), None, [("http", 1), ("side-channel", 2), ("kv-events", 4), ("dp-rpc", 1)]),
    ],
)
def test_case_3_every_port_is_the_plans(
    role: Role, shape: Shape, transfer: str | None, needs: list[tuple[str, int]]
) -> None:
    assert [(need.purpose, need.count) for need in VLLM().ports(role, shape, transfer)] == needs


@pytest.mark.parametrize(("drain_s", "rendered"), [(60.0, "55"), (20.5, "15"), (6.0, "1"), (0.0, "1")])
def test_the_engines_own_drain_is_over_before_it_is_killed(spec: Spec, drain_s: float, rendered: str) -> None:
    made = line(spec(Role.PREFILL, ports=PORTS, drain_s=drain_s))
    assert made[made.index("--shutdown-timeout") + 1] == rendered


def test_the_models_revision_is_rendered_where_there_is_one(spec: Spec) -> None:
    for role in (Role.PREFILL, Role.DECODE, Role.UNIFIED):
        made = line(spec(role, ports=PORTS, revision="abc123"))
        assert made[made.index("--revision") + 1] == "abc123"
        assert "--revision" not in line(spec(role, ports=PORTS))


def test_no_flag_is_rendered_that_the_engine_does_not_know(spec: Spec) -> None:
    for role in (Role.PREFILL, Role.DECODE, Role.UNIFIED):
        made = spec(
            role,
            ports=PORTS | {"dp-rpc": 1, "master": 2},
            shape=Shape(tp=2, pp=2, dp=2, ep=2, nnodes=2),
            key="k",
            revision="main",
        )
        rendered = {word.removeprefix("--") for word in line(made) if word.startswith("--")}
        assert rendered <= shipped("orchestrator.engines.vllm")[-1].names()


NEAR = tuple(Near((f"mlx5_{i}",), f"0000:0{i}:00.0", (f"0000:1{i}:00.0",)) for i in (4, 5))
TWO = {"ports": PORTS, "devices": (4, 5), "nics": ("mlx5_4", "mlx5_5"), "near": NEAR}


def test_case_8_nixl_ranks_find_their_own_nic_by_its_place_on_the_bus(spec: Spec) -> None:
    made = env(spec(**TWO))
    assert made["VLLM_GPU_NIC_PCIE_MAPPING"] == "0000:04:00.0=0000:14:00.0,0000:05:00.0=0000:15:00.0"
    assert made["VLLM_NIC_SELECTION_VARS"] == "UCX_NET_DEVICES:1"
    assert made["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    # The engine would put its own in front of it.
    assert "UCX_NET_DEVICES" not in made


def test_case_8_nixl_has_one_list_where_places_are_not_known_or_not_needed(spec: Spec) -> None:
    unknown = spec(**{**TWO, "near": tuple(Near(n.names) for n in NEAR)})
    listed = spec(**TWO, options={"device_map": "list"})
    for made in (unknown, listed, spec(**{**TWO, "near": ()}), spec(**TWO, version="0.31.2")):
        assert env(made)["UCX_NET_DEVICES"] == "mlx5_4:1,mlx5_5:1"
        assert "VLLM_GPU_NIC_PCIE_MAPPING" not in env(made)


@pytest.mark.parametrize("name", ["UCX_NET_DEVICES", "VLLM_GPU_NIC_PCIE_MAPPING"])
def test_case_8_what_the_user_names_is_not_added_to(spec: Spec, name: str) -> None:
    made = env(spec(**TWO, env={name: "mine"}))
    assert {k: v for k, v in made.items() if "NIC_" in k or "UCX" in k} == {name: "mine"}


def test_case_8_mooncake_is_told_in_its_config(spec: Spec) -> None:
    extra = transfer(spec(**TWO, transfer="mooncake"))["kv_connector_extra_config"]
    assert extra == {"device_name": "mlx5_4,mlx5_5"}
    assert "UCX_NET_DEVICES" not in env(spec(**TWO, transfer="mooncake"))
    tcp = transfer(spec(**TWO, transfer="mooncake_tcp"))["kv_connector_extra_config"]
    assert tcp == {"mooncake_protocol": "tcp"}


def test_case_12_nixl_over_tcp_uses_the_interface_of_its_address(spec: Spec) -> None:
    assert env(spec(ports=PORTS, interface="ens3"))["UCX_NET_DEVICES"] == "ens3"


def test_how_each_transfer_travels() -> None:
    assert VLLM().carriage(None) == VLLM().carriage("nixl") == Carriage("either")
    assert VLLM().carriage("mooncake") == Carriage("rdma", tcp="mooncake_tcp")
    assert VLLM().carriage("mooncake_tcp") == Carriage("tcp")
    assert VLLM().carriage("lmcache") is None
