"""SGLang's lint rules and its known flags, each rule shown to speak and to stay silent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.core.types import Role
from orchestrator.engines.base import Encoders, InstanceSpec, LintContext, Shape
from orchestrator.engines.sglang import SGLang

Spec = Callable[..., InstanceSpec]
Lint = Callable[..., list[str]]


def test_a_plain_pair_is_fine(spec: Spec, lint_of: Lint) -> None:
    assert lint_of(SGLang(), spec(Role.PREFILL), spec(Role.DECODE), spec(Role.UNIFIED)) == []


@pytest.mark.parametrize(
    ("side", "rule", "says"),
    [
        ({"flags": {"disaggregation-mode": "decode"}}, "role-contradiction", "needs prefill"),
        ({"flags": {"disaggregation_mode": "null"}}, "role-contradiction", "needs prefill"),
        ({"flags": {"disaggregation-transfer-backend": "nixl"}}, "role-contradiction", "needs mooncake"),
        ({"flags": {"encoder-only": True}}, "role-contradiction", "needs False"),
        ({"flags": {"port": 1}}, "planned-flag", "--port"),
        ({"flags": {"tp": 2}}, "planned-flag", "--tp-size"),
        ({"flags": {"api-key": "k"}}, "planned-flag", "--api-key"),
        ({"flags": {"page-size": 64}}, "page-size", "page-size is not set here and 64 in prefill"),
        ({"flags": {"dtype": "float16"}}, "model-dtype", "dtype"),
        ({"flags": {"mem-fraction-statik": 0.5}}, "unknown-flag", "--mem-fraction-statik"),
        ({"flags": {"disaggregation-decode-tp": 2}}, "replaced", "--disaggregation-decode-tp"),
        ({"env": {"SGLANG_DISAGG_STAGING_BUFFER_SIZE_MB": 1}}, "replaced", "STAGING_BUFFER_SIZE_MB"),
        ({"env": {"SGLANG_DISAGGREGATION_WAITING_TIMEOUT": 1.5}}, "bad-duration", "whole seconds"),
        ({"transfer": "nixl"}, "transfer-mismatch", "transfer is mooncake here and nixl in prefill"),
        ({"transfer": "fake"}, "fake-transfer", "refuses"),
        ({"shape": Shape(dp=2)}, "prefill-dp", "follow_bootstrap_room"),
        ({"shape": Shape(tp=2)}, "unequal-tp", "tp 1 here, 2 in prefill"),
        ({"flags": {"max-queued-requests": 8}}, "ineffective-flag", "--max-queued-requests"),
        ({"flags": {"sleep-on-idle": True}}, "ineffective-flag", "--sleep-on-idle"),
        ({"bind": "127.0.0.1", "address": "127.0.0.1"}, "unroutable-address", "10.0.0.1 cannot reach"),
    ],
)
def test_a_bad_prefill_is_found(
    spec: Spec, lint_of: Lint, side: dict[str, Any], rule: str, says: str
) -> None:
    found = lint_of(SGLang(), spec(Role.PREFILL, **side), spec(Role.DECODE))
    assert any(line.startswith(f"{rule}: ") and says in line for line in found), found


def test_findings_name_file_line_field_and_a_fix(spec: Spec) -> None:
    bad = spec(Role.PREFILL, flags={"disaggregation-mode": "decode"})
    (problem,) = SGLang().lint(LintContext((bad, spec(Role.DECODE)), {"prefill": ("t.yaml", 7)}))
    assert (problem.file, problem.line) == ("t.yaml", 30)  # where the flag is, not the pool
    assert problem.field == "pools.prefill.flags.disaggregation-mode"
    assert problem.hint
    assert problem.severity == "error"


def test_a_pool_without_the_flag_is_pointed_at_itself(spec: Spec) -> None:
    (problem,) = SGLang().lint(
        LintContext((spec(Role.PREFILL, shape=Shape(dp=2)), spec(Role.DECODE)), {"prefill": ("t.yaml", 7)})
    )
    assert (problem.file, problem.line, problem.field) == ("t.yaml", 7, "pools.prefill.dp")


def test_equal_settings_of_both_sides_are_fine(spec: Spec, lint_of: Lint) -> None:
    flags = {"page-size": 64, "dtype": "float32", "no-enable-tf32-matmul": True}
    assert lint_of(SGLang(), spec(Role.PREFILL, flags=flags), spec(Role.DECODE, flags=flags)) == []


def test_a_staging_buffer_makes_unequal_tp_fine(spec: Spec, lint_of: Lint) -> None:
    env = {"SGLANG_DISAGG_STAGING_BUFFER": 1}
    prefill, decode = spec(Role.PREFILL, shape=Shape(tp=2), env=env), spec(Role.DECODE, env=env)
    assert lint_of(SGLang(), prefill, decode) == []


def test_decode_pp_must_fit(spec: Spec, lint_of: Lint) -> None:
    prefill = spec(Role.PREFILL, shape=Shape(pp=2))
    assert lint_of(SGLang(), prefill, spec(Role.DECODE)) == []
    assert lint_of(SGLang(), prefill, spec(Role.DECODE, shape=Shape(pp=4)))


def test_an_unknown_flag_of_another_version_is_only_a_warning(spec: Spec) -> None:
    def severity(version: str | None, flag: str) -> str:
        specs = tuple(spec(role, flags={flag: 1}, version=version) for role in (Role.PREFILL, Role.DECODE))
        (found,) = {p.severity for p in SGLang().lint(LintContext(specs)) if p.rule == "unknown-flag"}
        return found

    assert severity("0.5.23", "mem-fraction-statik") == "error"
    assert severity(None, "mem-fraction-statik") == "error"
    assert severity("0.6.0", "mem-fraction-statik") == "warn"
    assert severity("0.5.23", "quite-another-thing") == "error"


def test_pools_of_different_models_need_not_agree(spec: Spec, lint_of: Lint) -> None:
    other = spec(Role.DECODE, served_name="other", flags={"page-size": 64})
    assert lint_of(SGLang(), spec(Role.PREFILL), other) == []


def test_instances_of_one_pool_are_found_once(spec: Spec, lint_of: Lint) -> None:
    pool = [spec(Role.PREFILL, name=f"prefill-{i}", flags={"port": 1}) for i in range(3)]
    assert len(lint_of(SGLang(), *pool, spec(Role.DECODE))) == 1


ENCODERS = Encoders(("http://10.0.0.9:1",))
HAZARD = "encoder-hazard"


def rules(lines: list[str]) -> list[str]:
    return [line.partition(":")[0] for line in lines]


def test_encoders_come_with_a_warning_and_nothing_else(spec: Spec, lint_of: Lint) -> None:
    fleet = [
        spec(Role.ENCODE),
        *(spec(role, encoders=ENCODERS) for role in (Role.PREFILL, Role.DECODE, Role.UNIFIED)),
    ]
    assert rules(lint_of(SGLang(), *fleet)) == [HAZARD]
    (problem,) = SGLang().lint(LintContext(tuple(fleet), {"encode": ("t.yaml", 3)}))
    assert (problem.severity, problem.line, problem.field) == ("warn", 3, "pools.encode")


def test_of_external_encoders_their_users_are_warned(spec: Spec) -> None:
    fleet = (spec(Role.PREFILL, encoders=ENCODERS), spec(Role.DECODE, encoders=ENCODERS))
    (problem,) = SGLang().lint(LintContext(fleet, {}))
    assert (problem.rule, problem.field) == (HAZARD, "pools.prefill")


@pytest.mark.parametrize(
    ("encoder", "rule", "says"),
    [
        ({"flags": {"disaggregation-mode": "prefill"}}, "role-contradiction", "needs null"),
        ({"flags": {"encoder-only": False}}, "role-contradiction", "needs True"),
        ({"flags": {"encoder-transfer-backend": "mooncake"}}, "planned-flag", "--encoder-transfer-backend"),
        ({"flags": {"encoder-register-urls": ["x"]}}, "planned-flag", "--encoder-register-urls"),
        ({"transfer": "nixl"}, "unknown-transfer", "cannot travel by nixl"),
        ({"options": {"unchecked_media": "yes"}}, "bad-option", "true or false"),
    ],
)
def test_a_bad_encoder_is_found(
    spec: Spec, lint_of: Lint, encoder: dict[str, Any], rule: str, says: str
) -> None:
    found = lint_of(SGLang(), spec(Role.ENCODE, **encoder), spec(Role.UNIFIED, encoders=ENCODERS))
    assert any(line.startswith(f"{rule}: ") and says in line for line in found), found


@pytest.mark.parametrize("other", [{"transfer": "mooncake"}, {"options": {"unchecked_media": True}}])
def test_encode_pools_are_alike_in_what_their_users_are_told(
    spec: Spec, lint_of: Lint, other: dict[str, Any]
) -> None:
    first, user = spec(Role.ENCODE), spec(Role.UNIFIED, encoders=ENCODERS)
    assert rules(lint_of(SGLang(), first, spec(Role.ENCODE, pool="more"), user)) == [HAZARD]
    found = lint_of(SGLang(), first, spec(Role.ENCODE, pool="more", **other), user)
    assert rules(found) == ["encoder-mismatch", HAZARD]


def test_the_plan_decides_who_has_encoders(spec: Spec, lint_of: Lint) -> None:
    bad = spec(Role.UNIFIED, flags={"language-only": True, "encoder-urls": ["http://10.0.0.9:1"]})
    assert sorted(rules(lint_of(SGLang(), bad))) == ["planned-flag", "role-contradiction"]
    bad = spec(Role.UNIFIED, flags={"language-only": False}, encoders=ENCODERS)
    assert rules(lint_of(SGLang(), bad)) == ["role-contradiction", HAZARD]


NODE = {"node": "h1", "node_nics": {"mlx5_0": "ACTIVE", "mlx5_1": "DOWN"}, "devices": (0, 1)}


@pytest.mark.parametrize(
    ("fields", "rule", "says"),
    [
        (
            {"flags": {"disaggregation-ib-device": "mlx5_0,mlx5_7"}},
            "nic-missing",
            "h1 has no RDMA device mlx5_7",
        ),
        ({"flags": {"disaggregation-ib-device": "mlx5_1"}}, "nic-missing", "the link of mlx5_1 on node h1"),
        (
            {"flags": {"disaggregation-ib-device": {"0": ["mlx5_0"], "1": "mlx5_0"}}},
            "device-map",
            "the devices of GPU 0 must be one text",
        ),
        ({"flags": {"disaggregation-ib-device": {"0": "mlx5_0"}}}, "device-map", "no devices for GPU 1"),
        ({"flags": {"disaggregation-ib-device": '{"4":"mlx5_0","5":"mlx5_0"}'}}, "device-map", "GPU 0, 1"),
        ({"flags": {"disaggregation-ib-device": {"gpu0": "mlx5_0"}}}, "device-map", "'gpu0' is no GPU"),
        ({"flags": {"disaggregation-ib-device": 5}}, "device-map", "5 is neither"),
        (
            {"flags": {"disaggregation-ib-device": "mlx5_0"}, "transfer": "mooncake_tcp"},
            "ineffective-flag",
            "ignored over TCP",
        ),
        (
            {
                "flags": {"disaggregation-ib-device": "mlx5_0"},
                "env": {"UCX_NET_DEVICES": "mlx5_0:1"},
                "transfer": "nixl",
            },
            "device-map",
            "the engine then ignores --disaggregation-ib-device",
        ),
        (
            {"flags": {"disaggregation-ib-device": "mlx5_0:1"}, "transfer": "nixl"},
            "device-map",
            "names without a port",
        ),
        ({"env": {"UCX_NET_DEVICES": "mlx5_7:1"}, "transfer": "nixl"}, "nic-missing", "mlx5_7"),
        ({"env": {"UCX_NET_DEVICES": "mlx5_0:1"}}, "ineffective-flag", "not read by transfer"),
        ({"options": {"device_map": "table"}}, "bad-option", "list or inline or file, not 'table'"),
        ({"options": {"device_map": "inline"}}, "bad-option", "needs NICs for every GPU"),
    ],
)
def test_case_9_nics_named_by_hand(
    spec: Spec, lint_of: Lint, fields: dict[str, Any], rule: str, says: str
) -> None:
    found = lint_of(SGLang(), spec(**NODE, **fields))
    assert any(f.startswith(f"{rule}: ") and says in f for f in found), found


@pytest.mark.parametrize(
    "fields",
    [
        {"flags": {"disaggregation-ib-device": {"0": "mlx5_0", "1": "mlx5_0"}}},
        {"flags": {"disaggregation-ib-device": "/etc/nics.json"}},
        {"flags": {"disaggregation-ib-device": None}},
        {"env": {"UCX_NET_DEVICES": "ens3"}, "transfer": "nixl"},
        {"env": {"UCX_NET_DEVICES": None}},
        {"options": {"device_map": "inline"}, "nics": ("mlx5_0",)},
    ],
)
def test_case_9_nics_named_rightly(spec: Spec, lint_of: Lint, fields: dict[str, Any]) -> None:
    assert lint_of(SGLang(), spec(**NODE, **fields)) == []


def test_case_9_a_name_that_one_host_of_a_pool_lacks(spec: Spec, lint_of: Lint) -> None:
    flags = {"disaggregation-ib-device": "mlx5_0"}
    here = spec(**NODE, flags=flags)
    there = spec(**{**NODE, "node": "h2", "node_nics": {"mlx5_4": "ACTIVE"}}, flags=flags, name="prefill-1")
    (found,) = lint_of(SGLang(), here, there)
    assert found == "nic-missing: node h2 has no RDMA device mlx5_0, which prefill-1 would use"
