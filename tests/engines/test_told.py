"""What running engines tell, against the plan and each other; what each adapter expects to be told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.core.types import Role
from orchestrator.engines.base import Engine, InstanceSpec, NotYet, Shape
from orchestrator.engines.sglang import SGLang
from orchestrator.engines.sim import Sim, SimVLLM
from orchestrator.engines.told import Side, agreements, contradictions, disagreements, expected, grave
from orchestrator.engines.vllm import VLLM

Spec = Callable[..., InstanceSpec]
Captured = Callable[[str], bytes]


def learned(engine: Engine, **answers: bytes) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, body in answers.items():
        told = engine.learn(name.replace("_", "-"), 200, body)
        assert not isinstance(told, NotYet)
        found.update(told)
    return found


def test_a_real_sglang_pair_is_as_planned_and_goes_together(spec: Spec, captured: Captured) -> None:
    engine, sides = SGLang(), {}
    for role in (Role.PREFILL, Role.DECODE):
        info = {f"{role.value}_info": captured(f"sglang/server_info_{role.value}.json")}
        facts = learned(engine, **info, models=captured("sglang/models.json"))
        sides[role] = Side(role.value, facts)
        planned = expected(engine, spec(role, version="0.5.23", flags={"page-size": 1}), external=False)
        assert {"id", "tp_size", "pp_size", "version", "block_size"} <= set(planned)
        assert contradictions(planned, sides[role]) == []
    assert list(disagreements(agreements(engine), sides[Role.PREFILL], sides[Role.DECODE])) == []


def test_a_real_vllm_is_as_planned(spec: Spec, captured: Captured) -> None:
    facts = learned(
        VLLM(),
        models=captured("vllm/models.json"),
        version=captured("vllm/version.json"),
        metrics=captured("vllm/metrics_decode.txt"),
    )
    flags = {"block-size": facts["block_size"], "max-model-len": facts["max_model_len"]}
    planned = expected(VLLM(), spec(Role.DECODE, version="0.32.0", flags=flags), external=False)
    assert {"id", "root", "version", "block_size", "max_model_len"} == set(planned)
    assert contradictions(planned, Side("d", facts)) == []


@pytest.mark.parametrize(
    ("facts", "says", "refused"),
    [
        ({"id": "other"}, "decode-0 tells id other, planned was tiny [started-otherwise]", True),
        ({"tp_size": 2}, "decode-0 tells tp_size 2, planned was 1 [started-otherwise]", True),
        ({"block_size": 16}, "decode-0 tells block_size 16, planned was 64 [started-otherwise]", False),
        (
            {"version": "0.5.22"},
            "decode-0 tells version 0.5.22, planned was 0.5.23 [started-otherw",
            False,
        ),
        ({"version": "0.5.23+cpu", "unheard": 1}, None, False),
    ],
)
def test_what_is_not_as_planned(spec: Spec, facts: dict[str, Any], says: str | None, refused: bool) -> None:
    made = spec(Role.DECODE, version="0.5.23", flags={"page-size": 64})
    planned = expected(SGLang(), made, external=False)
    found = contradictions(planned, Side("decode-0", facts))
    assert [str(one).startswith(says or "-") for one in found] == [True] * (says is not None)
    assert bool(grave(found)) is refused
    assert contradictions(planned, Side("decode-0", facts, ["started-otherwise"])) == []


def test_case_5_what_differs_between_the_sides(spec: Spec) -> None:
    prefill = {"block_size": 64, "kv_cache_dtype": "auto", "version": "0.5.23", "revision": "a"}
    decode = {"block_size": 1, "kv_cache_dtype": "fp8_e5m2", "version": "0.5.22"}
    found = list(disagreements(agreements(SGLang()), Side("p", prefill), Side("d", decode)))
    assert [(f.rule, f.severity) for f in found] == [
        ("page-size", "error"), ("kv-dtype", "error"), ("engine-version", "warn"),
    ]  # fmt: skip
    assert grave(found) == (
        "block_size is 1 at d and 64 at p [page-size]; "
        "kv_cache_dtype is fp8_e5m2 at d and auto at p [kv-dtype]"
    )
    quiet = Side("d", decode, ("page-size",))
    assert [f.rule for f in disagreements(agreements(SGLang()), Side("p", prefill), quiet)] == [
        "kv-dtype", "engine-version",
    ]  # fmt: skip


def test_what_only_one_hand_off_compares() -> None:
    def found(transfer: str) -> list[str]:
        prefill = Side("p", {"transfer": transfer, "version": "0.32.0", "root": "a"})
        decode = Side("d", {"transfer": transfer, "version": "0.32.1", "root": "b"})
        return [f.rule for f in disagreements(agreements(VLLM()), prefill, decode)]

    assert found("nixl") == ["model-mismatch", "engine-version"]
    assert found("mooncake") == []


def test_of_others_engines_the_model_alone_is_expected(spec: Spec) -> None:
    assert expected(SGLang(), spec(Role.PREFILL), external=True) == {"id": "tiny"}
    assert expected(SGLang(), spec(Role.ENCODE), external=False) == {}


def test_attention_parallelism_is_expected_where_it_follows(spec: Spec) -> None:
    made = spec(Role.PREFILL, shape=Shape(tp=4))
    assert expected(SGLang(), made, external=False)["attn_tp_size"] == 4
    made = spec(Role.PREFILL, shape=Shape(tp=4), flags={"attn-dp-size": 2})
    assert "attn_tp_size" not in expected(SGLang(), made, external=False)


def test_simulated_engines_are_held_to_model_and_pages(spec: Spec) -> None:
    for engine in (Sim(), SimVLLM()):
        planned = expected(engine, spec(Role.PREFILL, options={"page-size": 16}), external=False)
        assert planned == {"id": "tiny", "block_size": 16}
        assert expected(engine, spec(Role.PREFILL), external=False) == {"id": "tiny"}


def test_an_adapter_may_expect_nothing(spec: Spec) -> None:
    class Plain:
        name = "plain"

    plain: Any = Plain()
    assert expected(plain, spec(Role.PREFILL), external=False) == {}
    assert agreements(plain) == ()
