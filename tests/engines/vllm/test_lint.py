"""vLLM's lint rules and its known flags, each rule shown to speak and to stay silent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.core.types import Role
from orchestrator.engines.base import InstanceSpec, Shape
from orchestrator.engines.vllm import VLLM

Spec = Callable[..., InstanceSpec]
Lint = Callable[..., list[str]]


def config(**values: Any) -> dict[str, Any]:
    return {"flags": {"kv-transfer-config": values}}


def test_a_plain_pair_is_fine(spec: Spec, lint_of: Lint) -> None:
    assert lint_of(VLLM(), spec(Role.PREFILL), spec(Role.DECODE), spec(Role.UNIFIED)) == []


@pytest.mark.parametrize(
    ("side", "rule", "says"),
    [
        (config(kv_role="kv_consumer"), "role-contradiction", "needs kv_producer"),
        (config(kv_connector="MooncakeConnector"), "role-contradiction", "needs NixlConnector"),
        (
            {"flags": {"kv-transfer-config": '{"kv_role": "kv_consumer"}'}},
            "role-contradiction",
            "kv_consumer",
        ),
        ({"flags": {"kv-transfer-config": None}}, "role-contradiction", "without a connector"),
        ({"flags": {"port": 1}}, "planned-flag", "--port"),
        ({"flags": {"tensor-parallel-size": 2}}, "planned-flag", "--tensor-parallel-size"),
        ({"env": {"VLLM_NIXL_SIDE_CHANNEL_PORT": 5600}}, "planned-flag", "VLLM_NIXL_SIDE_CHANNEL_PORT"),
        ({"env": {"VLLM_NIXL_ABORT_REQUEST_TIMEOUT": 30}}, "replaced", "ABORT_REQUEST_TIMEOUT"),
        ({"flags": {"max-model-length": 1}}, "unknown-flag", "--max-model-length"),
        ({"flags": {"block-size": 64}}, "page-size", "block-size is not set here and 64 in prefill"),
        ({"flags": {"dtype": "float16"}}, "model-dtype", "dtype"),
        ({"model_path": "/models/tiny/"}, "model-mismatch", "the very text"),
        ({"transfer": "mooncake"}, "transfer-mismatch", "transfer"),
        ({"version": "0.31.0"}, "engine-version", "version 0.32.0 here and 0.31.0"),
        ({"transfer": "lmcache"}, "unknown-transfer", "lmcache"),
        ({"transfer": "mooncake", "shape": Shape(dp=2)}, "prefill-dp", "one DP rank"),
        ({"flags": {"shutdown-timeout": 5}}, "drain-below-lease", "--shutdown-timeout 5 is below"),
        ({"drain_s": 20.0}, "drain-below-lease", "--shutdown-timeout 15 is below the lease of 30 s"),
        ({"flags": {"shutdown-timeout": 61}}, "ineffective-flag", "longer than drain_timeout, 60 s: KILL"),
        ({"address": "127.0.0.1"}, "unroutable-address", "127.0.0.1, which decode-0"),
        (
            {"env": {"VLLM_NIXL_SIDE_CHANNEL_HOST": "localhost"}, "address": "10.0.0.9"},
            "unroutable-address",
            "localhost",
        ),
    ],
)
def test_a_bad_prefill_is_found(
    spec: Spec, lint_of: Lint, side: dict[str, Any], rule: str, says: str
) -> None:
    prefill = spec(Role.PREFILL, **({"version": "0.32.0"} | side))
    found = lint_of(VLLM(), prefill, spec(Role.DECODE, version="0.32.0"))
    assert any(line.startswith(f"{rule}: ") and says in line for line in found), found


def test_decode_that_fails_on_lost_kv_is_warned_of(spec: Spec, lint_of: Lint) -> None:
    decode = spec(Role.DECODE, **config(kv_load_failure_policy="fail"))
    assert any(line.startswith("fails-on-lost-kv") for line in lint_of(VLLM(), spec(Role.PREFILL), decode))


def test_keys_beside_the_roles_own_are_fine(spec: Spec, lint_of: Lint) -> None:
    extra = config(kv_buffer_device="cpu", kv_connector_extra_config={"num_threads": 8})
    assert lint_of(VLLM(), spec(Role.PREFILL, **extra), spec(Role.DECODE, **config(kv_role="kv_both"))) == []


def test_a_shorter_lease_goes_with_a_shorter_drain(spec: Spec, lint_of: Lint) -> None:
    flags = {
        "shutdown-timeout": 6,
        "kv-transfer-config": {"kv_connector_extra_config": {"kv_lease_duration": 6}},
    }
    assert lint_of(VLLM(), spec(Role.PREFILL, flags=flags), spec(Role.DECODE)) == []


def test_a_drain_as_long_as_the_lease_and_the_margin_is_fine(spec: Spec, lint_of: Lint) -> None:
    assert lint_of(VLLM(), spec(Role.PREFILL, drain_s=35.0), spec(Role.DECODE, drain_s=0.0)) == []


def test_case_1_one_host_may_use_its_loopback(spec: Spec, lint_of: Lint) -> None:
    here = {"address": "127.0.0.1", "bind": "127.0.0.1"}
    assert lint_of(VLLM(), spec(Role.PREFILL, **here), spec(Role.DECODE, **here)) == []


def test_equal_settings_of_both_sides_are_fine(spec: Spec, lint_of: Lint) -> None:
    flags = {"block-size": 64, "dtype": "float32", "no-enable-prefix-caching": True}
    assert lint_of(VLLM(), spec(Role.PREFILL, flags=flags), spec(Role.DECODE, flags=flags)) == []


@pytest.mark.parametrize(
    ("fields", "rule", "says"),
    [
        ({"env": {"VLLM_NIC_SELECTION_VARS": "UCX_NET_DEVICES:1"}}, "device-map", "without VLLM_GPU_NIC"),
        ({"env": {"UCX_NET_DEVICES": "mlx5_0:1,mlx5_7:1"}}, "nic-missing", "mlx5_7"),
        ({"env": {"UCX_NET_DEVICES": "mlx5_0:1"}, "transfer": "mooncake"}, "ineffective-flag", "not read by"),
        (
            {
                "flags": {
                    "kv-transfer-config": {"kv_connector_extra_config": {"device_name": "mlx5_0, mlx5_7"}}
                },
                "transfer": "mooncake",
            },
            "nic-missing",
            "mlx5_7",
        ),
        ({"options": {"device_map": "file"}}, "bad-option", "list or inline"),
        ({"options": {"device_map": "inline"}, "nics": ("mlx5_0",)}, "bad-option", "places of GPUs and NICs"),
    ],
)
def test_case_9_nics_named_by_hand(
    spec: Spec, lint_of: Lint, fields: dict[str, Any], rule: str, says: str
) -> None:
    node = {"node": "h1", "node_nics": {"mlx5_0": "ACTIVE"}, "devices": (0,)}
    found = lint_of(VLLM(), spec(**node, **fields))
    assert any(f.startswith(f"{rule}: ") and says in f for f in found), found
