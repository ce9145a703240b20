"""docs/security.md: each test that it names exists, and so does each of its settings."""

from __future__ import annotations

import re
from pathlib import Path

from orchestrator.router.openfiles import STREAM_FDS
from orchestrator.router.stream import MAX_EVENT_BYTES
from orchestrator.router.view import MAX_CHOICES
from orchestrator.topology.known import json_schema
from orchestrator.topology.plan import Limits
from orchestrator.topology.reference import settings
from orchestrator.topology.schema import Topology
from orchestrator.wire.connection import MAX_HEAD_BYTES
from orchestrator.wire.limits import WireLimits

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "security.md").read_text()


def test_every_test_that_is_named_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", TEXT))
    assert len(named) > 40
    made = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        made |= set(re.findall(r"def (test_\w+)\(", path.read_text()))
    assert named - made == set()


def test_every_setting_that_is_named_exists() -> None:
    known = set(settings(json_schema(Topology)))
    named = set(re.findall(r"`((?:router|limits|scheduling)\.[a-z_.]+)", TEXT)) - {"router.sock"}
    assert {name if name.split(".")[0] != "limits" else f"router.{name}" for name in named} <= known


def test_the_defaults_are_those_of_the_code() -> None:
    limits, wire = Limits(), WireLimits()
    assert (limits.max_header_bytes, limits.max_body_bytes) == (64 << 10, 64 << 20)
    assert (limits.max_json_depth, limits.header_timeout_s, limits.body_timeout_s) == (64, 30.0, 120.0)
    assert (wire.idle_timeout_s, wire.stall_timeout_s, STREAM_FDS) == (120.0, 120.0, 3)
    assert (limits.max_inflight, limits.max_queue, limits.max_inflight_per_key) == (10_000, 10_000, None)
    assert (MAX_CHOICES, MAX_HEAD_BYTES, MAX_EVENT_BYTES) == (1024, 256 << 10, 16 << 20)
