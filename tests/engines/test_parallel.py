"""Case 6: which tensor-parallel sizes a model class and a transfer can have, and what that needs (parallel,
pairing)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.core.transfer import KvShape
from orchestrator.core.types import Role
from orchestrator.engines.base import Engine, InstanceSpec, LintContext, Shape
from orchestrator.engines.sglang import SGLang
from orchestrator.engines.vllm import VLLM

Spec = Callable[..., InstanceSpec]

GQA, MLA = KvShape(4, heads=4, head_dim=128), KvShape(4, latent=576)
STAGED = {"env": {"SGLANG_DISAGG_STAGING_BUFFER": 1}}


def spoken(engine: Engine, kv: KvShape | None, prefill: InstanceSpec, decode: InstanceSpec) -> set[str]:
    return {str(p.rule) for p in engine.lint(LintContext((prefill, decode), {}, kv=kv))}


@pytest.mark.parametrize(
    ("kv", "transfer", "p", "d", "both", "expected"),
    [
        (GQA, "mooncake", 2, 2, {}, set()),
        (GQA, "mooncake", 4, 2, {}, {"unequal-tp"}),
        (GQA, "mooncake", 4, 2, STAGED, set()),
        (GQA, "nixl", 2, 4, STAGED, set()),
        (GQA, "mori", 4, 2, {}, {"unequal-tp"}),
        (GQA, "mori", 4, 2, STAGED, {"staging-buffer"}),
        (GQA, "mooncake_tcp", 4, 2, {}, {"unequal-tp"}),
        (GQA, "mooncake_tcp", 4, 2, {"env": {"MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER": 1024}},
         {"unequal-tp", "tcp-lane-queue"}),
        (GQA, "mooncake", 2, 2, STAGED, {"staging-buffer"}),
        (GQA, "mooncake", 4, 6, {}, {"illegal-tp"}),
        (GQA, "mooncake", 8, 4, {"flags": {"attn-dp-size": 2}}, {"unequal-tp"}),
        (None, "mooncake", 4, 2, {}, {"unequal-tp"}),
        (MLA, "mooncake", 4, 2, {}, set()),
        (MLA, "mooncake", 4, 2, STAGED, {"staging-buffer"}),
        (MLA, "mooncake", 4, 2, {"flags": {"enable-kv-cache-sharding": True}}, {"illegal-tp"}),
        (MLA, "mooncake", 6, 4, {}, {"illegal-tp"}),
        (GQA, "mooncake", 4, 2, {"flags": {"kv-cache-dtype": "mxfp8"}}, {"illegal-tp"}),
        (GQA, "mooncake", 4, 2, STAGED | {"flags": {"device": "cpu"}}, {"staging-buffer"}),
    ],
)  # fmt: skip
def test_case_6_sglang(
    spec: Spec, kv: KvShape | None, transfer: str, p: int, d: int, both: dict[str, Any], expected: set[str]
) -> None:
    def side(role: Role, tp: int) -> InstanceSpec:
        return spec(role, shape=Shape(tp=tp), transfer=transfer, **both)

    assert spoken(SGLang(), kv, side(Role.PREFILL, p), side(Role.DECODE, d)) == expected


@pytest.mark.parametrize(
    ("kv", "transfer", "p", "d", "expected"),
    [
        (GQA, "nixl", 4, 2, set()),
        (GQA, "nixl", 2, 4, set()),
        (GQA, "nixl", 8, 4, {"illegal-tp"}),
        (GQA, "nixl", 4, 8, set()),
        (GQA, "mooncake", 8, 4, set()),
        (GQA, "nixl", 6, 4, {"illegal-tp"}),
        (MLA, "nixl", 8, 4, set()),
        (None, "nixl", 8, 4, set()),
        (None, "nixl", 3, 2, {"illegal-tp"}),
    ],
)
def test_case_6_vllm(
    spec: Spec, kv: KvShape | None, transfer: str, p: int, d: int, expected: set[str]
) -> None:
    prefill = spec(Role.PREFILL, shape=Shape(tp=p), transfer=transfer)
    decode = spec(Role.DECODE, shape=Shape(tp=d), transfer=transfer)
    assert spoken(VLLM(), kv, prefill, decode) == expected


@pytest.mark.parametrize("engine", [SGLang(), VLLM()], ids=lambda e: e.name)
@pytest.mark.parametrize(("tp", "fits"), [(1, True), (2, True), (4, True), (8, True), (3, False), (6, False)])
def test_case_6_kv_heads_are_shared_out_evenly(spec: Spec, engine: Engine, tp: int, fits: bool) -> None:
    prefill, decode = spec(Role.PREFILL, shape=Shape(tp=tp)), spec(Role.DECODE, shape=Shape(tp=tp))
    assert spoken(engine, GQA, prefill, decode) == (set() if fits else {"illegal-tp"})
    assert spoken(engine, MLA, prefill, decode) == set()
