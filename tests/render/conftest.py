"""Deployments to render, planned from a topology that a test writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.render.files import Deployment
from orchestrator.topology.load import draft
from orchestrator.topology.planner import plan_file

ENVIRON = {"HOME": "/home/me", "ENGINE_KEY": "an-engine-key", "CLIENT_KEY": "a-client-key"}
HOSTS = """\
name: two-hosts
model: {path: org/model}
nodes:
  - {name: a, address: 10.0.0.1, gpus: 8, nics: [mlx5_0]}
  - {name: b, address: 10.0.0.2, gpus: 8, nics: [mlx5_0]}
pools:
  prefill: {role: prefill, engine: sglang, nodes: [a], tp: 4, env: {WORDS: "it's $5 $(x)"}}
  decode: {role: decode, engine: sglang, tp: 8, pin: [{nodes: [b, a], gpus: [4, 5, 6, 7]}]}
router:
  listen: 0.0.0.0:8000
  credentials: {client_keys: ["${env:CLIENT_KEY}"], engine_key: "${env:ENGINE_KEY}"}
"""

WITH_FILES = """\
name: one
model: {path: org/model}
nodes: [{name: a, address: 10.0.0.1, gpus: 2, nics: [mlx5_0]}]
pools:
  prefill: {role: prefill, engine: sglang, options: {device_map: file}}
  decode: {role: decode, engine: sglang}
router: {listen: 0.0.0.0:8000, auth: none}
"""


@pytest.fixture
def with_files() -> str:
    """A topology of which the prefill engine reads a file that `up` would write."""
    return WITH_FILES


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., Deployment]:
    def make(text: str = HOSTS, *overrides: str) -> Deployment:
        file = tmp_path / "t.yaml"
        file.write_text(text)
        plan = plan_file(file, overrides, environ=ENVIRON, python="/usr/bin/python3")
        topology = draft(file, overrides, ENVIRON).topology
        assert topology is not None
        keys = {name: ENVIRON[name] for name in ("ENGINE_KEY", "CLIENT_KEY")}
        return Deployment(
            plan, {n.name: n.address for n in topology.nodes}, keys, tmp_path / "out", "pdctl", overrides
        )

    return make
