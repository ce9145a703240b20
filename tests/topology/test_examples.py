"""Every example loads, plans, and leads to the very commands that its golden plan shows."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from orchestrator.cli.show import as_text
from orchestrator.core.types import Role
from orchestrator.topology.plan import Plan
from orchestrator.topology.planner import plan_file

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
GOLDEN = ROOT / "tests" / "golden"
ENVIRON = {
    "HOME": "/home/me",
    "PDCTL_CLIENT_KEY": "client-key",
    "PDCTL_ENGINE_KEY": "engine-key",
    "PDCTL_ADMIN_KEY": "admin-key",
    "PDCTL_CHAT_KEY": "chat-key",
    "PDCTL_NIGHT_KEY": "night-key",
    "HF_TOKEN": "hf-token",
}


def plan_of(path: Path, *overrides: str) -> Plan:
    return plan_file(path, overrides, environ=ENVIRON, python="/usr/bin/python3")


def golden(plan: Plan) -> str:
    """The plan with origins, and beside each instance how it is probed and what is known of it."""
    lines = list(as_text(plan, explain=True))
    lines += ["", "# probes and facts"]
    for instance in plan.instances:
        ready = ", ".join(
            f"{c.method} {c.path}{f' at {c.port}' if c.port else ''}" for c in instance.probes.ready
        )
        facts = json.dumps(instance.facts, sort_keys=True)
        lines.append(f"{instance.name}: ready {ready}; live {instance.probes.live.path}; {facts}")
        for follower in instance.followers:
            ready = ", ".join(f"{c.method} {c.path}" for c in follower.probes.ready) or "once it runs"
            lines.append(f"{follower.name}: ready {ready}")
    lines += [f"warning: {w.replace(f'{ROOT}/', '')}" for w in plan.warnings]
    return "\n".join(line.rstrip() for line in lines) + "\n"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_the_golden_plan(path: Path) -> None:
    file = GOLDEN / f"{path.stem}.plan.txt"
    text = golden(plan_of(path))
    if os.environ.get("PDCTL_UPDATE_GOLDEN"):
        file.write_text(text)
    assert file.exists(), "PDCTL_UPDATE_GOLDEN=1 scripts/test tests/topology/test_examples.py writes it"
    assert text == file.read_text(), "if the change is meant, write it anew by PDCTL_UPDATE_GOLDEN=1"


def test_no_golden_plan_without_its_example() -> None:
    assert {p.name.removesuffix(".plan.txt") for p in GOLDEN.glob("*.plan.txt")} == {p.stem for p in EXAMPLES}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_editors_find_the_schema(path: Path) -> None:
    first = path.read_text().splitlines()[0]
    assert first == "# yaml-language-server: $schema=../docs/topology.schema.json"
    assert (path.parent / first.partition("$schema=")[2]).is_file()


def test_no_secret_is_in_a_golden_plan() -> None:
    for path in GOLDEN.glob("*.plan.txt"):
        text = path.read_text()
        assert not any(ENVIRON[name] in text for name in ENVIRON if name != "HOME"), path.name


def test_examples_can_run_side_by_side_on_one_host() -> None:
    """The endpoints of the examples that run anywhere do not collide."""
    anywhere = [p for p in EXAMPLES if p.stem.startswith(("quickstart", "sim-", "slo", "real-"))]
    listeners = [port for p in anywhere for r in [plan_of(p).router] if r for port in (r.port, r.admin_port)]
    assert len(set(listeners)) == len(listeners)


def test_the_quickstart_is_two_and_two_of_the_simulated_engine() -> None:
    plan = plan_of(ROOT / "examples" / "quickstart.yaml")
    roles = [i.role for i in plan.instances]
    assert (roles.count(Role.PREFILL), roles.count(Role.DECODE), len(roles)) == (2, 2, 4)
    assert plan.router is not None
    assert plan.router.url == "http://127.0.0.1:8000"
    assert {i.engine for i in plan.instances} == {"sim"}


@pytest.mark.parametrize("name", ["real-sglang-cpu", "real-vllm-cpu"])
def test_the_reference_of_a_real_example_can_be_switched_on(name: str) -> None:
    plan = plan_of(ROOT / "examples" / f"{name}.yaml", "pools.unified.instances=1")
    assert [i.name for i in plan.instances] == ["prefill-0", "decode-0", "unified-0"]
    alone = plan_of(
        ROOT / "examples" / f"{name}.yaml",
        "pools.unified.instances=1",
        "pools.prefill.instances=0",
        "pools.decode.instances=0",
    )
    assert [i.url for i in alone.instances] == [plan.instance("unified-0").url]
