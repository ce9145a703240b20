"""What lint rules and findings share, and that every adapter keeps the contract of base and guard."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from orchestrator.core.types import Role
from orchestrator.engines import guard, linting, rules
from orchestrator.engines.base import Engine, InstanceSpec, LintContext, Setting
from orchestrator.engines.sglang import SGLang
from orchestrator.engines.sim import Sim, SimVLLM
from orchestrator.engines.vllm import VLLM

Spec = Callable[..., InstanceSpec]
ADAPTERS: list[Engine] = [SGLang(), VLLM(), Sim(), SimVLLM()]


NEAR = ("127.0.0.1", "127.1.2.3", "localhost", "::1", "0.0.0.0", "::")
FAR = ("10.0.0.1", "node-7", "fd00::1", "localhost.example")


def test_loopback() -> None:
    assert [host for host in NEAR + FAR if linting.is_loopback(host)] == [*NEAR]


@pytest.mark.parametrize(
    ("origin", "where"),
    [
        ("topology t.yaml:30", ("t.yaml", 30)),
        ("profile /x/launch_profiles/sglang/cpu.yaml:12", ("/x/launch_profiles/sglang/cpu.yaml", 12)),
        ("role prefill + topology a.yml:3", ("a.yml", 3)),
        ("--set pools.p.flags.x", ("decl.yaml", 7)),
    ],
)
def test_a_finding_points_at_the_setting_or_else_at_the_pool(
    spec: Spec, origin: str, where: tuple[str, int]
) -> None:
    writer = linting.Writer(LintContext((), {"prefill": ("decl.yaml", 7)}), {})
    problem = writer.problem(spec(Role.PREFILL), rules.PAGE_SIZE, "message", at=Setting(1, origin))
    assert (problem.file, problem.line) == where


def test_sides_pair_the_pools_of_one_model(spec: Spec) -> None:
    specs = [
        spec(Role.PREFILL, pool="p1"),
        spec(Role.PREFILL, pool="p1", name="p1-1"),
        spec(Role.PREFILL, pool="p2"),
        spec(Role.DECODE, pool="d1"),
        spec(Role.DECODE, pool="d2", served_name="other"),
        spec(Role.UNIFIED, pool="u"),
    ]
    assert [(p.pool, d.pool) for p, d in linting.sides(specs)] == [("p1", "d1"), ("p2", "d1")]


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda a: type(a).__name__)
def test_every_adapter_guards_what_no_engine_may_be_told(adapter: Engine) -> None:
    assert adapter.guarded_fields >= guard.FIELDS
    assert adapter.guarded_headers >= guard.HEADERS


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda a: type(a).__name__)
@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE, Role.UNIFIED])
def test_http_comes_first_and_every_planned_port_is_used(adapter: Engine, role: Role, spec: Spec) -> None:
    made = spec(role)
    needs = adapter.ports(role, made.shape, None)
    assert needs[0].purpose == "http"
    ports = {need.purpose: 40000 + 10 * i for i, need in enumerate(needs)}
    command = adapter.command(spec(role, ports=ports))
    text = " ".join([*(w.text for w in command.argv), *(w.text for w in command.env.values())])
    unused = [purpose for purpose, port in ports.items() if str(port) not in text]
    # These are rendered once the pool asks for events, or there are encoders.
    assert set(unused) <= {"kv-events", "encoder-bootstrap"}


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda a: type(a).__name__)
def test_processes_do_not_import_from_where_they_start(adapter: Engine, spec: Spec) -> None:
    command = adapter.command(spec(Role.UNIFIED))
    assert "PYTHONSAFEPATH" in command.env or command.argv[0].text == "-P"


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "::1", "[::1]", "0.0.0.0", "::", "[::]", "127.8.8.8"]
)
def test_case_10_loopback_and_wildcards_however_they_are_written(host: str) -> None:
    assert linting.is_loopback(host)


@pytest.mark.parametrize("host", ["10.0.0.1", "2001:db8::1", "[2001:db8::1]", "localhost.example", "node-1"])
def test_case_10_other_hosts_are_neither(host: str) -> None:
    assert not linting.is_loopback(host)
