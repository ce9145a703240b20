"""Who goes with whom: the group that is used, who stays out and why, and what changes when one leaves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from orchestrator.clock import FakeClock
from orchestrator.core.types import Role
from orchestrator.engines.base import HttpCall, Probes
from orchestrator.engines.sglang import SGLang
from orchestrator.router.endpoints import Registry
from orchestrator.router.fitting import apart
from orchestrator.router.health import Answer, Health, Thresholds
from orchestrator.router.state import State
from orchestrator.topology.plan import InstancePlan, Plan


def instance(name: str, **changes: Any) -> InstancePlan:
    role = Role.PREFILL if name.startswith("p") else Role.DECODE
    probe = HttpCall("GET", "/ready")
    made = InstancePlan(
        name, role.value, role, "sglang", "m", "local", "http://127.0.0.1:1", (), {}, {"http": 1},
        Probes((probe,), probe),
    )  # fmt: skip
    return replace(made, **changes)


def state(name: str, page: int | None, joined: bool = True, **changes: Any) -> State:
    made = State(instance(name, **changes), SGLang(), Health(Thresholds()), 0.0, joined=joined)
    made.learned = {} if page is None else {"block_size": page}
    return made


def test_those_that_agree_are_let_be() -> None:
    assert apart([]) == {}
    assert apart([state("p0", 64), state("d0", 64), state("d1", None)]) == {}
    assert apart([state("p0", 64), state("p1", 1)]) == {}


def test_case_5_the_larger_group_is_used() -> None:
    found = apart([state("p0", 64), state("p1", 64), state("d0", 1), state("d1", 64)])
    assert found == {"d0": "block_size is 1 at d0 and 64 at p0 [page-size]"}
    found = apart([state("p0", 1), state("p1", 64), state("d0", 64), state("d1", 64)])
    assert found == {"p0": "block_size is 64 at d0 and 1 at p0 [page-size]"}


def test_where_nothing_fits_decode_stays_out() -> None:
    found = apart([state("p0", 64), state("d0", 1)])
    assert set(found) == {"d0"}


def test_among_equals_the_group_in_use_stays() -> None:
    fleet = [state("p0", 1), state("p1", 64), state("d0", 64), state("d1", 1)]
    assert set(apart(fleet)) == {"p1", "d0"}
    for one in fleet:
        one.apart = "once" if one.plan.name in ("p0", "d1") else ""
    assert set(apart(fleet)) == {"p0", "d1"}


def test_who_has_not_joined_or_serves_alone_counts_for_nothing() -> None:
    assert apart([state("p0", 64), state("d0", 1, joined=False)]) == {}
    assert apart([state("p0", 64), state("d0", 1, disaggregated=False)]) == {}
    assert apart([state("p0", 64), state("d0", 1, model="other")]) == {}


def test_a_silenced_rule_keeps_nobody_out() -> None:
    assert apart([state("p0", 64), state("d0", 1, silenced=("page-size",))]) == {}


class Counts:
    def __init__(self) -> None:
        self.changes: list[tuple[str, str, str]] = []

    def endpoint_changed(self, endpoint: str, to: str, why: str) -> None:
        self.changes.append((endpoint, to, why))

    def incarnation(self, endpoint: str) -> None: ...


class World:
    def __init__(self, *instances: InstancePlan) -> None:
        self.clock, self.counts = FakeClock(), Counts()
        self.plan = Plan("x", "t.yaml", ".", ".", 1, instances)
        self.registry = Registry(self.plan, self.clock, self.counts)

    def join(self, name: str, **facts: Any) -> None:
        while not self.registry.answered(name, Answer.OK, ""):
            self.clock.advance(0.2)
        self.registry.join(name, facts)

    def ready(self) -> list[str]:
        return [e.id for e in self.registry.snapshot(0.0).endpoints if e.ready]

    def why(self, name: str) -> str:
        found = self.registry.state(name)
        assert found is not None
        return found.why


def test_a_decode_that_does_not_fit_is_never_ready() -> None:
    world = World(*map(instance, ("p0", "d0", "d1")))
    world.join("p0", block_size=64)
    world.join("d0", block_size=64)
    world.join("d1", block_size=1)
    assert world.ready() == ["p0", "d0"]
    assert world.why("d1") == "block_size is 1 at d1 and 64 at p0 [page-size]"
    assert ("d1", "ready", "probe") not in world.counts.changes


def test_one_that_joined_first_makes_room_for_the_larger_group() -> None:
    world = World(*map(instance, ("p0", "d0", "d1")))
    world.join("d1", block_size=1)
    assert world.ready() == ["d1"]
    world.join("p0", block_size=64)
    assert world.ready() == ["p0"]
    world.join("d0", block_size=64)
    assert world.ready() == ["p0", "d0"]


def test_when_the_misfit_of_all_leaves_the_others_are_used() -> None:
    world = World(*map(instance, ("p0", "p1", "d0")))
    world.join("p0", block_size=64)
    world.join("d0", block_size=64)
    world.join("p1", block_size=1)
    assert world.ready() == ["p0", "d0"]
    world.registry.answered("d0", Answer.REFUSED, "connection refused")
    assert world.ready() == ["p0", "p1"]
    assert world.why("p1") == ""
    world.join("d0", block_size=1)
    assert world.ready() == ["p1", "d0"]
    world.registry.apply(replace(world.plan, instances=tuple(map(instance, ("p0", "p1")))))
    assert world.ready() == ["p0", "p1"]


def test_a_reload_that_silences_a_rule_lets_in_who_was_kept_out_by_it() -> None:
    world = World(*map(instance, ("p0", "d0")))
    world.join("p0", block_size=64)
    world.join("d0", block_size=1)
    assert world.ready() == ["p0"]
    quiet = tuple(instance(name, silenced=("page-size",)) for name in ("p0", "d0"))
    world.registry.apply(replace(world.plan, instances=quiet))
    assert world.ready() == ["p0", "d0"]


def test_an_engine_that_is_another_than_planned_does_not_join() -> None:
    world = World(instance("p0", expects={"id": "m"}), instance("d0", expects={"id": "m", "block_size": 64}))
    world.join("p0", id="other")
    world.join("d0", id="m", block_size=1)
    assert world.ready() == ["d0"]
    assert world.why("p0") == "p0 tells id other, planned was m [started-otherwise]"
    world.join("p0", id="m")
    assert world.ready() == ["p0", "d0"]


def test_a_group_that_is_drained_makes_room_for_the_other() -> None:
    fleet = [state("p0", 1), state("p1", 64), state("d0", 1), state("d1", 64)]
    fleet[0].apart = fleet[2].apart = "new"
    assert set(apart(fleet)) == {"p0", "d0"}
    fleet[1].gates = {"controller"}
    assert set(apart(fleet)) == {"p1", "d1"}
