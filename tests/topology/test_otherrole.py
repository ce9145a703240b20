"""What an instance is after a switch of roles, and back again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.core.types import Role
from orchestrator.topology.plan import InstancePlan, dump, parse
from orchestrator.topology.planner import plan_file


def planned(tmp_path: Path, **pool: Any) -> dict[str, InstancePlan]:
    pools = {r: {"role": r, "engine": "sim", "instances": 1, **pool} for r in ("prefill", "decode")}
    file = tmp_path / "topology.yaml"
    file.write_text(yaml.safe_dump({"name": "t", "model": {"path": "m"}, "pools": pools}))
    plan = plan_file(file, (), environ={"HOME": str(tmp_path)})
    assert parse(dump(plan)) == plan
    return {i.name: i for i in plan.instances}


def test_a_decode_instance_becomes_a_prefill_with_a_bootstrap_server_and_back(tmp_path: Path) -> None:
    decode = planned(tmp_path, options={"enable-pd-role-switch": True})["decode-0"]
    prefill = decode.in_other_role()
    assert (prefill.role, prefill.switched, prefill.digest) == (Role.PREFILL, True, decode.digest)
    assert prefill.facts["bootstrap_port"] == decode.ports["bootstrap"]
    assert (prefill.facts["started_as"], decode.facts["started_as"]) == ("decode", "decode")
    assert len(prefill.probes.ready) == 2
    assert prefill.in_other_role() == decode


def test_a_plan_keeps_the_role_of_the_same_process_alone(tmp_path: Path) -> None:
    decode = planned(tmp_path, options={"enable-pd-role-switch": True})["decode-0"]
    running = decode.in_other_role()
    assert decode.as_running(running) == running
    assert running.as_running(running) == running
    assert decode.as_running(decode) == decode
    assert decode.as_running(None) == decode
    changed = planned(tmp_path, options={"enable-pd-role-switch": True, "chunk": 512})["decode-0"]
    assert changed.as_running(running) == changed


@pytest.mark.parametrize(
    ("pool", "why"),
    [
        ({}, "its pool was not started with `options: {enable-pd-role-switch: true}`"),
        ({"options": {"dialect": "vllm"}}, "engine sim cannot change roles while it runs"),
    ],
)
def test_why_it_has_no_other(tmp_path: Path, pool: dict[str, Any], why: str) -> None:
    made = planned(tmp_path, **pool)["prefill-0"]
    assert (made.other, made.no_other) == (None, why)
    with pytest.raises(ValueError, match="no other role"):
        made.in_other_role()
