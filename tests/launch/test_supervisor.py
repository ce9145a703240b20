"""The supervisor over real processes: adoption, restarts, stops, and never an orphan.

What it decides, with the advice of the router and switching of roles, is in tests/histories; here are keeper,
fleet, controller and their shell with what the kernel does.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from orchestrator.core.lifecycle import State
from orchestrator.engines.base import LogHint
from orchestrator.errors import LaunchError
from orchestrator.launch import report
from orchestrator.launch.local import LocalLauncher
from orchestrator.launch.process import identify
from orchestrator.launch.state import read_records
from orchestrator.launch.status import Phase, Status
from orchestrator.launch.testing import word
from orchestrator.launch.unit import units_of
from orchestrator.topology.plan import Credentials, parse

pytestmark = pytest.mark.integration


def pids(status: Status) -> dict[str, int | None]:
    return {i.name: i.pid for i in status.instances}


async def test_up_with_a_router_then_down(bench: Any) -> None:
    plan = bench.plan(bench.engine("p0", "--ready-after", 0.3), bench.engine("d0"), router=bench.router())
    async with bench.controller() as supervisor:
        supervisor.apply(plan)
        status = await bench.until(supervisor, Phase.READY)
        assert [i.state for i in status.instances] == [State.READY] * 3
        async with httpx.AsyncClient(trust_env=False) as client:
            assert (await client.get(f"{status.url}/ready")).status_code == 200
        assert len(bench.marked()) == 3
        hints = bench.state.root / "hints"
        await bench.eventually(lambda: {"ungate 1 p0", "ungate 1 d0"} <= set(hints.read_text().splitlines()))
        await bench.stop(supervisor)
    assert not bench.marked()
    records = read_records(bench.state.db)
    assert {r.state for r in records.values()} == {State.STOPPED}
    assert {r.exit_code for r in records.values()} == {0}


async def test_what_is_waited_for_is_told(bench: Any) -> None:
    async with bench.controller() as supervisor:
        supervisor.apply(bench.plan(bench.engine("p0", "--ready-after", 3600, "--say", "loading 7 %")))
        port = supervisor.status()  # the first status is there at once
        assert port.phase is Phase.WORKING
        status = await bench.first(supervisor, lambda s: bool(s.instances) and "503" in s.instances[0].detail)
        (one,) = status.instances
        assert one.detail == f"GET /ready on port {one.ports['http']}: 503"
        assert one.last_line == "loading 7 %"
        await bench.stop(supervisor)


async def test_controller_killed_engines_serve_on_and_are_adopted(bench: Any) -> None:
    """Case 43. The controller is let go of here; tests of `up --detach` kill -9 a real one."""
    plan = bench.plan(bench.engine("p0"), bench.engine("d0"), router=bench.router())
    async with bench.controller() as supervisor:
        supervisor.apply(plan)
        before = pids(await bench.until(supervisor, Phase.READY))
    bench.kill9(before["d0"])
    offline = await report.status(bench.state)
    assert offline.phase is Phase.UNWATCHED
    by_name = {i.name: i for i in offline.instances}
    assert (by_name["p0"].state, by_name["p0"].pid) == (State.READY, before["p0"])
    assert (by_name["d0"].state, by_name["d0"].pid) == (State.STOPPED, None)
    assert by_name["d0"].last_error.startswith(
        "ended while no controller was watching, after its last word at"
    )
    async with bench.controller() as supervisor:
        assert {i.name: i.state for i in supervisor.status().instances} == {
            "p0": State.READY,
            "router": State.READY,
        }
        supervisor.apply(plan)
        after = await bench.until(supervisor, Phase.READY)
        assert (pids(after)["p0"], pids(after)["router"]) == (before["p0"], before["router"])
        assert [(i.name, i.incarnation) for i in after.instances] == [("p0", 1), ("d0", 2), ("router", 1)]
        await bench.stop(supervisor)
    assert not bench.marked()


async def test_an_adopted_engine_that_dies_is_restarted(bench: Any) -> None:
    plan = bench.plan(bench.engine("p0"))
    async with bench.controller() as supervisor:
        supervisor.apply(plan)
        (pid,) = pids(await bench.until(supervisor, Phase.READY)).values()
    async with bench.controller() as supervisor:
        await supervisor.resume()
        assert (await bench.until(supervisor, Phase.READY)).instances[0].pid == pid
        bench.kill9(pid)
        found = await bench.first(supervisor, lambda s: s.instances[0].incarnation == 2)
        assert "while it was serving" in found.instances[0].last_error
        await bench.until(supervisor, Phase.READY)
        await bench.stop(supervisor)


async def test_adoption_with_another_plan_replaces_what_differs(bench: Any) -> None:
    old, keep = bench.engine("p0"), bench.engine("d0")
    async with bench.controller() as supervisor:
        supervisor.apply(bench.plan(old, keep))
        before = pids(await bench.until(supervisor, Phase.READY))
    new = replace(old, argv=(*old.argv, word("--say"), word("changed")))
    async with bench.controller() as supervisor:
        supervisor.apply(bench.plan(new, keep))
        after = pids(await bench.until(supervisor, Phase.READY))
        assert after["d0"] == before["d0"]
        assert after["p0"] != before["p0"]
        assert "changed" in bench.log("p0")
        await bench.stop(supervisor)


async def test_a_process_that_was_never_recorded_is_adopted_without_a_database(bench: Any) -> None:
    plan = bench.plan(bench.engine("p0"))
    bench.state.create()
    process = LocalLauncher(bench.state).start(units_of(plan)["p0"], 6)
    await bench.shows(process)
    async with bench.controller() as supervisor:
        supervisor.apply(plan)
        (one,) = (await bench.until(supervisor, Phase.READY)).instances
        assert (one.pid, one.incarnation) == (process.identity.pid, 6)
        await bench.stop(supervisor)


async def test_what_is_marked_and_belongs_to_nobody_is_ended(bench: Any) -> None:
    plan = bench.plan(bench.engine("p0"))
    async with bench.controller() as supervisor:
        supervisor.apply(plan)
        await bench.until(supervisor, Phase.READY)
    stray = LocalLauncher(bench.state).start(units_of(bench.plan(bench.engine("p0")))["p0"], 99)
    await bench.shows(stray)
    async with bench.controller() as supervisor:
        assert identify(stray.identity.pid) is None
        assert supervisor.status().instances[0].incarnation == 1
        await bench.stop(supervisor)


async def test_children_of_a_leader_that_died_unwatched_are_ended(
    bench: Any, loose: list[int], tmp_path: Path
) -> None:
    note = tmp_path / "children"
    async with bench.controller() as supervisor:
        supervisor.apply(bench.plan(bench.engine("p0", "--children", note)))
        (pid,) = pids(await bench.until(supervisor, Phase.READY)).values()
    children = list(map(int, note.read_text().split()))
    bench.kill9(pid)
    # The one without marker and session has nothing left that tells whose it was.
    os.kill(children.pop(), signal.SIGKILL)
    loose += children
    async with bench.controller() as supervisor:
        assert [child for child in children if identify(child)] == []
        await bench.stop(supervisor)


async def test_a_stop_that_was_under_way_is_finished(bench: Any) -> None:
    plan = bench.plan(bench.engine("p0", "--ignore-term", drain_s=0.3))
    async with bench.controller() as supervisor:
        supervisor.apply(plan)
        await bench.until(supervisor, Phase.READY)
        supervisor.begin_stop()
        await bench.until_state(supervisor, "p0", State.STOPPING)
    assert len(bench.marked()) == 1
    async with bench.controller() as supervisor:
        await bench.until_state(supervisor, "p0", State.STOPPED)
        await bench.stop(supervisor)
    assert not bench.marked()


async def test_term_is_ignored_kill_takes_everyone(bench: Any, loose: list[int], tmp_path: Path) -> None:
    note = tmp_path / "children"
    async with bench.controller() as supervisor:
        supervisor.apply(bench.plan(bench.engine("p0", "--ignore-term", "--children", note, drain_s=0.3)))
        await bench.until(supervisor, Phase.READY)
        loose += map(int, note.read_text().split())
        await bench.stop(supervisor)
    assert [pid for pid in loose if identify(pid)] == []
    assert read_records(bench.state.db)["p0"].exit_code == -signal.SIGKILL


async def test_a_polite_engine_gets_its_time_and_its_children_are_ended_after_it(
    bench: Any, loose: list[int], tmp_path: Path
) -> None:
    note = tmp_path / "children"
    async with bench.controller() as supervisor:
        supervisor.apply(bench.plan(bench.engine("p0", "--linger", 0.5, "--children", note, drain_s=30.0)))
        await bench.until(supervisor, Phase.READY)
        loose += map(int, note.read_text().split())
        await bench.stop(supervisor)
    assert read_records(bench.state.db)["p0"].exit_code == 0
    assert [pid for pid in loose if identify(pid)] == []


async def test_fatal_says_what_to_look_at_and_no_secret(bench: Any) -> None:
    engine = bench.engine(
        "p0",
        *("--exit-after", 0, "--exit-code", 7, "--say", "CUDA out of memory, key sk-secret"),
        hints=(LogHint("CUDA out of memory", "lower mem_fraction"),),
        max_restarts=2,
    )
    engine = replace(engine, env={"KEY": word("sk-secret", secret=True)})
    async with bench.controller() as supervisor:
        supervisor.apply(bench.plan(engine))
        (one,) = (await bench.until(supervisor, Phase.FAILED)).instances
        assert (one.state, one.exit_code, one.restarts, one.incarnation) == (State.FATAL, 7, 2, 3)
        assert one.last_error == "exited with code 7 before it was ready (lower mem_fraction)"
        assert one.failure == ("CUDA out of memory, key ***",)
        assert one.last_line == "CUDA out of memory, key ***"
        assert bench.log("p0").count("incarnation") == 3
        await bench.stop(supervisor)


async def test_an_engine_that_is_not_installed_is_given_up_at_once(bench: Any) -> None:
    argv = (word(sys.executable), word("-P"), word("-m"), word("no_such_engine.launch"))
    async with bench.controller() as supervisor:
        supervisor.apply(bench.plan(replace(bench.engine("p0"), argv=argv)))
        (one,) = (await bench.until(supervisor, Phase.FAILED)).instances
        assert (one.state, one.incarnation) == (State.FATAL, 1)
        assert "is not installed for" in one.last_error
        await bench.stop(supervisor)


async def test_one_bad_start_is_forgiven(bench: Any, tmp_path: Path) -> None:
    async with bench.controller() as supervisor:
        supervisor.apply(bench.plan(bench.engine("p0", "--die-once", tmp_path / "died")))
        (one,) = (await bench.until(supervisor, Phase.READY)).instances
        assert (one.restarts, one.incarnation) == (1, 2)
        await bench.stop(supervisor)


async def test_not_ready_in_time_is_a_failure_and_nothing_of_it_is_left(bench: Any) -> None:
    engine = bench.engine("p0", "--ready-after", 3600, "--ignore-term", max_restarts=0)
    engine = replace(engine, probes=replace(engine.probes, ready_timeout_s=1.0))
    async with bench.controller() as supervisor:
        supervisor.apply(bench.plan(engine))
        (one,) = (await bench.until(supervisor, Phase.FAILED)).instances
        assert one.last_error == f"not ready within 1 s; GET /ready on port {one.ports['http']}: 503"
        await bench.first(supervisor, lambda s: s.instances[0].pid is None)
        assert not bench.marked()
        await bench.stop(supervisor)


async def test_a_busy_engine_is_not_killed_for_slow_health_answers(bench: Any) -> None:
    """Case 39: once ready, only the end of the process is a failure."""
    engine = bench.engine("p0", "--hang-health")
    engine = replace(engine, probes=replace(engine.probes, live=replace(engine.probes.live, timeout_s=0.01)))
    async with bench.controller() as supervisor:
        supervisor.apply(bench.plan(engine))
        await bench.until(supervisor, Phase.READY)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await bench.first(supervisor, lambda s: s.phase is not Phase.READY)
        assert supervisor.status().instances[0].incarnation == 1
        await bench.stop(supervisor)


async def test_a_taken_port_is_refused_before_anything_is_started(bench: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        async with bench.controller() as supervisor:
            with pytest.raises(LaunchError, match=rf"p1: port {port} \(http\) .* held by pid {os.getpid()} "):
                supervisor.apply(bench.plan(bench.engine("p0"), bench.engine("p1", port=port)))
            assert supervisor.idle
            assert not bench.state.plan.exists()


async def test_engines_and_router_get_their_keys(bench: Any) -> None:
    keys = Credentials(client_keys=("ck",), engine_key="ek", admin_key="ak")
    plan = bench.plan(bench.engine("p0", "--key", "ek"), router=bench.router(credentials=keys))
    async with bench.controller() as supervisor:
        supervisor.apply(plan)
        await bench.until_state(supervisor, "p0", State.READY)
        await bench.stop(supervisor)


async def test_changing_the_plan_changes_only_what_differs(bench: Any) -> None:
    p0, p1, d0 = bench.engine("p0"), bench.engine("p1"), bench.engine("d0")
    front = bench.router()
    async with bench.controller() as supervisor:
        supervisor.apply(bench.plan(p0, p1, d0, router=front))
        before = pids(await bench.until(supervisor, Phase.READY))
        changed = replace(p1, argv=(*p1.argv, word("--say"), word("new")))
        supervisor.apply(bench.plan(p0, changed, bench.engine("d1"), router=front))
        after = pids(await bench.until(supervisor, Phase.READY))
        assert set(after) == {"p0", "p1", "d1", "router"}
        assert {n for n in after if after[n] == before.get(n)} == {"p0", "router"}
        assert {i.name for i in parse(bench.state.plan.read_bytes()).instances} == {"p0", "p1", "d1"}
        hints = (bench.state.root / "hints").read_text().splitlines()
        assert "gate d0" in hints
        assert hints.index("gate p1") < hints.index("drain 5.0 p1")
        assert "ungate 2 p1" in hints
        await bench.stop(supervisor)


async def test_logs_are_kept_small_while_the_engine_writes(bench: Any) -> None:
    bench.tuning = replace(bench.tuning, log_max_bytes=50_000)
    async with bench.controller() as supervisor:
        supervisor.apply(bench.plan(bench.engine("p0", "--flood", 200_000)))
        await bench.until(supervisor, Phase.READY)
        older = bench.state.logs / "p0.log.1"
        await bench.eventually(older.exists)
        assert older.stat().st_size > 50_000
        assert bench.state.log("p0").stat().st_size <= 50_000
        await bench.stop(supervisor)


async def test_a_log_that_cannot_be_opened_is_named(bench: Any) -> None:
    bench.state.create()
    bench.state.log("p0").mkdir()
    async with bench.controller() as supervisor:
        supervisor.apply(bench.plan(bench.engine("p0")))
        (one,) = (await bench.until(supervisor, Phase.FAILED)).instances
        assert one.last_error == f"cannot be started: {bench.state.log('p0')}: Is a directory"
        await bench.stop(supervisor)


async def test_a_plan_that_cannot_be_written_down_starts_nothing(bench: Any) -> None:
    bench.state.create()
    bench.state.plan.mkdir()
    async with bench.controller() as supervisor:
        supervisor.apply(bench.plan(bench.engine("p0")))
        status = await bench.until(supervisor, Phase.FAILED)
        assert status.problem == f"{bench.state.plan}: Is a directory; move it away"
        assert status.instances == ()
        bench.state.plan.rmdir()
        supervisor.apply(bench.plan(bench.engine("p0")))
        await bench.until(supervisor, Phase.READY)
        await bench.stop(supervisor)


async def test_nothing_can_be_resumed_that_never_was(bench: Any) -> None:
    async with bench.controller() as supervisor:
        with pytest.raises(LaunchError, match="no plan was ever run"):
            await supervisor.resume()


async def test_a_damaged_plan_file_does_not_keep_engines_from_being_adopted_and_stopped(bench: Any) -> None:
    async with bench.controller() as supervisor:
        supervisor.apply(bench.plan(bench.engine("p0")))
        (pid,) = pids(await bench.until(supervisor, Phase.READY)).values()
    bench.state.plan.write_text("{}")
    async with bench.controller() as supervisor:
        assert pids(supervisor.status()) == {"p0": pid}
        await bench.stop(supervisor)
    assert not bench.marked()
