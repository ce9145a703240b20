"""What vLLM's pairs must have alike, and for how long a prefill keeps its promise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.core.transfer import KvShape
from orchestrator.core.types import Role
from orchestrator.engines.base import InstanceSpec, LintContext
from orchestrator.engines.vllm import VLLM

Spec = Callable[..., InstanceSpec]
LAYOUT = {"env": {"VLLM_KV_CACHE_LAYOUT": "HND"}}


def extra(**values: Any) -> dict[str, Any]:
    return {"flags": {"kv-transfer-config": {"kv_connector_extra_config": values}}}


def told(context: LintContext) -> list[str]:
    return [f"{p.rule}: {p.message}" for p in VLLM().lint(context)]


def pair(prefill: InstanceSpec, decode: InstanceSpec, **fields: Any) -> list[str]:
    return told(LintContext((prefill, decode), {}, **fields))


def test_layouts_are_alike_unless_decode_turns_them_round(spec: Spec) -> None:
    prefill = spec(Role.PREFILL, **LAYOUT)
    assert pair(prefill, spec(Role.DECODE)) == [
        "kv-layout: VLLM_KV_CACHE_LAYOUT is not set here and HND in prefill"
    ]
    assert pair(prefill, spec(Role.DECODE, **LAYOUT)) == []
    permuting = spec(Role.DECODE, flags={"kv-transfer-config": {"enable_permute_local_kv": True}})
    assert pair(prefill, permuting) == []
    assert pair(prefill, spec(Role.DECODE), kv=KvShape(4, latent=576)) == []


def test_mooncake_speaks_one_protocol(spec: Spec) -> None:
    prefill = spec(Role.PREFILL, transfer="mooncake")
    found = pair(prefill, spec(Role.DECODE, transfer="mooncake_tcp"))
    assert found == ["transfer-mismatch: mooncake_protocol is tcp here and rdma in prefill"]


def test_context_parallel_sizes_divide_each_other(spec: Spec) -> None:
    def sizes(p: int, d: int) -> list[str]:
        made = (spec(role, flags={"decode-context-parallel-size": n}) for role, n in
                ((Role.PREFILL, p), (Role.DECODE, d)))  # fmt: skip
        return pair(*made)

    assert sizes(4, 2) == sizes(2, 4) == []
    assert sizes(2, 3) == [
        "illegal-tp: --decode-context-parallel-size 3 here and 2 in prefill: neither divides the other"
    ]


@pytest.mark.parametrize(
    ("lease", "connect_s", "speaks"), [(4, 2.0, True), (5, 2.0, False), (30, 15.0, True)]
)
def test_a_lease_outlasts_decodes_way_to_it(spec: Spec, lease: int, connect_s: float, speaks: bool) -> None:
    prefill = spec(Role.PREFILL, **extra(kv_lease_duration=lease))
    found = pair(prefill, spec(Role.DECODE), connect_s=connect_s)
    assert any(line.startswith("short-lease: ") for line in found) is speaks
    # Mooncake has no lease.
    assert not [
        line
        for line in pair(
            replace(prefill, transfer="mooncake", flags={}),
            spec(Role.DECODE, transfer="mooncake"),
            connect_s=connect_s,
        )
        if line.startswith("short-lease")
    ]


def test_mooncake_waits_for_decode_as_long_as_the_router(spec: Spec) -> None:
    env = {"VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT": 60}
    found = pair(spec(Role.PREFILL, transfer="mooncake", env=env), spec(Role.DECODE, transfer="mooncake"))
    assert [line.partition(":")[0] for line in found] == ["timeout-order"]
