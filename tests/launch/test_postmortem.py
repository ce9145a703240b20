"""What is said of a unit that ended unseen."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.core.lifecycle import State
from orchestrator.core.types import Role
from orchestrator.engines.base import LogHint
from orchestrator.launch.oom import OomWatch
from orchestrator.launch.paths import StateDir
from orchestrator.launch.postmortem import found_dead
from orchestrator.launch.process import boot_id, read_stat
from orchestrator.launch.state import Record
from orchestrator.launch.testing import instance
from orchestrator.launch.unit import of_instance

GONE = Record("p0", digest="d", state=State.READY, pid=2**22, ticks=7, boot=boot_id())
UNIT = of_instance(instance("p0", Role.PREFILL, 1, ["engine"], digest="d"), None)
UNIT = replace(UNIT, hints=(LogHint("CUDA out of memory", "lower mem_fraction"),))
NEVER = OomWatch(Path("/nonexistent"), Path("/nonexistent"))


@pytest.fixture
def state(tmp_path: Path) -> StateDir:
    state = StateDir(tmp_path)
    state.create()
    return state


def written(state: StateDir, text: str) -> None:
    state.log("p0").write_text(text)
    os.utime(state.log("p0"), (1_800_000_000, 1_800_000_000))


def test_its_log_tells_when_and_why(state: StateDir) -> None:
    written(state, "before\n--- pdctl: p0 incarnation 2 ---\nCUDA out of memory, key sk-1234567890\n")
    failure, code = found_dead(state, GONE, UNIT, {"sk-1234567890"}, NEVER)
    after = "after its last word at 2027-01-15T08:00:00+00:00"
    assert failure.text == f"ended while no controller was watching, {after}"
    assert (failure.hint, code) == ("lower mem_fraction", None)
    assert failure.lines == ("CUDA out of memory, key ***",)


def test_hints_of_another_engine_than_the_one_that_ran_are_not_used(state: StateDir) -> None:
    written(state, "CUDA out of memory\n")
    failure, _ = found_dead(state, GONE, replace(UNIT, digest="other"), (), NEVER)
    assert "mem_fraction" not in failure.full
    assert "dmesg" in failure.hint


def test_without_a_log_nothing_is_made_up(state: StateDir) -> None:
    failure, _ = found_dead(state, GONE, None, (), NEVER)
    assert failure.text == "ended while no controller was watching"
    assert failure.lines == ()


def test_a_reboot_is_named(state: StateDir) -> None:
    failure, _ = found_dead(state, replace(GONE, boot="another"), None, (), NEVER)
    assert failure.text == (
        "ended while no controller was watching, and this machine has been started anew since"
    )


def test_one_that_nobody_has_reaped_yet_has_its_code(state: StateDir) -> None:
    """As in a container whose first process reaps nothing."""
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", "import os; os._exit(6)"]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        stat = read_stat(child.pid)
        assert stat is not None
        record = replace(GONE, pid=child.pid, ticks=stat.identity.ticks)
        failure, code = found_dead(state, record, None, (), NEVER)
    assert (failure.text, code) == ("exited with code 6 while no controller was watching", 6)


def test_the_kernel_s_log_proves_a_kill(state: StateDir, tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_text(f"3,1,9000000000,-;Out of memory: Killed process {GONE.pid} (engine) total-vm:1kB\n")
    failure, _ = found_dead(state, GONE, UNIT, (), OomWatch(tmp_path / "none", log))
    assert "the kernel killed it, or a process of it, for want of memory" in failure.full
