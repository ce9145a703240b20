"""Histories of a whole deployment through the supervisor, over fake processes, probes and router."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from orchestrator.clock import SystemClock
from orchestrator.core.lifecycle import State
from orchestrator.core.restart import RestartPolicy
from orchestrator.core.types import Role
from orchestrator.engines.base import HttpCall
from orchestrator.errors import LaunchError
from orchestrator.launch.paths import StateDir
from orchestrator.launch.shell import Shell, Tuning
from orchestrator.launch.state import Store
from orchestrator.launch.status import InstanceStatus, Phase, Status
from orchestrator.launch.supervisor import Supervisor
from orchestrator.launch.testing import FakeLauncher, FakeProber, FakeRouterLink, instance, plan, router
from orchestrator.topology.plan import InstancePlan, OtherRole, Plan, parse

FAST = Tuning(
    restart=RestartPolicy(base_s=0.001, cap_s=0.001),
    probe_first_s=0.0,
    probe_most_s=0.001,
    door_s=0.001,
    join_s=0.05,
    advice_s=0.01,
    leave_s=0.0,
    failed_leave_s=0.0,
    housekeeping_s=3600.0,
)
GUARD_S = 20.0


class Stage:
    """A supervisor in the middle of fakes; everything that happens goes into one `story`."""

    def __init__(self, root: Path) -> None:
        self.state = StateDir(root)
        self.state.create()
        self.story: list[str] = []
        self.launcher = FakeLauncher(story=self.story)
        self.prober = FakeProber()
        self.link = FakeRouterLink(story=self.story)

    @asynccontextmanager
    async def supervisor(self) -> AsyncIterator[Supervisor]:
        self.store = Store(self.state.db)
        rng = Random(1)
        shell = Shell(
            self.state, self.store, self.launcher, self.prober, self.link, SystemClock(), rng, tuning=FAST
        )
        supervisor = Supervisor(shell)
        try:
            await supervisor.recover()
            yield supervisor
        finally:
            await supervisor.close()
            self.store.close()

    def plan(self, *instances: InstancePlan, with_router: bool = False, **changes: object) -> Plan:
        front = router(8000, 8001, ["router"], digest="r", **changes) if with_router else None
        return plan(self.state.root, *instances, router=front)

    def published(self) -> list[str]:
        return [f"{i.name}={i.digest}" for i in parse(self.state.plan.read_bytes()).instances]


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path / "state")


def unit(name: str, digest: str = "a", **changes: object) -> InstancePlan:
    role = {"p": Role.PREFILL, "d": Role.DECODE}[name[0]]
    number = 10 * (role is Role.DECODE) + int(name[1:])
    return instance(name, role, 9000 + number, ["engine"], digest=digest, max_restarts=2, **changes)


async def until(supervisor: Supervisor, *phases: Phase) -> Status:
    """The first status in one of `phases`."""
    async with asyncio.timeout(GUARD_S), aclosing(supervisor.watch(0.05)) as statuses:
        async for status in statuses:
            if status.phase in phases:
                return status
    raise AssertionError("stopped before")


async def until_state(supervisor: Supervisor, name: str, state: State) -> InstanceStatus:
    async with asyncio.timeout(GUARD_S), aclosing(supervisor.watch(0.01)) as statuses:
        async for status in statuses:
            for found in status.instances:
                if found.name == name and found.state is state:
                    return found
    raise AssertionError("stopped before")


def one(supervisor: Supervisor, name: str) -> InstanceStatus:
    return next(i for i in supervisor.status().instances if i.name == name)


async def eventually(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(GUARD_S):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_everything_starts_in_parallel_and_the_router_at_once(stage: Stage) -> None:
    stage.prober.said = {"p0": "loading", "d0": "loading"}
    async with stage.supervisor() as supervisor:
        supervisor.apply(stage.plan(unit("p0"), unit("d0"), with_router=True))
        await until_state(supervisor, "router", State.READY)
        starts = [line for line in stage.story if line.startswith("start")]
        assert starts == ["start p0#1", "start d0#1", "start router#1"]
        assert supervisor.phase is Phase.WORKING
        stage.prober.said.clear()
        status = await until(supervisor, Phase.READY)
        assert status.url == "http://127.0.0.1:8000"
        assert {i.state for i in status.instances} == {State.READY}
        assert stage.story[0] == "reload", "the plan is there before the router that reads it"
        assert "ungate p0#1" in stage.story


async def test_it_is_ready_only_when_the_router_says_that_it_can_serve(stage: Stage) -> None:
    class Shut(FakeProber):
        open = False

        async def ask(self, unit, calls):  # type: ignore[no-untyped-def]
            if unit.is_router and calls == unit.serving and not self.open:
                return "GET /ready: 503"
            return await super().ask(unit, calls)

    stage.prober = shut = Shut()
    async with stage.supervisor() as supervisor:
        supervisor.apply(stage.plan(unit("p0"), with_router=True))
        await until_state(supervisor, "p0", State.READY)
        await eventually(lambda: "GET /ready: 503" in supervisor.status().instances[-1].detail)
        assert supervisor.phase is Phase.WORKING
        shut.open = True
        await until(supervisor, Phase.READY)


@pytest.mark.parametrize("code", [1, 0])
async def test_a_crash_leads_to_a_new_incarnation_and_nothing_else_is_touched(
    stage: Stage, code: int
) -> None:
    """Whatever the code says: vLLM exits with 0 when its engine has died under it."""
    async with stage.supervisor() as supervisor:
        supervisor.apply(stage.plan(unit("p0"), unit("d0")))
        await until(supervisor, Phase.READY)
        stage.launcher.running["p0"].end(code)
        found = await until_state(supervisor, "p0", State.BACKOFF)
        assert found.last_error == f"exited with code {code} while it was serving"
        found = await until_state(supervisor, "p0", State.READY)
        assert (found.incarnation, found.restarts, found.exit_code) == (2, 1, code)
        assert stage.launcher.running["d0"].incarnation == 1
        assert "ungate p0#2" in stage.story


async def test_one_that_keeps_crashing_is_given_up_and_the_others_serve(stage: Stage) -> None:
    stage.launcher.crashing = {"p0": 3}
    async with stage.supervisor() as supervisor:
        supervisor.apply(stage.plan(unit("p0"), unit("p1")))
        status = await until(supervisor, Phase.FAILED)
        bad, good = status.instances
        assert (bad.state, bad.restarts, bad.incarnation, bad.exit_code) == (State.FATAL, 2, 3, 3)
        assert bad.last_error == "exited with code 3 before it was ready"
        assert good.state is State.READY


async def test_a_program_that_does_not_exist_is_not_tried_again(stage: Stage) -> None:
    stage.launcher.missing = {"p0"}
    async with stage.supervisor() as supervisor:
        supervisor.apply(stage.plan(unit("p0")))
        (bad,) = (await until(supervisor, Phase.FAILED)).instances
        assert (bad.restarts, bad.last_error) == (0, "cannot be started: engine: No such file or directory")


async def test_a_port_taken_in_the_back_off_is_a_failure_that_may_pass(stage: Stage) -> None:
    async with stage.supervisor() as supervisor:
        supervisor.apply(stage.plan(unit("p0")))
        await until(supervisor, Phase.READY)
        stage.launcher.refused = {"p0": "p0: port 9000 is held by pid 7 (nc)"}
        stage.launcher.running["p0"].end(1)
        await eventually(lambda: "held by pid 7" in supervisor.status().instances[0].last_error)
        stage.launcher.refused = {}
        await until(supervisor, Phase.READY, Phase.FAILED)


async def test_a_refused_plan_changes_nothing(stage: Stage) -> None:
    async with stage.supervisor() as supervisor:
        supervisor.apply(stage.plan(unit("p0")))
        await until(supervisor, Phase.READY)
        before = list(stage.story)
        stage.launcher.refused = {"p1": "p1: port 9001 is held by pid 7 (nc)", "d0": "d0: no program 'x'"}
        with pytest.raises(LaunchError, match=r"held by pid 7.*\n.*no program"):
            supervisor.apply(stage.plan(unit("p0"), unit("p1"), unit("d0")))
        assert stage.story == before
        assert stage.published() == ["p0=a"]
        assert supervisor.phase is Phase.READY


async def test_the_same_plan_again_does_nothing(stage: Stage) -> None:
    async with stage.supervisor() as supervisor:
        same = stage.plan(unit("p0"), unit("d0"), with_router=True)
        supervisor.apply(same)
        await until(supervisor, Phase.READY)
        before = list(stage.story)
        supervisor.apply(same)
        await until(supervisor, Phase.READY)
        assert stage.story == [*before, "reload"]


async def test_one_pool_is_rolled_one_at_a_time_drained_before_and_ready_after(stage: Stage) -> None:
    async with stage.supervisor() as supervisor:
        supervisor.apply(stage.plan(unit("p0"), unit("p1"), unit("d0"), with_router=True))
        await until(supervisor, Phase.READY)
        stage.story.clear()
        supervisor.apply(stage.plan(unit("p0", "b"), unit("p1", "b"), unit("d0"), with_router=True))
        await until(supervisor, Phase.READY)
        assert stage.story == [
            "reload",
            *("drain p0", "TERM p0#1", "p0#1 ends 0", "reload", "start p0#2", "ungate p0#2"),
            *("drain p1", "TERM p1#1", "p1#1 ends 0", "reload", "start p1#2", "ungate p1#2"),
        ]
        assert stage.published() == ["p0=b", "p1=b", "d0=a"]


async def test_a_roll_stops_at_the_first_that_does_not_become_ready(stage: Stage) -> None:
    """Case 44: a bad change must not take the whole pool down."""
    async with stage.supervisor() as supervisor:
        supervisor.apply(stage.plan(unit("p0"), unit("p1"), unit("p2")))
        await until(supervisor, Phase.READY)
        stage.launcher.crashing = {"p0": 1}
        bad = stage.plan(unit("p0", "b"), unit("p1", "b"), unit("p2", "b"))
        supervisor.apply(bad)
        status = await until(supervisor, Phase.FAILED)
        assert status.problem == "p0 did not become ready; left as they were: p1, p2"
        assert [i.state for i in status.instances] == [State.FATAL, State.READY, State.READY]
        assert stage.published() == ["p0=b", "p1=a", "p2=a"]
        assert stage.launcher.running["p1"].incarnation == 1
        stage.launcher.crashing = {}
        supervisor.apply(bad)
        await until(supervisor, Phase.READY)
        assert stage.published() == ["p0=b", "p1=b", "p2=b"]


async def test_a_roll_stops_when_the_router_does_not_use_what_is_new(stage: Stage) -> None:
    async with stage.supervisor() as supervisor:
        supervisor.apply(stage.plan(unit("p0"), unit("p1"), with_router=True))
        await until(supervisor, Phase.READY)
        stage.link.missing = {"p0": "401 from /v1/models"}
        supervisor.apply(stage.plan(unit("p0", "b"), unit("p1", "b"), with_router=True))
        status = await until(supervisor, Phase.FAILED)
        assert status.problem == (
            "p0 is up, but the router does not use it (401 from /v1/models); left as they were: p1"
        )


async def test_what_is_removed_is_drained_and_leaves_the_plan_after(stage: Stage) -> None:
    stage.link.busy = {"p1"}
    async with stage.supervisor() as supervisor:
        supervisor.apply(stage.plan(unit("p0"), unit("p1"), with_router=True))
        await until(supervisor, Phase.READY)
        stage.story.clear()
        supervisor.apply(stage.plan(unit("p0"), with_router=True))
        await until_state(supervisor, "p1", State.DRAINING)
        assert stage.published() == ["p0=a", "p1=a"]
        stage.link.busy.clear()
        status = await until(supervisor, Phase.READY)
        assert [i.name for i in status.instances] == ["p0", "router"]
        assert stage.published() == ["p0=a"]
        assert stage.story == ["reload", "drain p1", "TERM p1#1", "p1#1 ends 0", "reload"]


async def test_a_newcomer_waits_for_the_port_of_one_that_leaves(stage: Stage) -> None:
    async with stage.supervisor() as supervisor:
        supervisor.apply(stage.plan(unit("p0")))
        await until(supervisor, Phase.READY)
        supervisor.apply(stage.plan(unit("d0", ports={"http": 9000})))
        await until(supervisor, Phase.READY)
        assert stage.story.index("p0#1 ends 0") < stage.story.index("start d0#1")


async def test_a_newer_plan_takes_over_in_the_middle_of_an_older_one(stage: Stage) -> None:
    async with stage.supervisor() as supervisor:
        supervisor.apply(stage.plan(unit("p0"), unit("p1")))
        await until(supervisor, Phase.READY)
        stage.prober.said = {"p0": "loading"}
        supervisor.apply(stage.plan(unit("p0", "b"), unit("p1", "b")))
        await until_state(supervisor, "p0", State.STARTING)
        supervisor.apply(stage.plan(unit("p0"), unit("p1")))
        stage.prober.said = {}
        await until(supervisor, Phase.READY)
        assert stage.published() == ["p0=a", "p1=a"]
        assert (stage.launcher.running["p0"].incarnation, stage.launcher.running["p1"].incarnation) == (3, 1)


async def test_down_stops_the_router_first_and_only_then_the_engines(stage: Stage) -> None:
    async with stage.supervisor() as supervisor:
        supervisor.apply(stage.plan(unit("p0"), unit("d0"), with_router=True))
        await until(supervisor, Phase.READY)
        stage.story.clear()
        supervisor.begin_stop()
        await until(supervisor, Phase.STOPPED)
        assert stage.story[:2] == ["TERM router#1", "router#1 ends 0"]
        assert sorted(stage.story[2:]) == sorted(
            ["drain p0", "TERM p0#1", "p0#1 ends 0", "drain d0", "TERM d0#1", "d0#1 ends 0"]
        )
        assert stage.launcher.swept[-1] == frozenset()
        with pytest.raises(LaunchError, match="being stopped"):
            supervisor.apply(stage.plan(unit("p0")))


async def test_one_that_ignores_term_is_killed_after_its_time(stage: Stage) -> None:
    stage.launcher.stubborn = {"p0"}
    async with stage.supervisor() as supervisor:
        supervisor.apply(stage.plan(unit("p0", drain_s=0.01)))
        await until(supervisor, Phase.READY)
        stage.story.clear()
        supervisor.begin_stop()
        await until(supervisor, Phase.STOPPED)
        assert stage.story == ["drain p0", "TERM p0#1", "KILL p0#1", "p0#1 ends -9"]


async def test_a_second_ctrl_c_waits_for_nothing(stage: Stage) -> None:
    stage.launcher.stubborn = {"p0", "router"}
    async with stage.supervisor() as supervisor:
        supervisor.apply(stage.plan(unit("p0", drain_s=3600.0), unit("p1"), with_router=True, drain_s=3600.0))
        await until(supervisor, Phase.READY)
        supervisor.begin_stop()
        await until_state(supervisor, "router", State.STOPPING)
        supervisor.begin_stop(force=True)
        await until(supervisor, Phase.STOPPED)
        assert "KILL router#1" in stage.story
        assert "TERM p0#1" not in stage.story
        assert {"KILL p0#1", "KILL p1#1"} <= set(stage.story)


async def test_a_stop_in_the_middle_of_a_start(stage: Stage) -> None:
    stage.link.busy = {"p0"}
    async with stage.supervisor() as supervisor:
        supervisor.apply(stage.plan(unit("p0")))
        await until(supervisor, Phase.READY)
        supervisor.apply(stage.plan(unit("p1", ports={"http": 9000})))
        await until_state(supervisor, "p0", State.DRAINING)
        await until_state(supervisor, "p1", State.PENDING)
        supervisor.begin_stop()
        stage.link.busy.clear()
        await until(supervisor, Phase.STOPPED)
        assert "start p1#1" not in stage.story, "it was waiting for the port"


async def test_restart_replaces_one_and_keeps_the_plan(stage: Stage) -> None:
    async with stage.supervisor() as supervisor:
        supervisor.apply(stage.plan(unit("p0"), unit("d0"), with_router=True))
        await until(supervisor, Phase.READY)
        supervisor.restart(["d0"])
        status = await until(supervisor, Phase.READY)
        assert [(i.name, i.incarnation, i.restarts) for i in status.instances] == [
            ("p0", 1, 0),
            ("d0", 2, 0),
            ("router", 1, 0),
        ]
        with pytest.raises(LaunchError, match="no instance 'x' here; there are: p0, d0, router"):
            supervisor.restart(["x"])


async def test_restart_of_all_goes_one_by_one_and_leaves_the_router(stage: Stage) -> None:
    async with stage.supervisor() as supervisor:
        supervisor.apply(stage.plan(unit("p0"), unit("p1"), with_router=True))
        await until(supervisor, Phase.READY)
        stage.story.clear()
        supervisor.restart([])
        await until(supervisor, Phase.READY)
        assert [s for s in stage.story if s.startswith(("TERM", "ungate"))] == [
            *("TERM p0#1", "ungate p0#2", "TERM p1#1", "ungate p1#2")
        ]
        supervisor.restart(["router"])
        await until(supervisor, Phase.READY)
        assert "start router#2" in stage.story


async def test_a_new_router_is_told_what_is_being_drained(stage: Stage) -> None:
    stage.link.busy = {"p0"}
    async with stage.supervisor() as supervisor:
        supervisor.apply(stage.plan(unit("p0"), with_router=True))
        await until(supervisor, Phase.READY)
        supervisor.restart(["p0"])
        await until_state(supervisor, "p0", State.DRAINING)
        stage.launcher.running["router"].end(1)
        await until_state(supervisor, "router", State.BACKOFF)
        await until_state(supervisor, "router", State.READY)
        await eventually(lambda: "gate p0" in stage.story)
        stage.link.busy.clear()
        await until(supervisor, Phase.READY)


async def test_a_full_disk_ends_the_controller_and_not_the_engines(stage: Stage) -> None:
    async with stage.supervisor() as supervisor:
        supervisor.apply(stage.plan(unit("p0")))
        await until(supervisor, Phase.READY)
        stage.store.close()
        stage.launcher.running["p0"].end(1)
        with pytest.raises(LaunchError):
            await until(supervisor, Phase.STOPPED)
        assert "TERM p0#1" not in stage.story


async def test_only_external_engines_need_no_process(stage: Stage) -> None:
    async with stage.supervisor() as supervisor:
        supervisor.apply(stage.plan(unit("p0", external=True)))
        status = await until(supervisor, Phase.READY)
        assert status.instances == ()
        assert status.external == ("p0 http://127.0.0.1:9000",)


async def test_case_40_what_the_router_takes_to_hang_is_started_anew(stage: Stage) -> None:
    async with stage.supervisor() as supervisor:
        supervisor.apply(stage.plan(unit("p0"), unit("d0"), with_router=True))
        await until(supervisor, Phase.READY)
        stage.link.stuck = {"d0": "has work, but none got done for 130 s", "nobody": "x"}
        await eventually(lambda: "start d0#2" in stage.story)
        stage.link.stuck.clear()
        status = await until(supervisor, Phase.READY)
        hung = next(i for i in status.instances if i.name == "d0")
        assert hung.last_error.startswith("hung: has work, but none got done for 130 s")
        assert "start p0#2" not in stage.story


async def test_who_has_bad_pairs_is_started_anew_one_at_a_time_while_tries_are_left(
    stage: Stage,
) -> None:
    async with stage.supervisor() as supervisor:
        supervisor.apply(stage.plan(unit("p0"), unit("d0"), unit("d1", external=True), with_router=True))
        await until(supervisor, Phase.READY)
        stage.prober.said["p0"] = "loading"
        stage.link.mispaired = {"d1": "2 bad pairs", "p0": "2 bad pairs", "d0": "2 bad pairs"}
        await eventually(lambda: "start p0#2" in stage.story)
        await asyncio.sleep(0.1)
        assert "start d0#2" not in stage.story, "p0 is not through yet"
        del stage.prober.said["p0"]
        stage.link.mispaired = {"p0": "2 bad pairs"}
        await eventually(lambda: "start p0#3" in stage.story)
        await eventually(lambda: "not started anew again" in one(supervisor, "p0").detail)
        left = one(supervisor, "p0")
        assert (left.state, left.restarts, left.last_error) == (State.READY, 2, "2 bad pairs")
        stage.link.mispaired.clear()
        await eventually(lambda: one(supervisor, "p0").detail == "")
        assert "start p0#4" not in stage.story


async def test_what_the_router_does_not_take_up_is_said(stage: Stage) -> None:
    async with stage.supervisor() as supervisor:
        supervisor.apply(stage.plan(unit("p0"), with_router=True))
        await until(supervisor, Phase.READY)
        stage.link.refused = "a policy failed"
        supervisor.apply(stage.plan(unit("p0"), unit("d0"), with_router=True))
        status = await until(supervisor, Phase.FAILED)
        assert status.problem == "the router goes on by the plan before: a policy failed"


def taking_over(stage: Stage, digest: str) -> Plan:
    front = router(8000, 8001, ["router", "--take-over"], digest=digest, max_restarts=3)
    return plan(stage.state.root, unit("p0"), router=front)


async def test_a_router_takes_over_from_the_one_before_which_then_goes(stage: Stage) -> None:
    stage.launcher.stubborn.add("router")
    async with stage.supervisor() as supervisor:
        supervisor.apply(taking_over(stage, "a"))
        await until(supervisor, Phase.READY)
        old = stage.launcher.running["router"]
        supervisor.apply(taking_over(stage, "b"))
        await eventually(lambda: "start router#2" in stage.story)
        assert old.lives
        assert "TERM router#1" not in stage.story, "not before the new one says that it serves"
        stage.link.serving = stage.launcher.running["router"].identity.pid
        await eventually(lambda: "TERM router#1" in stage.story)
        assert supervisor.phase is Phase.WORKING, "what the old one has is not over"
        old.end(0)
        status = await until(supervisor, Phase.READY)
        assert [(i.name, i.incarnation) for i in status.instances][-1] == ("router", 2)
        assert stage.store.records()["router"].incarnation == 2
        stage.launcher.stubborn.clear()


async def test_an_old_router_that_leaves_by_itself_is_not_started_again(stage: Stage) -> None:
    async with stage.supervisor() as supervisor:
        supervisor.apply(taking_over(stage, "a"))
        await until(supervisor, Phase.READY)
        old = stage.launcher.running["router"]
        supervisor.apply(taking_over(stage, "b"))
        await eventually(lambda: "start router#2" in stage.story)
        old.end(0)
        stage.link.serving = stage.launcher.running["router"].identity.pid
        await until(supervisor, Phase.READY)
        assert [line for line in stage.story if "router" in line and line.startswith("start")] == [
            "start router#1",
            "start router#2",
        ]


async def test_case_44_a_router_that_does_not_come_up_leaves_the_one_before(stage: Stage) -> None:
    async with stage.supervisor() as supervisor:
        supervisor.apply(taking_over(stage, "a"))
        await until(supervisor, Phase.READY)
        old = stage.launcher.running["router"]
        stage.link.serving = old.identity.pid
        stage.launcher.crashing["router"] = 1
        supervisor.apply(taking_over(stage, "b"))
        status = await until(supervisor, Phase.FAILED)
        assert "the new router did not take over, the one before serves on" in status.problem
        assert old.lives
        assert [(i.name, i.incarnation) for i in status.instances][-1] == ("router", 1)
        stage.launcher.crashing.clear()
        stage.launcher.running["router"] = old
        old.end(0)
        await eventually(lambda: stage.story.count("start router#2") == 2)


def switchable(name: str) -> InstancePlan:
    call = HttpCall("POST", "/switch")
    made = unit(name)
    other = Role.DECODE if made.role is Role.PREFILL else Role.PREFILL
    return replace(made, other=OtherRole(other, call, call, made.probes))


async def test_an_engine_of_which_it_is_not_known_what_it_is_now_is_started_anew(stage: Stage) -> None:
    async with stage.supervisor() as supervisor:
        units = (switchable("p0"), switchable("p1"), unit("d0"))
        supervisor.apply(stage.plan(*units, with_router=True))
        await until(supervisor, Phase.READY)
        with pytest.raises(
            LaunchError, match="d0 is not switched to prefill: nothing is known of another role"
        ):
            supervisor.switch("d0", Role.PREFILL)
        stage.link.busy = {"p1"}
        supervisor.switch("p1", Role.DECODE)
        await eventually(lambda: "drain p1" in stage.story)
        with pytest.raises(LaunchError, match="p1 is being switched"):
            supervisor.apply(stage.plan(*units, with_router=True))
        with pytest.raises(LaunchError, match="another change is under way"):
            supervisor.switch("p0", Role.DECODE)
        stage.prober.refuses["p1"] = "no answer within 120 s"
        stage.prober.said["p1"] = "GET /ready on port 9001: 503"
        stage.link.busy.clear()
        await eventually(lambda: "start p1#2" in stage.story)
        del stage.prober.said["p1"]
        await until(supervisor, Phase.FAILED)
        failed = one(supervisor, "p1")
        assert failed.last_error == "its switch to decode failed: no answer within 120 s"
        assert (failed.role, failed.state) == ("prefill", State.READY)
        supervisor.apply(stage.plan(*units, with_router=True))
        await until(supervisor, Phase.READY)
        stage.prober.refuses.clear()
        supervisor.switch("p1", Role.DECODE)
        await until(supervisor, Phase.READY)
        assert one(supervisor, "p1").role == "decode"
        assert stage.prober.orders[-1] == ("p1", "/switch")
        with pytest.raises(LaunchError, match="it is the only prefill there is"):
            supervisor.switch("p0", Role.DECODE)
