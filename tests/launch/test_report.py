"""What `ps` tells without a controller, from records that say one thing and processes that say another."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.core.lifecycle import State
from orchestrator.core.types import Role
from orchestrator.engines.base import LogHint
from orchestrator.errors import LaunchError
from orchestrator.fabric import unix
from orchestrator.launch import report
from orchestrator.launch.paths import Lock, StateDir, write_private
from orchestrator.launch.process import boot_id, identify
from orchestrator.launch.state import Record, Store
from orchestrator.launch.status import UNWATCHED, Phase, Status
from orchestrator.launch.testing import instance, plan, word
from orchestrator.topology.plan import dump

ME = identify(os.getpid())
assert ME is not None
ALIVE = Record(
    "p0",
    pool="prefill",
    state=State.READY,
    incarnation=2,
    restarts=1,
    pid=ME.pid,
    ticks=ME.ticks,
    boot=boot_id(),
    started_s=1.0,
    last_error="exited with code 1",
)


@pytest.fixture
def state(tmp_path: Path) -> StateDir:
    state = StateDir(tmp_path / "state")
    state.create()
    return state


async def told(state: StateDir, *records: Record) -> Status:
    store = Store(state.db)
    for record in records:
        store.put(record)
    store.close()
    return await report.status(state)


async def test_a_living_process_is_told_as_it_was_left(state: StateDir) -> None:
    status = await told(state, ALIVE)
    (one,) = status.instances
    assert (status.phase, status.controller_pid) == (Phase.UNWATCHED, None)
    assert (one.state, one.pid, one.restarts, one.last_error) == (
        State.READY,
        os.getpid(),
        1,
        "exited with code 1",
    )
    assert one.uptime_s is not None
    assert one.uptime_s > 1e6


@pytest.mark.parametrize(
    "record",
    [replace(ALIVE, ticks=ALIVE.ticks - 1), replace(ALIVE, boot="another"), replace(ALIVE, pid=None)],
    ids=["pid reused", "before a reboot", "killed before it was recorded"],
)
async def test_a_dead_one_is_told_as_ended_unwatched(state: StateDir, record: Record) -> None:
    (one,) = (await told(state, record)).instances
    assert (one.state, one.pid, one.uptime_s) == (State.STOPPED, None, None)
    assert one.last_error.startswith(f"ended {UNWATCHED}")


async def test_a_dead_one_is_told_with_what_its_adapter_makes_of_its_log(state: StateDir) -> None:
    hint = LogHint("CUDA out of memory", "lower mem_fraction")
    engine = instance("p0", Role.PREFILL, 1, ["engine"], digest="d", hints=(hint,))
    write_private(state.plan, dump(plan(state.root, engine)))
    state.log("p0").write_text("CUDA out of memory\n")
    (one,) = (await told(state, replace(ALIVE, ticks=1, digest="d"))).instances
    assert one.last_error.endswith(" (lower mem_fraction)")


async def test_one_that_an_earlier_controller_found_dead_is_told_as_it_was_found(state: StateDir) -> None:
    found = replace(ALIVE, state=State.STOPPED, pid=None, last_error=f"exited with code 6 {UNWATCHED}")
    (one,) = (await told(state, found)).instances
    assert (one.state, one.last_error) == (State.STOPPED, f"exited with code 6 {UNWATCHED}")


async def test_a_controller_that_ends_while_it_is_asked_is_none(state: StateDir) -> None:
    lock = Lock(state)
    assert lock.acquire()

    async def leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        lock.release()
        writer.close()

    async with await asyncio.start_unix_server(leave, sock=unix.bind(state.control)):
        status = await told(state, ALIVE)
    assert [i.pid for i in status.instances] == [os.getpid()]


async def test_one_that_was_given_up_keeps_its_reason(state: StateDir) -> None:
    (one,) = (await told(state, replace(ALIVE, state=State.FATAL, pid=None, exit_code=1))).instances
    assert (one.state, one.exit_code, one.last_error) == (State.FATAL, 1, "exited with code 1")


@pytest.mark.parametrize("last", [State.STOPPED, State.STOPPING, State.DRAINING])
async def test_what_was_stopped_on_purpose_is_not_told(state: StateDir, last: State) -> None:
    status = await told(state, replace(ALIVE, state=last, pid=None))
    assert (status.phase, status.instances) == (Phase.STOPPED, ())


async def test_looking_at_nothing_makes_nothing(tmp_path: Path) -> None:
    status = await report.status(StateDir(tmp_path / "none"))
    assert (status.phase, status.instances) == (Phase.STOPPED, ())
    assert list(tmp_path.iterdir()) == []  # noqa: ASYNC240


def test_secrets_come_from_the_plan_that_runs(state: StateDir) -> None:
    made = replace(instance("p0", Role.PREFILL, 1, ["engine"]), env={"K": word("sk-1", secret=True)})
    write_private(state.plan, dump(plan(state.root, made)))
    assert report.secrets(state) == {"sk-1"}
    write_private(state.plan, b"damaged")
    assert report.secrets(state) == frozenset()


def test_logs_that_are_not_there(state: StateDir) -> None:
    with pytest.raises(LaunchError, match="was it ever up"):
        report.log_files(state, None)
    with pytest.raises(LaunchError, match=r"no log of 'p0' .* there are: none yet"):
        report.log_files(state, "p0")
