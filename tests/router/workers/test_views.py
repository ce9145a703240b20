"""Endpoints as relays see them are those that the scheduler's process sees."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import orjson
import pytest

from orchestrator.clock import FakeClock
from orchestrator.core.types import Load, Role
from orchestrator.engines.base import HttpCall, Probes
from orchestrator.metrics import RouterMetrics
from orchestrator.router.endpoints import Registry
from orchestrator.router.workers.messages import Frames
from orchestrator.router.workers.views import Mirror, note_frame, steady, view, views_frame
from orchestrator.topology.plan import InstancePlan, Plan

MakePlan = Callable[..., Plan]


def instance(name: str) -> InstancePlan:
    probe = HttpCall("GET", "/ready")
    return InstancePlan(
        name=name,
        pool="prefill",
        role=Role.PREFILL,
        engine="./stub.py:Stub",
        model="m",
        node="local",
        url="http://127.0.0.1:1",
        argv=(),
        env={},
        ports={"http": 1},
        probes=Probes(ready=(probe,), live=probe),
        facts={"bootstrap_port": 8998},
    )


class Both:
    """A registry, and a mirror of it that is told through the bytes of a frame."""

    def __init__(self, plan: Plan) -> None:
        self.clock = FakeClock(100.0)
        self.registry = Registry(plan, self.clock, RouterMetrics(("m",), self.clock, "1"))
        self.notes: list[Sequence[Any]] = []
        self.mirror = Mirror(plan, self.clock, self.notes.append)
        self.changes = 0
        self.mirror.on_change(self._count)

    def _count(self) -> None:
        self.changes += 1

    def tell(self) -> None:
        told = [view(state, 7.0) for state in self.registry.states()]
        ((_, body),) = Frames().feed(views_frame(told, lazy=False))
        self.mirror.told(orjson.loads(body)[0])


@pytest.fixture
def both(make_plan: MakePlan) -> Both:
    return Both(make_plan(instance("p0"), instance("p1")))


def test_a_joined_endpoint_is_the_same_here_and_there(both: Both) -> None:
    both.registry.join("p0", {"block_size": 64, "incarnation": "one", "odd": frozenset({"b", "a"})})
    both.registry.loaded("p0", Load(at_s=100.0, running=3, waiting=1, kv_used_tokens=5, kv_total_tokens=9))
    both.registry.keep_apart({"p0": frozenset({"d1"})})
    both.tell()
    here, there = both.registry.get("p0"), both.mirror.get("p0")
    assert here is not None
    facts = MappingProxyType({**here.facts, "odd": ["a", "b"]})
    assert there == replace(here, facts=facts)
    assert [e.ready for e in both.mirror.snapshot(0.0).endpoints] == [True, False]
    assert both.mirror.moved_s("p0") == 7.0


def test_a_load_alone_is_no_change(both: Both) -> None:
    both.registry.join("p0", {})
    both.tell()
    changes = both.changes
    both.registry.loaded("p0", Load(at_s=101.0, running=3))
    state = both.registry.state("p0")
    assert state is not None
    before = steady(view(state, 0.0))
    both.tell()
    assert both.changes == changes
    assert steady(view(state, 9.0)) == before
    there = both.mirror.get("p0")
    assert there is not None
    assert there.load is not None
    assert there.load.running == 3


def test_another_process_is_told(both: Both) -> None:
    seen: list[str] = []
    both.mirror.on_incarnation(seen.append)
    both.registry.join("p0", {"incarnation": "one"})
    both.tell()
    assert seen == []
    both.registry.gate("p0", False, life="1")
    both.registry.gate("p0", False, life="2")
    both.registry.join("p0", {"incarnation": "two"})
    both.tell()
    assert seen == ["p0"]


def test_what_legs_meet_is_passed_on(both: Both) -> None:
    mirror = both.mirror
    mirror.leg_failed("p0", ConnectionRefusedError("no"))
    mirror.failed("p0")
    mirror.well("p0")
    mirror.hangs("p0", 3.0)
    assert both.notes == [
        ("trouble", "p0", True, "no"),
        ("failed", "p0"),
        ("well", "p0"),
        ("hangs", "p0", 3.0),
    ]
    ((_, body),) = Frames().feed(note_frame(both.notes[0]))
    assert orjson.loads(body) == ["trouble", "p0", True, "no"]


def test_a_hung_engine_is_told_to_who_has_legs_there(both: Both) -> None:
    seen: list[tuple[str, str]] = []
    both.mirror.on_hung(lambda name, why: seen.append((name, why)))
    both.mirror.hung("p0", "stands still")
    assert seen == [("p0", "stands still")]
