"""Whether the kernel killed something for want of memory, from files in the kernel's own form."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.launch.oom import TICKS_PER_S, Oom, OomWatch

KILLED = (
    "3,1190,5000000,-;Out of memory: Killed process 4242 (python3) total-vm:97120kB, anon-rss:62104kB\n"
    " SUBSYSTEM=memory\n"
    "3,1191,6000000,-;Memory cgroup out of memory: Killed process 17 (worker) total-vm:1kB, anon-rss:1kB\n"
    "6,1192,7000000,-;oom_reaper: reaped process 17 (worker), now anon-rss:0kB\n"
)


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    vmstat, log = tmp_path / "vmstat", tmp_path / "kmsg"
    count(vmstat, 3)
    log.write_text(KILLED)
    return vmstat, log


def count(vmstat: Path, kills: int) -> None:
    vmstat.write_text(f"pgpgin 77\noom_kill {kills}\ndrop_slab 0\n")


def after_s(seconds: float) -> int:
    return int(seconds * TICKS_PER_S)


@pytest.mark.parametrize(
    ("pids", "started_s", "found"),
    [
        ([4242], 4.9, Oom.PROVEN),
        ([1, 17], 4.9, Oom.PROVEN),
        ([17], 6.1, Oom.RULED_OUT),
        ([42], 0.0, Oom.RULED_OUT),
    ],
    ids=["it", "a worker of it", "another one of that pid, before", "others"],
)
def test_the_kernel_s_log_names_who_was_killed(
    files: tuple[Path, Path], pids: list[int], started_s: float, found: Oom
) -> None:
    watch = OomWatch(*files)
    watch.look()
    assert watch.verdict(pids, after_s(started_s)) is found


def test_without_the_log_the_count_tells_whether_any_was(files: tuple[Path, Path], tmp_path: Path) -> None:
    vmstat, _ = files
    watch = OomWatch(vmstat, tmp_path / "none")
    assert watch.verdict([1], 0) is Oom.UNKNOWN, "never looked before"
    watch.look()
    assert watch.verdict([1], 0) is Oom.RULED_OUT
    count(vmstat, 4)
    assert watch.verdict([1], 0) is Oom.LIKELY
    watch.look()
    assert watch.verdict([1], 0) is Oom.LIKELY, "it may have come just before the look"
    watch.look()
    assert watch.verdict([1], 0) is Oom.RULED_OUT, "long ago"


@pytest.mark.parametrize("text", [None, "pgpgin 77\n"], ids=["not readable", "no such count"])
def test_a_kernel_that_tells_nothing(tmp_path: Path, text: str | None) -> None:
    vmstat = tmp_path / "vmstat"
    if text is not None:
        vmstat.write_text(text)
    watch = OomWatch(vmstat, tmp_path / "kmsg")
    watch.look()
    assert watch.verdict([1], 0) is Oom.UNKNOWN


def test_this_kernel_is_understood() -> None:
    """Its real files: nothing can be said of what it killed, but the reading must come to an end."""
    watch = OomWatch()
    watch.look()
    assert watch.verdict([os.getpid()], 2**60) in (Oom.UNKNOWN, Oom.RULED_OUT, Oom.LIKELY)
