"""What excludes what on SGLang: role switch, prefill_complete, radix cache, staging."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.core.types import Role
from orchestrator.engines.base import InstanceSpec, Shape
from orchestrator.engines.sglang import SGLang

Spec = Callable[..., InstanceSpec]
Lint = Callable[..., list[str]]

COMPLETE = {"disaggregation-decode-allocation-policy": "prefill_complete"}
RADIX = {"disaggregation-decode-enable-radix-cache": True}
SWITCH = {"enable-pd-role-switch": True}


@pytest.mark.parametrize(
    ("flags", "fields", "says"),
    [
        (SWITCH, {"shape": Shape(ep=2)}, "role-switch: --enable-pd-role-switch does not go with ep"),
        (SWITCH | {"dcp-size": 2}, {}, "role-switch: --enable-pd-role-switch does not go with --dcp-size"),
        (SWITCH | {"moe-a2a-backend": "deepep"}, {}, "does not go with --moe-a2a-backend"),
        (
            SWITCH | {"speculative-algorithm": "EAGLE", "dcp-size": 2},
            {},
            "--dcp-size, speculative decoding",
        ),
        (
            COMPLETE,
            {"transfer": "nixl"},
            "prefill_complete does not go with transfer nixl",
        ),
        (COMPLETE, {"shape": Shape(tp=2)}, "with attention tensor parallelism above 1"),
        (
            COMPLETE | SWITCH,
            {},
            "prefill_complete does not go with --enable-pd-role-switch",
        ),
        (COMPLETE | RADIX, {}, "with a decode radix cache"),
        (RADIX | {"disable-radix-cache": True}, {}, "decode-radix-cache: "),
        (RADIX | {"speculative-algorithm": "NGRAM"}, {}, "with --speculative-algorithm NGRAM"),
        (RADIX, {"transfer": "fake"}, "with transfer fake"),
    ],
)
def test_what_does_not_go_together_is_named(
    spec: Spec, lint_of: Lint, flags: dict[str, Any], fields: dict[str, Any], says: str
) -> None:
    found = lint_of(SGLang(), spec(Role.DECODE, flags=flags, **fields))
    assert any(says in line for line in found), found


@pytest.mark.parametrize(
    "flags", [SWITCH, COMPLETE, RADIX, RADIX | {"speculative-algorithm": "EAGLE3"}, SWITCH | RADIX]
)
def test_each_alone_is_fine(spec: Spec, lint_of: Lint, flags: dict[str, Any]) -> None:
    assert lint_of(SGLang(), spec(Role.DECODE, flags=flags)) == []


def test_the_radix_cache_of_decode_is_no_prefills(spec: Spec, lint_of: Lint) -> None:
    assert lint_of(SGLang(), spec(Role.PREFILL, flags=RADIX)) == [
        "decode-radix-cache: --disaggregation-decode-enable-radix-cache does not go with a prefill pool: "
        "it is for decode"
    ]


@pytest.mark.parametrize(
    ("flags", "fields", "says"),
    [
        ({"chunked-prefill-size": 100, "page-size": 64}, {}, "that page-size 64 divides, not 100"),
        ({"chunked-prefill-size": "many"}, {}, None),
        ({"device": "xpu"}, {}, None),
        ({}, {"shape": Shape(tp=2, pp=2), "transfer": "nixl"}, "with pp needs mooncake"),
    ],
)
def test_what_a_staging_buffer_needs(
    spec: Spec, lint_of: Lint, flags: dict[str, Any], fields: dict[str, Any], says: str | None
) -> None:
    env = {"SGLANG_DISAGG_STAGING_BUFFER": "true"}
    prefill = spec(Role.PREFILL, flags=flags, env=env, **({"shape": Shape(tp=2)} | fields))
    decode = spec(Role.DECODE, flags=flags, env=env, transfer=fields.get("transfer"))
    found = [line for line in lint_of(SGLang(), prefill, decode) if line.startswith("staging-buffer")]
    assert [says in line for line in found] == [True] if says is not None else found == []


def test_defaults_count(spec: Spec, lint_of: Lint) -> None:
    """One who writes the default and one who leaves it out mean the same."""
    written = spec(Role.PREFILL, flags={"kv-cache-dtype": "auto", "dtype": "auto"})
    assert lint_of(SGLang(), written, spec(Role.DECODE)) == []
    found = lint_of(SGLang(), spec(Role.PREFILL, flags={"kv-cache-dtype": "bf16"}), spec(Role.DECODE))
    assert any("kv-cache-dtype is 'auto' here and 'bf16' in prefill" in line for line in found)


def test_the_hand_off_outlasts_the_router(spec: Spec, lint_of: Lint) -> None:
    name = "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT"
    made = SGLang().command(spec(Role.PREFILL, patience_s=99.5)).env[name]
    assert made.text == "130"
    for seconds, speaks in ((99, True), (100, False)):
        found = lint_of(SGLang(), spec(Role.PREFILL, patience_s=99.5, env={name: seconds}))
        assert any(line.startswith("timeout-order") for line in found) is speaks
