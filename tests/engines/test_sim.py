"""Simulated engines: their dialect's adapter in all but the command and the ports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import orjson
import pytest

from orchestrator.core.types import PathKind, Role
from orchestrator.engines.base import InstanceSpec, Shape
from orchestrator.engines.sglang import SGLang
from orchestrator.engines.sim import Sim, SimVLLM
from orchestrator.engines.vllm import VLLM
from orchestrator.errors import TopologyError
from orchestrator.sim import options as sim_options
from orchestrator.sim import text

Spec = Callable[..., InstanceSpec]
SAME = ("guarded_fields", "guarded_headers", "roles", "idle_s")
DELEGATED = (
    *("handoff", "check", "split", "rooms", "needs_merge", "merge", "abort", "map_error", "serves", "flush"),
    *("probes", "discover", "learn", "load_call", "load"),
)


def parsed(spec: InstanceSpec) -> sim_options.SimOptions:
    words = [word.text for word in Sim().bind(spec.options).command(spec).argv]
    assert words[:3] == ["-P", "-m", "orchestrator.sim"]
    return sim_options.parse(words[3:], {})


@pytest.mark.parametrize(("sim", "real"), [(Sim, SGLang), (SimVLLM, VLLM)])
def test_all_protocol_is_the_dialects_own(sim: type, real: type) -> None:
    for name in SAME:
        assert getattr(sim, name) == getattr(real, name)
    for name in DELEGATED:
        assert getattr(sim, name) is getattr(real, name), name
    assert sim.__dict__["name"] == "sim"


def test_facts_are_the_dialects_with_the_simulators_own_vocabulary(spec: Spec) -> None:
    prefill = spec(Role.PREFILL, ports={"http": 30000, "bootstrap": 30001})
    facts = {**SGLang().facts(prefill), "vocab_size": text.VOCABULARY}
    assert facts.pop("idle_s") > Sim.idle_s, "the simulator keeps idle connections no longer than by default"
    assert Sim().facts(prefill) == facts
    assert Sim().facts(replace(prefill, vocab_size=9))["vocab_size"] == 9
    assert {**SimVLLM().facts(prefill), "idle_s": 70.0} == VLLM().facts(prefill)


def test_the_lease_is_the_simulators_in_real_seconds(spec: Spec) -> None:
    sim = SimVLLM()
    for expected, given in (
        (30.0, {}),
        (3.0, {"options": {"speed": 10}}),
        (6.0, {"options": {"lease-s": 12, "speed": 2}}),
        (4.0, {"options": {"lease_s": 12}, "flags": {"lease-s": 4}}),
    ):
        assert sim.facts(spec(Role.PREFILL, **given))["lease_s"] == expected
    assert "lease_s" not in sim.facts(spec(Role.DECODE))
    assert "lease_s" not in sim.facts(spec(Role.PREFILL, transfer="mooncake"))


def test_options_choose_the_dialect() -> None:
    assert type(Sim().bind({})) is Sim
    assert type(Sim().bind({"dialect": "vllm"})) is SimVLLM
    assert type(SimVLLM().bind({"dialect": "sglang"})) is Sim
    with pytest.raises(TopologyError, match="sglang or vllm"):
        Sim().bind({"dialect": "trtllm"})
    with pytest.raises(TopologyError, match="sglang or vllm"):
        Sim().bind({"dialect": ["vllm"]})


def test_the_simulator_understands_its_command_line_for_sglang(spec: Spec) -> None:
    ports = {"http": 30000, "bootstrap": 30001}
    made = parsed(
        spec(Role.PREFILL, ports=ports, bind="127.0.0.1", options={"speed": 4, "page_size": 16}, key="k")
    )
    assert (made.dialect, made.role, made.host, made.port) == ("sglang", "prefill", "127.0.0.1", 30000)
    assert (made.bootstrap_port, made.transfer, made.speed, made.page_size) == (30001, "mooncake", 4.0, 16)
    assert (made.served_model_name, made.api_key, made.cache_report) == ("tiny", "k", True)


def test_the_simulator_understands_its_command_line_for_vllm(spec: Spec) -> None:
    ports = {"http": 30000, "side-channel": 30002}
    options = {"dialect": "vllm", "faults": {"rules": []}}
    made = parsed(spec(Role.DECODE, ports=ports, options=options, flags={"block-size": 32}))
    assert (made.dialect, made.role, made.side_channel_host, made.side_channel_port) == (
        "vllm", "decode", "10.0.0.1", 30002,
    )  # fmt: skip
    assert (made.transfer, made.recompute, made.page_size) == ("nixl", True, 32)
    assert (made.load_tracking, made.shutdown_timeout_s) == (True, 55.0)
    assert orjson.loads(made.faults or "") == {"rules": []}


@pytest.mark.parametrize(
    ("dialect", "transfer", "known"),
    [
        ("sglang", None, "mooncake"),
        ("sglang", "nixl", "mooncake"),
        ("sglang", "mooncake_tcp", "mooncake_tcp"),
        ("vllm", None, "nixl"),
        ("vllm", "mooncake_tcp", "mooncake"),
    ],
)
def test_transfers_in_the_simulators_words(
    spec: Spec, dialect: str, transfer: str | None, known: str
) -> None:
    made = parsed(spec(Role.PREFILL, transfer=transfer, options={"dialect": dialect}))
    assert made.transfer == known


def test_ports_are_those_it_opens() -> None:
    def purposes(adapter: object, role: Role, transfer: str | None = None) -> list[str]:
        return [need.purpose for need in adapter.ports(role, Shape(), transfer)]  # type: ignore[attr-defined]

    assert purposes(Sim(), Role.PREFILL) == ["http", "bootstrap", "kv-events"]
    assert purposes(Sim(), Role.DECODE) == ["http", "kv-events"]
    assert purposes(SimVLLM(), Role.DECODE) == ["http", "side-channel", "kv-events"]
    assert purposes(SimVLLM(), Role.PREFILL, "mooncake") == ["http", "bootstrap", "kv-events"]


def test_kv_events_are_published_where_the_pool_wants_them(spec: Spec) -> None:
    ports = {"http": 1, "kv-events": 70}
    words = [w.text for w in Sim().command(spec(Role.UNIFIED, ports=ports, kv_events=True)).argv]
    at = words.index("--kv-events-port")
    assert words[at + 1] == "70"
    assert words[words.index("--kv-replay-port") + 1] == "71"
    assert "--kv-events-port" not in [w.text for w in Sim().command(spec(Role.UNIFIED, ports=ports)).argv]


def test_the_key_is_secret(spec: Spec) -> None:
    words = Sim().command(spec(Role.UNIFIED, key="s3cret")).argv
    assert [word.secret for word in words if word.text == "s3cret"] == [True]


def test_lint_knows_pairs_and_not_the_real_engines_flags(
    spec: Spec, lint_of: Callable[..., list[str]]
) -> None:
    prefill = spec(Role.PREFILL, flags={"kv-tokens": 5000, "page-size": 64})
    assert [line.partition(":")[0] for line in lint_of(Sim(), prefill, spec(Role.DECODE))] == ["page-size"]


def test_serving_is_the_dialects() -> None:
    assert Sim().serves(PathKind.GENERATE, Role.DECODE, True)
    assert not SimVLLM().serves(PathKind.GENERATE, Role.DECODE, True)
