"""SGLang's command lines, environments and ports, of known flags alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from orchestrator.core.types import Role
from orchestrator.engines.base import Carriage, Encoders, InstanceSpec, Near, PortNeed, Shape
from orchestrator.engines.capabilities import shipped
from orchestrator.engines.sglang import SGLang

Spec = Callable[..., InstanceSpec]
PORTS = {"http": 30000, "bootstrap": 30001, "nccl": 30002, "kv-events": 30003}


def line(spec: InstanceSpec) -> list[str]:
    return [word.text for word in SGLang().command(spec).argv]


def env(spec: InstanceSpec) -> dict[str, str]:
    return {name: word.text for name, word in SGLang().command(spec).env.items()}


def test_prefill(spec: Spec) -> None:
    made = spec(Role.PREFILL, ports=PORTS, shape=Shape(tp=2), devices=(2, 3), nics=("mlx5_0", "mlx5_1"))
    assert line(made) == [
        *("-m", "sglang.launch_server"),
        *("--model-path", "/models/tiny", "--served-model-name", "tiny"),
        *("--host", "10.0.0.1", "--port", "30000", "--nccl-port", "30002"),
        *("--disaggregation-mode", "prefill", "--disaggregation-transfer-backend", "mooncake"),
        *("--disaggregation-bootstrap-port", "30001", "--disaggregation-ib-device", "mlx5_0,mlx5_1"),
        *("--tp-size", "2", "--enable-metrics", "--enable-cache-report"),
    ]
    assert env(made) == {
        "PYTHONSAFEPATH": "1",
        "SGLANG_TIMEOUT_KEEP_ALIVE": "75",
        "SGLANG_HOST_IP": "10.0.0.1",
        "CUDA_VISIBLE_DEVICES": "2,3",
        "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT": "330",
        "SGLANG_DISAGGREGATION_WAITING_TIMEOUT": "330",
    }


def test_decode_differs_in_its_mode_alone(spec: Spec) -> None:
    prefill, decode = line(spec(Role.PREFILL, ports=PORTS)), line(spec(Role.DECODE, ports=PORTS))
    assert [(p, d) for p, d in zip(prefill, decode, strict=True) if p != d] == [("prefill", "decode")]


ENCODERS = Encoders(("http://10.0.0.9:1", "http://10.0.0.9:2"))


def test_an_encoder(spec: Spec) -> None:
    made = spec(Role.ENCODE, ports={"http": 30000, "nccl": 30001}, nics=("mlx5_0",), key="k")
    assert line(made) == [
        *("-m", "sglang.launch_server"),
        *("--model-path", "/models/tiny", "--served-model-name", "tiny"),
        *("--host", "10.0.0.1", "--port", "30000", "--nccl-port", "30001"),
        *("--encoder-only", "--encoder-transfer-backend", "zmq_to_scheduler", "--enable-metrics"),
    ]
    assert env(made) == {"PYTHONSAFEPATH": "1", "SGLANG_HOST_IP": "10.0.0.1"}
    words = line(spec(Role.ENCODE, ports=PORTS, transfer="mooncake", nics=("mlx5_0",)))
    assert words[words.index("--encoder-transfer-backend") + 1] == "mooncake"
    assert words[words.index("--disaggregation-ib-device") + 1] == "mlx5_0"


@pytest.mark.parametrize("role", [Role.PREFILL, Role.UNIFIED])
def test_who_computes_prompts_is_told_of_all_encoders(spec: Spec, role: Role) -> None:
    ports = PORTS | {"encoder-bootstrap": 30009}
    told = [
        *("--language-only", "--encoder-urls", "http://10.0.0.9:1", "http://10.0.0.9:2"),
        *("--encoder-bootstrap-port", "30009", "--encoder-transfer-backend", "zmq_to_tokenizer"),
    ]
    alone, aided = (
        line(spec(role, ports=ports)),
        line(spec(role, ports=ports, encoders=replace(ENCODERS, transfer="zmq_to_tokenizer"))),
    )
    assert aided == [*alone[:-2], *told, *alone[-2:]]


def test_decode_has_no_use_for_encoders(spec: Spec) -> None:
    assert line(spec(Role.DECODE, ports=PORTS, encoders=ENCODERS)) == line(spec(Role.DECODE, ports=PORTS))


def test_unified_knows_nothing_of_disaggregation(spec: Spec) -> None:
    made = spec(Role.UNIFIED, ports={"http": 1})
    assert not any("disaggregation" in word for word in line(made))
    assert not any("DISAGGREGATION" in name for name in env(made))


def test_case_7_the_role_implies_its_flags_and_says_so(spec: Spec) -> None:
    words = SGLang().command(spec(Role.DECODE, ports=PORTS)).argv
    origin = {word.text: word.origin for word in words}
    assert origin["--disaggregation-mode"] == origin["decode"] == "role decode"
    assert origin["--port"] == "plan"
    assert origin["--enable-metrics"] == "adapter"


def test_case_8_nics_go_where_the_backend_reads_them(spec: Spec) -> None:
    nics = ("mlx5_0", "mlx5_1")
    mooncake = spec(ports=PORTS, nics=nics, transfer="mooncake")
    nixl = spec(ports=PORTS, nics=nics, transfer="nixl")
    tcp = spec(ports=PORTS, nics=nics, transfer="mooncake_tcp")
    assert "--disaggregation-ib-device" in line(mooncake)
    assert "UCX_NET_DEVICES" not in env(mooncake)
    assert "--disaggregation-ib-device" not in line(nixl)
    assert env(nixl)["UCX_NET_DEVICES"] == "mlx5_0:1,mlx5_1:1"
    assert "--disaggregation-ib-device" not in line(tcp)
    assert env(tcp)["MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER"] == "65535"


NEAR = tuple(Near((f"mlx5_{i}",), f"0000:0{i}:00.0", (f"0000:1{i}:00.0",)) for i in (4, 5))
TWO = {
    "ports": PORTS,
    "devices": (4, 5),
    "nics": ("mlx5_4", "mlx5_5"),
    "near": NEAR,
    "folder": "/state/files",
}


def flag(made: InstanceSpec, name: str) -> str | None:
    words = line(made)
    return words[words.index(name) + 1] if name in words else None


def test_case_8_each_gpu_has_its_own_nics_in_the_form_that_is_needed(spec: Spec) -> None:
    ib = "--disaggregation-ib-device"
    assert flag(spec(**TWO), ib) == '{"0":"mlx5_4","1":"mlx5_5"}'
    assert env(spec(**TWO))["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert flag(spec(**TWO, options={"device_map": "list"}), ib) == "mlx5_4,mlx5_5"
    alike = {**TWO, "near": (NEAR[0],) * 2, "nics": ("mlx5_4",)}
    assert flag(spec(**alike), ib) == "mlx5_4"
    assert flag(spec(**alike, options={"device_map": "inline"}), ib) == '{"0":"mlx5_4","1":"mlx5_4"}'
    assert flag(spec(**{**TWO, "near": ()}), ib) == "mlx5_4,mlx5_5"


def test_case_8_a_device_map_as_a_file_comes_with_it(spec: Spec) -> None:
    made = spec(**TWO, options={"device_map": "file"})
    path = "/state/files/prefill-0.0.nics.json"
    assert flag(made, "--disaggregation-ib-device") == path
    assert SGLang().command(made).files == {path: '{"0":"mlx5_4","1":"mlx5_5"}'}
    assert SGLang().command(spec(**TWO)).files == {}
    own = spec(**TWO, options={"device_map": "file"}, flags={"disaggregation-ib-device": "mlx5_4"})
    assert SGLang().command(own).files == {}


def test_case_8_nixl_binds_each_rank_where_the_version_can(spec: Spec) -> None:
    ib = "--disaggregation-ib-device"
    for version, binds in ((None, True), ("0.5.23", True), ("0.6.0.post1", True), ("0.5.22", False)):
        made = spec(**TWO, transfer="nixl", version=version)
        assert (flag(made, ib) is not None) is binds
        assert env(made).get("UCX_NET_DEVICES") == (None if binds else "mlx5_4:1,mlx5_5:1")
    listed = spec(**TWO, transfer="nixl", options={"device_map": "list"})
    assert env(listed)["UCX_NET_DEVICES"] == "mlx5_4:1,mlx5_5:1"


def test_case_8_what_the_user_names_for_nixl_is_not_undone(spec: Spec) -> None:
    by_env = spec(**TWO, transfer="nixl", env={"UCX_NET_DEVICES": "mlx5_9:1"})
    assert flag(by_env, "--disaggregation-ib-device") is None
    assert env(by_env)["UCX_NET_DEVICES"] == "mlx5_9:1"
    by_flag = spec(**{**TWO, "near": ()}, transfer="nixl", flags={"disaggregation-ib-device": "mlx5_9"})
    assert flag(by_flag, "--disaggregation-ib-device") == "mlx5_9"
    assert "UCX_NET_DEVICES" not in env(by_flag)


def test_case_8_nixls_own_parameters_are_a_users_choice_too(spec: Spec) -> None:
    params = {"SGLANG_DISAGGREGATION_NIXL_BACKEND_PARAMS": '{"device_list": "mlx5_9"}'}
    made = spec(**TWO, transfer="nixl", env=params)
    assert flag(made, "--disaggregation-ib-device") is None
    assert "UCX_NET_DEVICES" not in env(made)


def test_case_12_nixl_over_tcp_uses_the_interface_of_its_address(spec: Spec) -> None:
    assert env(spec(ports=PORTS, transfer="nixl", interface="ens3"))["UCX_NET_DEVICES"] == "ens3"
    assert "UCX_NET_DEVICES" not in env(spec(ports=PORTS, transfer="mooncake_tcp", interface="ens3"))


def test_how_each_transfer_travels() -> None:
    told = {name: SGLang().carriage(name) for name in (None, "mooncake", "mooncake_tcp", "nixl", "mori")}
    assert told[None] == told["mooncake"] == Carriage("rdma", tcp="mooncake_tcp")
    assert told["mooncake_tcp"] == Carriage("tcp")
    assert told["nixl"] == Carriage("either")
    assert told["mori"] is None


def test_the_users_settings_win_and_keep_their_origin(spec: Spec) -> None:
    made = spec(
        ports=PORTS,
        flags={"mem-fraction-static": 0.3, "enable-metrics": None},
        env={"SGLANG_DISAGGREGATION_WAITING_TIMEOUT": 60, "HF_HUB_OFFLINE": "1"},
    )
    command = SGLang().command(made)
    assert "--enable-metrics" not in line(made)
    assert [w.origin for w in command.argv if w.text == "0.3"] == ["topology t.yaml:30"]
    assert env(made)["SGLANG_DISAGGREGATION_WAITING_TIMEOUT"] == "60"
    assert command.env["HF_HUB_OFFLINE"].origin == "topology t.yaml:31"


def test_the_key_is_demanded_and_secret(spec: Spec) -> None:
    words = SGLang().command(spec(ports=PORTS, key="s3cret")).argv
    assert words[-2].text == "--api-key"
    assert words[-1].text == "s3cret"
    assert words[-1].secret
    assert not any(word.secret for word in words[:-1])


def test_kv_events_get_the_plans_ports_when_asked_for(spec: Spec) -> None:
    assert "--kv-events-config" not in line(spec(ports=PORTS))
    made = line(spec(ports=PORTS, flags={"kv-events-config": {"topic": "kv"}}))
    assert made[made.index("--kv-events-config") + 1] == (
        '{"publisher":"zmq","endpoint":"tcp://*:30003","replay_endpoint":"tcp://*:30004","topic":"kv"}'
    )


def test_kv_events_with_an_endpoint_of_the_users_are_left_alone(spec: Spec) -> None:
    made = line(spec(ports=PORTS, flags={"kv-events-config": {"endpoint": "tcp://*:1"}}))
    assert made[-1] == '{"endpoint":"tcp://*:1"}'


@pytest.mark.parametrize(
    ("role", "purposes"),
    [
        (Role.ENCODE, ["http", "nccl"]),
        (Role.PREFILL, ["http", "bootstrap", "nccl", "kv-events", "encoder-bootstrap"]),
        (Role.DECODE, ["http", "bootstrap", "nccl", "kv-events"]),
        (Role.UNIFIED, ["http", "nccl", "kv-events", "encoder-bootstrap"]),
    ],
)
def test_case_3_every_port_is_the_plans(role: Role, purposes: list[str]) -> None:
    assert [need.purpose for need in SGLang().ports(role, Shape(), None)] == purposes


def test_data_parallel_ranks_derive_theirs_from_one_planned_address(spec: Spec) -> None:
    assert SGLang().ports(Role.UNIFIED, Shape(dp=2), None)[-3:] == (
        PortNeed("kv-events", 6),
        PortNeed("dist", 14, head=True),
        PortNeed("encoder-bootstrap", head=True),
    )
    made = line(spec(Role.UNIFIED, ports=PORTS | {"dist": 30050}, shape=Shape(dp=2), address="fd00::1"))
    assert made[made.index("--dist-init-addr") + 1] == "[fd00::1]:30050"
    assert made[made.index("--dp-size") + 1] == "2"


def test_the_models_revision_is_rendered_where_there_is_one(spec: Spec) -> None:
    for role in (Role.PREFILL, Role.DECODE, Role.UNIFIED):
        made = line(spec(role, ports=PORTS, revision="abc123"))
        assert made[made.index("--revision") + 1] == "abc123"
        assert "--revision" not in line(spec(role, ports=PORTS))


def test_no_flag_is_rendered_that_the_engine_does_not_know(spec: Spec) -> None:
    for role in (Role.PREFILL, Role.DECODE, Role.UNIFIED):
        made = spec(
            role,
            ports=PORTS | {"dist": 1},
            shape=Shape(tp=2, pp=2, dp=2, ep=2, nnodes=2),
            nics=("a",),
            key="k",
            revision="main",
        )
        rendered = {word.removeprefix("--") for word in line(made) if word.startswith("--")}
        assert rendered <= shipped("orchestrator.engines.sglang")[-1].names()
