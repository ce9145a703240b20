"""What the commands do, with a real detached controller (`__main__`): killed, refused, handed plans."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.core.lifecycle import State
from orchestrator.engines.base import LogHint
from orchestrator.errors import LaunchError
from orchestrator.launch import report, session
from orchestrator.launch.paths import Lock, controller_pid
from orchestrator.launch.process import environment, identify
from orchestrator.launch.status import UNWATCHED, Phase, Status
from orchestrator.launch.testing import word

GUARD_S = 30.0


class Seen:
    """A view that remembers."""

    def __init__(self) -> None:
        self.statuses: list[Status] = []
        self.said: list[str] = []

    def show(self, status: Status) -> None:
        self.statuses.append(status)

    def say(self, text: str) -> None:
        self.said.append(text)


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
def no_controller_left(bench: Any) -> Iterator[None]:
    yield
    pid = controller_pid(bench.state)
    if pid:
        os.kill(pid, signal.SIGKILL)
    assert pid is None, bench.log("controller")


pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("no_controller_left")]


def pids(status: Status) -> dict[str, int | None]:
    return {i.name: i.pid for i in status.instances}


def kill_controller(bench: Any) -> int:
    pid = controller_pid(bench.state)
    assert pid
    bench.kill9(pid)
    return pid


def own_process(bench: Any) -> list[str]:
    return [sys.executable, "-P", "-m", "orchestrator.launch", "--state", str(bench.state.root)]


async def test_detached_up_ps_and_down(bench: Any, seen: Seen) -> None:
    status = await session.up_detached(bench.plan(bench.engine("p0"), router=bench.router()), seen, None)
    assert status.phase is Phase.READY
    controller = controller_pid(bench.state)
    assert controller
    assert status.controller_pid == controller
    assert os.getsid(controller) == controller
    assert (await report.status(bench.state)).instances[0].state is State.READY
    assert await session.down(bench.state, seen)
    assert not bench.marked()
    assert identify(controller) is None
    after = await report.status(bench.state)
    assert (after.phase, after.instances) == (Phase.STOPPED, ())
    assert not await session.down(bench.state, seen), "there is nothing left"


async def test_controller_killed_with_9_and_the_next_up_adopts(bench: Any, seen: Seen) -> None:
    """Case 43."""
    plan = bench.plan(bench.engine("p0"), bench.engine("d0"), router=bench.router())
    before = pids(await session.up_detached(plan, seen, None))
    first = kill_controller(bench)
    offline = await report.status(bench.state)
    assert offline.phase is Phase.UNWATCHED
    assert pids(offline) == before
    assert all(i.uptime_s is not None for i in offline.instances)
    os.kill(before["p0"] or 0, signal.SIGKILL)
    await bench.eventually(lambda: identify(before["p0"] or 0) is None)
    (dead,) = (i for i in (await report.status(bench.state)).instances if i.name == "p0")
    assert UNWATCHED in dead.last_error
    status = await session.up_detached(plan, seen, None)
    after = pids(status)
    assert controller_pid(bench.state) != first
    assert {n for n in after if after[n] == before[n]} == {"d0", "router"}
    assert list(after) == ["p0", "d0", "router"]
    (reborn,) = (i for i in status.instances if i.name == "p0")
    assert UNWATCHED in reborn.last_error
    assert f"p0: {reborn.last_error}" in bench.log("controller")
    assert await session.down(bench.state, seen)


async def test_an_adopted_one_that_dies_is_told_of_like_any_other(bench: Any, seen: Seen) -> None:
    hint = LogHint("CUDA out of memory", "lower mem_fraction")
    engine = bench.engine("p0", "--say", "CUDA out of memory", hints=(hint,))
    engines = engine, bench.engine("d0", max_restarts=0)
    before = pids(await session.up_detached(bench.plan(*engines), seen, None))
    kill_controller(bench)
    await session.up_detached(bench.plan(*engines), seen, None)
    for pid in before.values():
        os.kill(pid or 0, signal.SIGKILL)
    async with asyncio.timeout(GUARD_S):
        while True:
            p0, d0 = (await report.status(bench.state)).instances
            if (p0.state, p0.restarts, d0.state) == (State.READY, 1, State.FATAL):
                break
    # Not every kernel tells anybody but the parent how a process ended; then this is said.
    unknown = "ended (code or signal not known: an earlier controller was its parent)"
    ends = {-9: "killed by SIGKILL", None: unknown}
    assert p0.last_error == f"{ends[d0.exit_code]} while it was serving (lower mem_fraction)"
    assert d0.last_error.startswith(f"{ends[d0.exit_code]} while it was serving (")
    assert d0.failure == ("loading weights",)
    await session.down(bench.state, seen)


async def test_down_needs_no_controller(bench: Any, seen: Seen) -> None:
    engines = bench.engine("p0"), bench.engine("d0", "--ignore-term", drain_s=0.2)
    await session.up_detached(bench.plan(*engines, router=bench.router()), seen, None)
    kill_controller(bench)
    assert len(bench.marked()) == 3
    assert await session.down(bench.state, seen)
    assert not bench.marked()


async def test_down_finds_processes_even_if_the_folder_was_deleted(bench: Any, seen: Seen) -> None:
    await session.up_detached(bench.plan(bench.engine("p0")), seen, None)
    kill_controller(bench)
    for path in sorted(bench.state.root.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    bench.state.root.rmdir()
    assert await session.down(bench.state, seen)
    assert not bench.marked()


async def test_the_controller_passes_no_marker_of_another_instance_on(bench: Any, seen: Seen) -> None:
    await session.up_detached(bench.plan(bench.engine("p0")), seen, None)
    controller = controller_pid(bench.state)
    assert controller
    assert "PDCTL_INSTANCE" not in environment(controller)
    await session.down(bench.state, seen)


async def test_detached_up_that_fails_leaves_something_to_look_at(bench: Any, seen: Seen) -> None:
    bad = bench.engine(
        "p0",
        *("--exit-after", 0, "--say", "CUDA out of memory"),
        hints=(LogHint("CUDA out of memory", "lower mem_fraction"),),
        max_restarts=1,
    )
    status = await session.up_detached(bench.plan(bad, bench.engine("d0")), seen, None)
    assert status.phase is Phase.FAILED
    bad_now, good_now = status.instances
    assert (bad_now.state, bad_now.exit_code, bad_now.restarts) == (State.FATAL, 1, 1)
    assert (bad_now.hint, bad_now.failure) == ("lower mem_fraction", ("CUDA out of memory",))
    assert good_now.state is State.READY
    assert (await report.status(bench.state)).instances[0].state is State.FATAL
    mended = replace(bad, argv=bad.argv[: bad.argv.index(word("--exit-after"))])
    status = await session.up_detached(bench.plan(mended, bench.engine("d0")), seen, None)
    assert status.phase is Phase.READY
    await session.down(bench.state, seen)


async def test_fatal_is_remembered_without_a_controller(bench: Any, seen: Seen) -> None:
    bad = bench.engine("p0", "--exit-after", 0, "--exit-code", 9, max_restarts=0)
    await session.up_detached(bench.plan(bad), seen, None)
    kill_controller(bench)
    (one,) = (await report.status(bench.state)).instances
    assert (one.state, one.exit_code) == (State.FATAL, 9)
    assert one.last_error == "exited with code 9 before it was ready"
    await session.down(bench.state, seen)


async def test_up_gives_up_waiting_and_the_start_goes_on(bench: Any, seen: Seen) -> None:
    status = await session.up_detached(bench.plan(bench.engine("p0", "--ready-after", 3600)), seen, 0.5)
    assert status.phase is Phase.WORKING
    assert (await report.status(bench.state)).phase is Phase.WORKING
    await session.down(bench.state, seen)


async def test_a_second_up_hands_its_plan_over(bench: Any, seen: Seen) -> None:
    p0 = bench.engine("p0")
    before = await session.up_detached(bench.plan(p0), seen, None)
    controller = controller_pid(bench.state)
    after = await session.up_foreground(bench.plan(p0, bench.engine("d0")), seen, None)
    assert after.phase is Phase.READY
    assert controller_pid(bench.state) == controller
    assert seen.said == [f"pid {controller} looks after this deployment; it takes over the plan"]
    assert pids(after)["p0"] == pids(before)["p0"]
    assert set(pids(after)) == {"p0", "d0"}
    await session.down(bench.state, seen)


async def test_two_topologies_of_one_name_are_told_apart(bench: Any, seen: Seen) -> None:
    plan = bench.plan(bench.engine("p0"))
    await session.up_detached(plan, seen, None)
    assert seen.said == []
    await session.up_detached(replace(plan, file="/other/test.yaml"), seen, None)
    assert seen.said == [
        f"{bench.state.root} was last run from test.yaml; it is made to follow /other/test.yaml now"
    ]
    await session.down(bench.state, seen)


async def test_a_taken_port_reaches_the_one_who_asked(bench: Any, seen: Seen) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        with pytest.raises(LaunchError, match=rf"p0: port {port} .* held by pid {os.getpid()}"):
            await session.up_detached(bench.plan(bench.engine("p0", port=port)), seen, None)
    assert not bench.marked()
    await session.down(bench.state, seen)


async def test_a_controller_that_cannot_start_says_why(bench: Any, seen: Seen) -> None:
    bench.state.create()
    bench.state.db.mkdir()
    with pytest.raises(LaunchError, match=r"ended with code 3: .*/state\.db: Is a directory; move it away$"):
        await session.up_detached(bench.plan(bench.engine("p0")), seen, None)


async def test_a_damaged_database_keeps_nobody_from_being_adopted(bench: Any, seen: Seen) -> None:
    plan = bench.plan(bench.engine("p0"))
    before = pids(await session.up_detached(plan, seen, None))
    kill_controller(bench)
    for part in bench.state.root.glob("state.db*"):
        part.unlink()
    bench.state.db.write_text("nonsense" * 100)
    offline = await report.status(bench.state)
    assert "state.db is damaged" in offline.problem
    assert pids(offline) == before, "found by its marker"
    assert [(i.pool, i.url) for i in offline.instances] == [(i.pool, i.url) for i in plan.instances]
    assert pids(await session.up_detached(plan, seen, None)) == before
    assert [said for said in seen.said if "put it aside" in said]
    assert list(bench.state.root.glob("state.db.damaged-*"))
    await session.down(bench.state, seen)


async def test_down_stops_all_where_nothing_can_be_remembered(bench: Any, seen: Seen) -> None:
    """As on a full disk."""
    await session.up_detached(bench.plan(bench.engine("p0")), seen, None)
    kill_controller(bench)
    for part in bench.state.root.glob("state.db*"):
        part.unlink()
    bench.state.db.mkdir()
    assert await session.down(bench.state, seen)
    assert not bench.marked()


async def test_a_controller_whose_folder_was_removed_lets_go(bench: Any, seen: Seen) -> None:
    """Else it would start again what the next one, which cannot know of it, stops."""
    bench.tuning = replace(bench.tuning, housekeeping_s=3600.0)
    async with bench.controller() as supervisor:
        supervisor.apply(bench.plan(bench.engine("p0")))
        await bench.until(supervisor, Phase.READY)
        shutil.rmtree(bench.state.root)
        assert await session.down(bench.state, seen)
        with pytest.raises(LaunchError, match="was removed or replaced: this controller lets go"):
            await bench.until(supervisor, Phase.STOPPED)
    assert not bench.marked()


async def test_a_detached_controller_takes_term_for_down(bench: Any, seen: Seen) -> None:
    await session.up_detached(bench.plan(bench.engine("p0")), seen, None)
    controller = controller_pid(bench.state)
    assert controller
    os.kill(controller, signal.SIGTERM)
    await bench.eventually(lambda: controller_pid(bench.state) is None)
    assert not bench.marked()


async def test_restart_through_the_controller(bench: Any, seen: Seen) -> None:
    await session.up_detached(bench.plan(bench.engine("p0"), bench.engine("d0")), seen, None)
    status = await session.restart(bench.state, ["d0"], seen, None)
    assert [(i.name, i.incarnation) for i in status.instances] == [("p0", 1), ("d0", 2)]
    await session.down(bench.state, seen, force=True)
    assert not bench.marked()


async def test_the_controller_s_own_process_resumes_the_last_plan(bench: Any, seen: Seen) -> None:
    """As a service manager would start it again after a crash."""
    before = pids(await session.up_detached(bench.plan(bench.engine("p0")), seen, None))
    kill_controller(bench)
    with subprocess.Popen(own_process(bench)) as controller:  # noqa: ASYNC220
        await bench.eventually(lambda: controller_pid(bench.state) == controller.pid)
        assert pids(await report.status(bench.state)) == before
        await session.down(bench.state, seen)
        assert controller.wait(timeout=30) == 0


def test_the_controller_s_own_process_refuses_to_be_the_second(bench: Any) -> None:
    bench.state.create()
    lock = Lock(bench.state)
    assert lock.acquire()
    done = subprocess.run(own_process(bench), capture_output=True, text=True, check=False)
    lock.release()
    assert done.returncode == 3
    assert done.stderr == f"pdctl controller: another controller looks after {bench.state.root}\n"


async def test_logs_by_name(bench: Any, seen: Seen) -> None:
    await session.up_detached(bench.plan(bench.engine("p0"), bench.engine("d0")), seen, None)
    assert [name for name, _ in report.log_files(bench.state, None)] == ["d0", "p0"]
    assert [name for name, _ in report.log_files(bench.state, "controller")] == ["controller"]
    with pytest.raises(LaunchError, match=r"no log of 'x' .* there are: controller, d0, p0"):
        report.log_files(bench.state, "x")
    await session.down(bench.state, seen)


def test_no_logs_yet(bench: Any) -> None:
    with pytest.raises(LaunchError, match="was it ever up"):
        report.log_files(bench.state, None)
    assert report.secrets(bench.state) == frozenset()
