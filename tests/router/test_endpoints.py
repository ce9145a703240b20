"""The registry, its state, adapters and listeners: joins, gates, incarnations, hangs, reloads, snapshots."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.clock import FakeClock
from orchestrator.core.breaker import TRIP_AFTER
from orchestrator.core.ramp import RAMP_FROM
from orchestrator.core.types import Inflight, Load, PathKind, Role
from orchestrator.engines.base import HttpCall, Probes
from orchestrator.errors import TopologyError
from orchestrator.router.ask import refused
from orchestrator.router.endpoints import Registry
from orchestrator.router.gates import GateFile
from orchestrator.router.health import Answer
from orchestrator.topology.plan import InstancePlan, Plan

MakePlan = Callable[..., Plan]


class Counts:
    """Remembers what the registry reported."""

    def __init__(self) -> None:
        self.changes: list[tuple[str, str, str]] = []
        self.incarnations: list[str] = []

    def endpoint_changed(self, endpoint: str, to: str, why: str) -> None:
        self.changes.append((endpoint, to, why))

    def alarm(self, endpoint: str, alarm: str, times: float) -> None:
        self.alarms = [*getattr(self, "alarms", ()), (endpoint, alarm, times)]

    def incarnation(self, endpoint: str) -> None:
        self.incarnations.append(endpoint)


def instance(name: str, role: Role = Role.PREFILL, **changes: object) -> InstancePlan:
    probe = HttpCall("GET", "/ready")
    made = InstancePlan(
        name=name,
        pool=str(role),
        role=role,
        engine="./stub.py:Stub",
        model="m",
        node="local",
        url="http://127.0.0.1:1",
        argv=(),
        env={},
        ports={"http": 1},
        probes=Probes(ready=(probe,), live=probe),
        facts={"bootstrap_port": 8998, "block_size": 1},
    )
    return replace(made, **changes)  # type: ignore[arg-type]


class World:
    """A registry over two instances, with all that it tells."""

    def __init__(self, make_plan: MakePlan, *instances: InstancePlan) -> None:
        self.make_plan = make_plan
        self.clock = FakeClock()
        self.counts = Counts()
        self.inflight: dict[str, Inflight] = {}
        self.plan = plan = make_plan(*(instances or (instance("p0"), instance("d0", Role.DECODE))))
        self.registry = Registry(
            plan, self.clock, self.counts, inflight=lambda e: self.inflight.get(e, Inflight())
        )
        self.void: list[str] = []
        self.suspects: list[str] = []
        self.changed = 0
        self.registry.on_incarnation(self.void.append)
        self.registry.on_suspect(self.suspects.append)
        self.registry.on_change(self._count)

    def _count(self) -> None:
        self.changed += 1

    def join(self, name: str, **facts: object) -> None:
        """Good answers until discovery is due, and what it tells."""
        while not self.registry.answered(name, Answer.OK, ""):
            self.clock.advance(0.2)
        self.registry.join(name, facts)

    def ready(self) -> set[str]:
        return {e.id for e in self.registry.snapshot(self.clock.now_s()).endpoints if e.ready}


@pytest.fixture
def world(make_plan: MakePlan) -> World:
    return World(make_plan)


def test_nothing_is_ready_before_its_own_probe(world: World) -> None:
    assert world.ready() == set()
    assert world.registry.models() == ("m",)


def test_an_endpoint_joins_when_discovery_is_done_with_its_facts(world: World) -> None:
    world.join("p0", block_size=64, max_model_len=4096, incarnation="a")
    assert world.ready() == {"p0"}
    endpoint = world.registry.get("p0")
    assert endpoint is not None
    assert endpoint.block_size == 64, "what the engine tells overrules the plan"
    assert endpoint.max_model_len == 4096
    assert endpoint.incarnation == "a"
    assert endpoint.facts["bootstrap_port"] == 8998
    assert world.counts.changes == [("p0", "ready", "probe")]
    with pytest.raises(TypeError):
        endpoint.facts["block_size"] = 1  # type: ignore[index]


def test_good_probes_alone_do_not_join(world: World) -> None:
    for _ in range(5):
        world.registry.answered("p0", Answer.OK, "")
        world.registry.not_yet("p0", "discovery bootstrap: nobody registered")
    assert world.ready() == set()
    state = world.registry.state("p0")
    assert state is not None
    assert "nobody registered" in state.why


def test_the_snapshot_is_the_same_object_until_something_changes(world: World) -> None:
    first = world.registry.snapshot(1.0)
    assert world.registry.snapshot(2.0) is first
    world.join("p0")
    second = world.registry.snapshot(3.0)
    assert second is not first
    assert second.endpoints[1] is first.endpoints[1], "an endpoint that did not change is not made anew"
    assert world.changed > 0


def test_leaving_and_rejoining_the_same_process_keeps_what_is_believed(world: World) -> None:
    world.join("p0", incarnation="a")
    world.registry.answered("p0", Answer.UNAVAILABLE, "draining")
    assert world.ready() == set()
    world.join("p0", incarnation="a")
    assert world.ready() == {"p0"}
    assert world.void == []
    assert world.counts.incarnations == []


def test_case_36_another_incarnation_drops_what_was_believed(world: World) -> None:
    world.join("p0", incarnation="a")
    world.registry.loaded("p0", Load(at_s=0.0, running=9))
    world.registry.answered("p0", Answer.UNAVAILABLE, "starting")
    world.join("p0", incarnation="b")
    assert world.void == ["p0"]
    assert world.counts.incarnations == ["p0"]
    endpoint = world.registry.get("p0")
    assert endpoint is not None
    assert endpoint.incarnation == "b"
    assert endpoint.load is None, "the load of the dead process is gone"


def test_a_refused_connection_is_a_new_process_where_the_engine_tells_none(world: World) -> None:
    world.join("p0")
    first = world.registry.get("p0")
    world.registry.answered("p0", Answer.UNAVAILABLE, "paused")
    world.join("p0")
    assert world.void == [], "a pause is no restart"
    world.registry.answered("p0", Answer.REFUSED, "refused")
    world.join("p0")
    assert world.void == ["p0"]
    again = world.registry.get("p0")
    assert first is not None
    assert again is not None
    assert first.incarnation != again.incarnation


def test_a_refused_connection_is_no_new_process_if_the_engine_says_it_is_the_same(world: World) -> None:
    world.join("p0", incarnation="a")
    world.registry.answered("p0", Answer.REFUSED, "refused")
    world.join("p0", incarnation="a")
    assert world.void == []


def test_a_counter_running_backwards_is_a_new_process(world: World) -> None:
    world.join("p0")
    world.registry.loaded("p0", Load(at_s=0.0, progress=100.0))
    world.registry.loaded("p0", Load(at_s=1.0, progress=100.0))
    assert world.ready() == {"p0"}
    world.registry.loaded("p0", Load(at_s=2.0, progress=3.0))
    assert world.ready() == set(), "it joins anew, by its own probes"
    assert world.suspects == ["p0"]
    world.join("p0")
    assert world.void == ["p0"]
    assert ("p0", "out", "incarnation") in world.counts.changes


def test_a_counter_is_believed_over_a_name_that_did_not_change(world: World) -> None:
    world.join("p0", incarnation="a")
    world.registry.loaded("p0", Load(at_s=0.0, progress=100.0))
    world.registry.loaded("p0", Load(at_s=1.0, progress=1.0))
    world.join("p0", incarnation="a")
    assert world.void == ["p0"]
    endpoint = world.registry.get("p0")
    assert endpoint is not None
    assert endpoint.incarnation not in ("", "a"), "whoever compares names has to see it"


def test_a_load_that_tells_another_incarnation_is_a_new_process(world: World) -> None:
    world.join("p0")
    world.registry.loaded("p0", Load(at_s=0.0, incarnation="x", progress=100.0))
    world.registry.loaded("p0", Load(at_s=1.0, incarnation="x", progress=1.0))
    assert world.ready() == {"p0"}, "its own account goes before the counter"
    world.registry.loaded("p0", Load(at_s=1.0, incarnation="y", progress=200.0))
    assert world.ready() == set()


def test_the_load_reaches_the_snapshot(world: World) -> None:
    world.join("p0")
    world.registry.loaded("p0", Load(at_s=0.0, running=3))
    endpoint = world.registry.get("p0")
    assert endpoint is not None
    assert endpoint.load == Load(at_s=0.0, running=3)


def test_a_gated_endpoint_is_given_nothing_and_comes_back(world: World) -> None:
    world.join("p0")
    assert world.registry.gate("p0", True)
    assert world.ready() == set()
    assert world.registry.gate("p0", True), "twice is once"
    assert world.registry.gate("p0", False)
    assert world.ready() == {"p0"}
    assert world.counts.changes[1:] == [("p0", "out", "gate"), ("p0", "ready", "ungate")]
    assert world.suspects == ["p0"]
    assert not world.registry.gate("nobody", True)


def test_what_two_keep_closed_is_open_when_both_have_opened_it(world: World) -> None:
    world.join("p0")
    world.registry.gate("p0", True)
    world.registry.gate("p0", True, by="controller")
    world.registry.gate("p0", False, by="controller")
    assert world.ready() == set()
    world.registry.gate("p0", False)
    assert world.ready() == {"p0"}


def test_an_operators_gate_outlives_the_router_and_another_definition(
    make_plan: MakePlan, tmp_path: Path
) -> None:
    def registry(*instances: InstancePlan) -> Registry:
        file = GateFile(tmp_path / "gates.json")
        return Registry(make_plan(*instances), FakeClock(), Counts(), gates=file)

    first = registry(instance("p0"), instance("p1"))
    first.gate("p0", True)
    first.gate("p0", True, by="controller")
    first.gate("p1", True)
    second = registry(instance("p0"), instance("p1"))
    assert [s.gates for s in second.states()] == [{"operator", "controller"}, {"operator"}]
    second.apply(make_plan(instance("p0", url="http://127.0.0.1:2")))
    assert [s.gates for s in second.states()] == [{"operator"}], "the controller will say so anew"
    assert [s.gates for s in registry(instance("p0"), instance("p1")).states()] == [{"operator"}, set()]


def test_case_40_what_answers_no_probe_for_long_hangs(world: World) -> None:
    world.registry.answered("d0", Answer.SLOW, "slow")
    world.clock.advance(1000.0)
    assert not world.registry.hang("d0"), "it may be loading: nobody knows it yet"
    world.join("d0")
    assert not world.registry.hang("d0")
    world.registry.answered("d0", Answer.SLOW, "no answer in time")
    world.clock.advance(119.0)
    assert not world.registry.hang("d0")
    world.clock.advance(2.0)
    world.registry.answered("d0", Answer.SLOW, "no answer in time")
    assert "not been answered for 121 s (no answer in time)" in world.registry.hang("d0")
    for excused in (Answer.UNAVAILABLE, Answer.REJECTED, Answer.REFUSED):
        world.registry.answered("d0", excused, "")
        assert not world.registry.hang("d0")


def test_case_39_who_computes_prompts_may_be_silent_for_longer_than_a_prefill(world: World) -> None:
    world.join("p0")
    world.clock.advance(359.0)
    world.registry.answered("p0", Answer.SLOW, "")
    assert not world.registry.hang("p0")
    world.clock.advance(2.0)
    assert world.registry.hang("p0")


def test_a_gate_holds_through_a_restart_behind_it(world: World) -> None:
    world.join("p0", incarnation="a")
    world.registry.gate("p0", True)
    world.registry.answered("p0", Answer.REFUSED, "refused")
    world.join("p0", incarnation="b")
    assert world.ready() == set()
    assert world.void == ["p0"]
    world.registry.gate("p0", False)
    assert world.ready() == {"p0"}


def test_the_controller_tells_of_a_process_that_was_replaced_unnoticed(world: World) -> None:
    world.join("p0")
    world.registry.gate("p0", False, "1")
    assert world.ready() == {"p0"}, "its first number is only remembered"
    world.registry.gate("p0", True)
    world.registry.gate("p0", False, "2")
    assert world.ready() == set()
    world.join("p0")
    assert world.void == ["p0"]


def test_the_controller_tells_nothing_new_of_a_restart_that_was_noticed(world: World) -> None:
    world.join("p0")
    world.registry.gate("p0", False, "1")
    world.registry.gate("p0", True)
    world.registry.answered("p0", Answer.REFUSED, "refused")
    world.join("p0")
    world.registry.gate("p0", False, "2")
    assert world.ready() == {"p0"}
    assert world.void == ["p0"]


def test_what_an_endpoint_serves_is_its_adapters_word(world: World) -> None:
    endpoint = world.registry.get("p0")
    assert endpoint is not None
    assert world.registry.serves(PathKind.CHAT, endpoint)
    assert not world.registry.serves(PathKind.EMBED, endpoint)
    assert not world.registry.serves(PathKind.CHAT, replace(endpoint, id="removed"))


def test_a_hint_of_the_data_path_probes_at_once(world: World) -> None:
    world.join("p0")
    world.registry.leg_failed("p0", TimeoutError())
    assert world.ready() == {"p0"}, "a hint alone takes nobody out"
    assert world.suspects == ["p0"]
    world.registry.leg_failed("gone", TimeoutError())


def test_a_connection_refused_to_a_request_leaves_at_once(world: World) -> None:
    world.join("p0")
    wrapped = RuntimeError("no connection")
    wrapped.__cause__ = ConnectionRefusedError(111, "refused")
    world.registry.leg_failed("p0", wrapped)
    assert world.ready() == set()


def test_refusals_are_found_however_they_are_wrapped() -> None:
    inner = ConnectionRefusedError()
    context = RuntimeError()
    context.__context__ = inner
    assert refused(inner)
    assert refused(context)
    assert refused(ExceptionGroup("all addresses", [OSError(), inner]))
    assert not refused(TimeoutError())


def test_case_39_a_busy_endpoint_is_given_time(world: World) -> None:
    world.join("p0")
    world.inflight["p0"] = Inflight(requests=1)
    for _ in range(20):
        world.clock.advance(1.0)
        world.registry.answered("p0", Answer.SLOW, "slow")
    assert world.ready() == {"p0"}
    del world.inflight["p0"]
    for _ in range(3):
        world.registry.answered("p0", Answer.SLOW, "slow")
    assert world.ready() == set()


def read_load(world: World, seconds: int, name: str = "d0", **load: float) -> None:
    for _ in range(seconds):
        world.clock.advance(1.0)
        world.registry.loaded(name, Load(at_s=world.clock.now_s(), **load))  # type: ignore[arg-type]


def test_case_40_a_scheduler_that_died_behind_a_healthy_server_is_found(world: World) -> None:
    world.join("d0")
    read_load(world, 119, running=2, progress=50.0)
    assert world.ready() == {"d0"}
    read_load(world, 3, running=2, progress=50.0)
    assert world.ready() == set()
    state = world.registry.state("d0")
    assert state is not None
    assert state.why.startswith("has work, but none got done for 12")
    read_load(world, 1, running=2, progress=51.0)
    assert world.ready() == {"d0"}
    assert [c[1:] for c in world.counts.changes[1:]] == [("out", "hung"), ("ready", "progress")]
    assert world.void == []


def test_an_engine_that_takes_our_requests_and_counts_none_hangs_too(world: World) -> None:
    world.join("d0")
    world.inflight["d0"] = Inflight(requests=1)
    read_load(world, 130, running=0, progress=50.0)
    assert world.ready() == set()


def test_idle_is_not_hung_nor_is_what_waits_for_a_peer(world: World) -> None:
    world.join("d0")
    read_load(world, 500, running=0, progress=50.0)
    world.inflight["d0"] = Inflight(requests=1)
    read_load(world, 500, running=0, waiting=1, progress=50.0)
    assert world.ready() == {"d0"}


@pytest.mark.parametrize("role", [Role.PREFILL, Role.UNIFIED])
def test_case_39_one_long_prefill_counted_at_its_end_is_not_hung(make_plan: MakePlan, role: Role) -> None:
    """It has until its own deadline, and as long as that is not over the endpoint stays in."""
    world = World(make_plan, instance("p0", role))
    router = world.plan.router
    assert router is not None
    world.join("p0")
    world.inflight["p0"] = Inflight(requests=1, prefill_tokens=100_000)
    read_load(world, round(router.timeouts.prefill_s) + 5, "p0", running=1, progress=50.0)
    assert world.ready() == {"p0"}
    read_load(world, round(0.2 * router.timeouts.prefill_s), "p0", running=1, progress=50.0)
    assert world.ready() == set()


def test_a_reload_with_another_deadline_changes_how_long_a_prefill_may_take(world: World) -> None:
    world.join("p0")
    plan = world.plan
    assert plan.router is not None
    longer = replace(plan.router, timeouts=replace(plan.router.timeouts, prefill_s=1000.0))
    world.registry.apply(replace(plan, router=longer))
    read_load(world, 1190, "p0", running=1, progress=50.0)
    assert world.ready() == {"p0"}


def test_a_long_prefill_is_not_hung_while_it_counts_its_chunks(world: World) -> None:
    world.join("d0")
    for chunk in range(20):
        read_load(world, 60, running=1, progress=float(chunk))
    assert world.ready() == {"d0"}


def test_an_engine_that_counts_nothing_is_never_taken_to_hang(world: World) -> None:
    world.join("d0")
    read_load(world, 500, running=3)
    assert world.ready() == {"d0"}


def test_a_hung_engine_that_is_restarted_starts_afresh(world: World) -> None:
    world.join("d0")
    read_load(world, 130, running=2, progress=50.0)
    world.registry.answered("d0", Answer.REFUSED, "refused")
    world.join("d0")
    assert world.ready() == {"d0"}


def test_a_reload_keeps_what_is_unchanged_and_changes_the_rest(world: World) -> None:
    world.join("p0")
    world.join("d0")
    moved = instance("d0", Role.DECODE, url="http://127.0.0.1:2")
    world.registry.apply(world.make_plan(instance("p0", labels={"rack": "r1"}), moved, instance("p1")))
    assert world.ready() == {"p0"}
    assert [e.id for e in world.registry.snapshot(0.0).endpoints] == ["p0", "d0", "p1"]
    endpoint = world.registry.get("p0")
    assert endpoint is not None
    assert endpoint.labels == {"rack": "r1"}
    assert world.void == ["d0"]


def test_instances_of_one_engine_share_its_adapter(make_plan: MakePlan) -> None:
    other = instance("d1", Role.DECODE, options={"dialect": "x"})
    registry = World(make_plan, instance("p0"), instance("d0", Role.DECODE), other).registry
    assert registry.engine("p0") is registry.engine("d0")
    assert registry.engine("p0") is not registry.engine("d1")


def test_a_removed_endpoint_keeps_its_adapter_for_the_legs_it_still_has(world: World) -> None:
    world.registry.apply(world.make_plan(instance("p0")))
    assert world.registry.get("d0") is None
    assert world.registry.engine("d0").name == "stub"
    with pytest.raises(KeyError):
        world.registry.engine("never")


def test_case_44_a_plan_that_does_not_load_changes_nothing(world: World) -> None:
    world.join("p0")
    with pytest.raises(TopologyError, match="no-such-engine"):
        world.registry.apply(world.make_plan(instance("p0"), instance("x", engine="no-such-engine")))
    assert world.ready() == {"p0"}
    assert world.registry.get("x") is None


def test_case_20_what_hangs_by_its_legs_is_out_until_it_is_tried_again(world: World) -> None:
    world.join("d0")
    read_load(world, 1, running=1, progress=50.0)
    assert world.registry.moved_s("d0") == world.clock.now_s()
    world.registry.hangs("d0", 20.0)
    world.registry.hangs("d0", 21.0)
    assert world.ready() == set()
    world.clock.advance(4.0)
    world.registry.answered("d0", Answer.OK, "")
    assert world.ready() == set()
    world.clock.advance(1.1)
    world.registry.answered("d0", Answer.OK, "")
    assert world.ready() == {"d0"}
    world.registry.hangs("d0", 20.0)
    world.clock.advance(6.0)
    world.registry.answered("d0", Answer.OK, "")
    assert world.ready() == set(), "twice as long the second time"
    world.clock.advance(5.0)
    world.registry.answered("d0", Answer.OK, "")
    world.registry.well("d0")
    assert [c[1:] for c in world.counts.changes[1:]] == [
        ("out", "hung"), ("ready", "half-open"), ("out", "hung"), ("ready", "half-open"),
    ]  # fmt: skip


def test_an_engine_that_counts_nothing_has_no_counters_to_go_by(world: World) -> None:
    world.join("d0")
    assert world.registry.moved_s("d0") == float("-inf")
    assert world.registry.moved_s("nobody") == float("-inf")


def test_those_who_run_legs_are_told_of_counters_that_stand_still(world: World) -> None:
    told: list[tuple[str, str]] = []
    world.registry.on_hung(lambda name, why: told.append((name, why)))
    world.join("d0")
    read_load(world, 125, running=2, progress=50.0)
    assert [name for name, _ in told] == ["d0"]


def test_the_last_of_its_role_stays_though_requests_fail_there(world: World) -> None:
    world.join("d0")
    world.join("p0")
    for _ in range(3 * TRIP_AFTER):
        world.registry.failed("d0")
    assert world.ready() == {"d0", "p0"}


def test_an_endpoint_where_requests_fail_in_a_row_is_tried_with_one_at_a_time(make_plan: MakePlan) -> None:
    world = World(make_plan, instance("d0", Role.DECODE), instance("d1", Role.DECODE))
    world.join("d0")
    world.join("d1")
    for _ in range(TRIP_AFTER - 1):
        world.registry.failed("d0")
    world.registry.well("d0")
    world.registry.failed("d0")
    assert world.ready() == {"d0", "d1"}
    for _ in range(TRIP_AFTER):
        world.registry.failed("d0")
    assert world.ready() == {"d1"}
    world.clock.advance(5.1)
    world.registry.answered("d0", Answer.OK, "")
    assert world.ready() == {"d0", "d1"}
    endpoint = world.registry.get("d0")
    assert endpoint is not None
    assert endpoint.cap == 1
    world.registry.failed("d0")
    assert world.ready() == {"d1"}, "the one that was tried failed"
    world.clock.advance(10.1)
    world.registry.answered("d0", Answer.OK, "")
    world.registry.well("d0")
    world.registry.answered("d0", Answer.OK, "")
    endpoint = world.registry.get("d0")
    assert endpoint is not None
    assert endpoint.cap == RAMP_FROM


def test_case_45_an_endpoint_that_is_new_has_a_bound_that_grows_and_ends(world: World) -> None:
    world.join("d0")
    bounds = []
    for _ in range(12):
        world.registry.answered("d0", Answer.OK, "")
        endpoint = world.registry.get("d0")
        assert endpoint is not None
        bounds.append(endpoint.cap)
        world.clock.advance(1.0)
    assert bounds[:3] == [RAMP_FROM, 2 * RAMP_FROM, 4 * RAMP_FROM]
    assert bounds[-1] is None


def test_those_kept_apart_are_shown_and_one_that_serves_alone_is_out(make_plan: MakePlan) -> None:
    world = World(make_plan, instance("p0"), instance("d0", Role.DECODE), instance("u0", Role.UNIFIED))
    for name in ("p0", "d0", "u0"):
        world.join(name)
    world.registry.keep_apart({"p0": frozenset({"d0"}), "u0": frozenset({"u0"})})
    assert world.ready() == {"p0", "d0"}
    endpoint = world.registry.get("p0")
    assert endpoint is not None
    assert endpoint.shuns == {"d0"}
    world.registry.keep_apart({})
    assert world.ready() == {"p0", "d0", "u0"}


def test_what_must_not_happen_to_kv_is_told_once_for_each_time(world: World) -> None:
    told: list[tuple[str, str]] = []
    world.registry.on_alarm(lambda name, alarm: told.append((name, alarm)))
    world.join("p0")
    for count in (3.0, 3.0, 5.0, 5.0):
        read_load(world, 1, "p0", alarms={"expired": count})  # type: ignore[arg-type]
    assert told == [("p0", "expired")]
    assert world.counts.alarms == [("p0", "expired", 2.0)]
