"""The profile in force: what is remembered to try another on, when one is tried, refused, or used."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from orchestrator.clock import FakeClock
from orchestrator.core.contracts import Assign, Decision
from orchestrator.core.scheduling import ImmediateScheduler, SchedulingProfile
from orchestrator.core.types import End, Endpoint, Outcome, PathKind, RequestView, Role, Route, Snapshot
from orchestrator.engines.base import HttpCall, Probes
from orchestrator.errors import PolicyError, TopologyError
from orchestrator.policy.guard import STALLED
from orchestrator.policy.profiles import complete
from orchestrator.policy.testing import make_endpoint, make_request
from orchestrator.router.admin import Reload
from orchestrator.router.health import Answer
from orchestrator.router.policies import KEPT, REFUSED, Policies
from orchestrator.router.serve import Router
from orchestrator.topology.plan import InstancePlan, Plan

DATA = Path(__file__).resolve().parent.parent / "data" / "router"
MakePlan = Callable[..., Plan]

BROKEN = complete({"unified": {"filters": [{"use": "./own.py:Mine"}]}})
FINE = complete("least-requests")


def serves(kind: PathKind, endpoint: Endpoint) -> bool:
    return True


def write(folder: Path, body: str) -> None:
    source = f"class Mine:\n    def filter(self, request, candidates, context):\n        {body}\n"
    (folder / "own.py").write_text(source)


class Rig:
    """A scheduler of two endpoints behind the policies, as the router puts them together."""

    def __init__(self, folder: Path, scheduling: Any = FINE) -> None:
        self.folder, self.clock = str(folder), FakeClock()
        self.told: list[PolicyError] = []
        self.policies = Policies(
            scheduling, self.folder, self.clock.now_s, lambda name, e: self.told.append(e)
        )
        profile = self.policies.watched()
        assert isinstance(profile, SchedulingProfile)
        self.made = ImmediateScheduler(profile, rng=Random(0))
        self.made.observe(Snapshot(0.0, (make_endpoint("a"), make_endpoint("b"))), 0.0)
        self.over = self.policies.over(self.made)

    def offer(self, n: int = 5) -> Sequence[Decision]:
        first = len(self.policies.recent)
        return [
            d for i in range(n) for d in self.over.submit(make_request(id=f"{first + i}"), self.clock.now_s())
        ]

    def tried(self, scheduling: Any, **options: Any) -> str:
        return self.policies.tried(scheduling, self.folder, self.made, serves, **options)


def test_the_last_requests_are_remembered(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.offer(KEPT + 10)
    assert [r.id for r in rig.policies.recent] == [str(i) for i in range(10, KEPT + 10)]


def test_the_port_goes_through_to_the_scheduler(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    (decision,) = rig.offer(1)
    assert isinstance(decision, Assign)
    assert getattr(rig.over, "heeds", None) == rig.made.heeds
    assert rig.over.due_s() is None
    assert rig.over.tick(0.0) == rig.over.cancel("0", 0.0) == ()
    assert rig.over.observe(Snapshot(1.0, (make_endpoint("a"),)), 1.0) == ()
    rig.over.finish(Outcome("0", End.COMPLETED, 200, route=decision.route), 0.0)
    assert len(rig.made.ledger) == 0


def test_decisions_are_timed_and_a_policy_that_stalls_is_named(tmp_path: Path) -> None:
    write(tmp_path, "self.stall(); return candidates")
    rig = Rig(tmp_path, BROKEN)
    method: Any = rig.made.profile.unified.filters[0].policy.filter
    method.__self__.stall = lambda: rig.clock.advance(0.006)
    rig.offer(1)
    assert rig.told == []
    rig.offer(3)
    assert [error.reason for error in rig.told] == [STALLED] * 3
    assert rig.told[-1].message.endswith("left out for 30 s")


def test_the_profile_in_use_is_not_tried(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.offer()
    assert rig.tried(dict(FINE)) == "the profile is the one in use"


def test_another_profile_is_tried_on_what_was_recorded(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    assert rig.tried(complete("round-robin")) == "no request was recorded yet: it was built, and not tried"
    rig.offer()
    assert rig.tried(complete("round-robin")).startswith("tried on 5 recorded requests: ")


def test_one_that_fails_is_refused_with_what_it_said(tmp_path: Path) -> None:
    write(tmp_path, "return candidates.nearest")
    rig = Rig(tmp_path)
    rig.offer()
    with pytest.raises(TopologyError) as caught:
        rig.tried(BROKEN)
    assert caught.value.reason == REFUSED
    assert "AttributeError: 'tuple' object has no attribute 'nearest' (" in caught.value.message
    assert "own.py:3) (5 times)" in caught.value.message
    assert rig.told == []
    assert "has no attribute 'nearest'" in rig.tried(BROKEN, force=True)


def test_one_that_does_not_build_is_refused(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    with pytest.raises(TopologyError, match=r"own\.py"):
        rig.tried(BROKEN)


def test_one_of_another_mode_needs_another_scheduler(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    with pytest.raises(TopologyError) as caught:
        rig.tried(complete("slo"))
    assert "runs a profile of mode 'immediate', and this one is 'late'" in caught.value.message


def test_an_edited_file_is_another_profile_though_its_name_is_the_same(tmp_path: Path) -> None:
    write(tmp_path, "return candidates")
    rig = Rig(tmp_path, BROKEN)
    rig.offer()
    assert rig.tried(BROKEN) == "the profile is the one in use"
    write(tmp_path, "return candidates[:0]")
    with pytest.raises(TopologyError, match="it would refuse 5 of 5 recorded requests"):
        rig.tried(BROKEN)


def test_what_is_only_tried_does_not_touch_the_state_of_what_is_in_use(tmp_path: Path) -> None:
    rig = Rig(tmp_path, complete("round-robin"))
    route = [d.route for d in rig.offer(3) if isinstance(d, Assign)]
    rig.tried(complete("least-requests"))
    (decision,) = rig.offer(1)
    assert isinstance(decision, Assign)
    assert [r.decode for r in (*route, decision.route)] == ["a", "b", "a", "b"]


def test_using_another_puts_it_in_force(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    profile = rig.policies.use(complete("round-robin"), rig.folder)
    assert profile.unified.picker.name == "round-robin"  # type: ignore[union-attr]
    assert rig.tried(complete("round-robin")) == "the profile is the one in use"


# The router


def instance(name: str) -> InstancePlan:
    probe = HttpCall("GET", "/ready")
    return InstancePlan(
        name=name,
        pool="prefill" if name == "p0" else "decode",
        role=Role.PREFILL if name == "p0" else Role.DECODE,
        engine="./stub.py:Stub",
        model="m",
        node="local",
        url="http://127.0.0.1:1",
        argv=(),
        env={},
        ports={"http": 1},
        probes=Probes(ready=(probe,), live=probe),
    )


class Desk:
    """A router whose next plan has another profile."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.router = Router(plan, reread=lambda: self.plan, clock=FakeClock())
        for state in tuple(self.router.registry.states()):
            while not self.router.registry.answered(state.plan.name, Answer.OK, ""):
                pass
            self.router.registry.join(state.plan.name, {})
        for i in range(4):
            view = RequestView(str(i), "m", PathKind.CHAT, 0.0, prompt_tokens=5, max_tokens=5)
            self.router.policies.recent.append(view)

    def next(self, scheduling: Any) -> None:
        assert self.plan.router is not None
        self.plan = replace(self.plan, router=replace(self.plan.router, scheduling=complete(scheduling)))

    @property
    def in_force(self) -> str:
        return self.router.scheduler.profile.decode.picker.name

    def reloads(self) -> list[str]:
        lines = self.router.metrics.render().decode().splitlines()
        return [line for line in lines if line.startswith("pdctl_reloads_total")]


@pytest.fixture
async def desk(make_plan: MakePlan, tmp_path: Path) -> Desk:
    shutil.copy(DATA / "stub.py", tmp_path)
    plan = make_plan(instance("p0"), instance("d0"), instance("d1"), scheduling=FINE)
    return Desk(replace(plan, base_dir=str(tmp_path)))


async def test_a_reload_tries_the_profile_and_says_what_came_of_it(desk: Desk) -> None:
    desk.next("round-robin")
    told = desk.router.reload()
    assert str(told["policies"]).startswith("tried on 4 recorded requests")
    assert desk.in_force == "round-robin"
    await desk.router.close()


async def test_a_bad_profile_leaves_the_last_good_one_in_force(desk: Desk, tmp_path: Path) -> None:
    write(tmp_path, "raise LookupError('no rack')")
    desk.next({"decode": {"filters": ["./own.py:Mine"], "picker": "round-robin"}})
    with pytest.raises(TopologyError, match="LookupError: no rack"):
        desk.router.reload()
    assert desk.in_force == "max-score"
    assert 'pdctl_reloads_total{result="refused"} 1.0' in desk.reloads()
    told = desk.router.reload(Reload(force=True))
    assert "LookupError: no rack" in told["policies"]
    assert desk.in_force == "round-robin"
    await desk.router.close()


async def test_a_dry_run_changes_nothing(desk: Desk, tmp_path: Path) -> None:
    desk.next("round-robin")
    told = desk.router.reload(Reload(dry_run=True))
    assert told == {"policies": told["policies"]}
    told = desk.router.reload(Reload(dry_run=True, scheduling=complete("random")))
    assert str(told["policies"]).startswith("tried on 4 recorded requests")
    with pytest.raises(TopologyError, match="runs a profile of mode 'immediate'"):
        desk.router.reload(Reload(dry_run=True, scheduling=complete("slo")))
    assert desk.in_force == "max-score"
    assert not any("refused" in line and not line.endswith(" 0.0") for line in desk.reloads())
    await desk.router.close()


async def test_a_route_is_a_route(desk: Desk) -> None:
    (decision,) = desk.router.policies.over(desk.router.scheduler).submit(desk.router.policies.recent[0], 0.0)
    assert isinstance(decision, Assign)
    assert decision.route in (Route("d0", "p0"), Route("d1", "p0"))
    await desk.router.close()
