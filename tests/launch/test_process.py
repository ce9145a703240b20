"""Processes as /proc shows them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from orchestrator.launch.process import (
    MARK,
    Identity,
    Mark,
    Stat,
    Table,
    alive,
    boot_id,
    describe,
    ended,
    environment,
    identify,
    parse_mark,
    read_stat,
    send,
)

SLEEP = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(3600)"]


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(SLEEP, start_new_session=True, env={MARK: "id/p1/3"})
    yield child
    child.kill()
    child.wait()


def stat(pid: int, *, ppid: int = 1, pgrp: int = 0, session: int = 0, ticks: int = 100) -> Stat:
    return Stat(Identity(pid, ticks), "x", "S", ppid, pgrp, session)


def family(leader: Identity, *stats: Stat, known: tuple[Identity, ...] = ()) -> set[int]:
    return {i.pid for i in Table({s.identity.pid: s for s in stats}).family(leader, known)}


def test_we_know_ourselves() -> None:
    me = read_stat(os.getpid())
    assert me is not None
    assert (me.identity.pid, me.ppid, me.session) == (os.getpid(), os.getppid(), os.getsid(0))
    assert me.alive
    assert alive(me.identity)
    assert len(boot_id()) == 36


def test_a_command_may_hold_blanks_and_parentheses() -> None:
    child = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import ctypes, time; ctypes.CDLL(None).prctl(15, b'a) S 1 (b')\nprint(flush=1); time.sleep(9)",
        ],
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    try:
        child.stdout.readline()
        found = read_stat(child.pid)
        assert found is not None
        assert (found.command, found.ppid) == ("a) S 1 (b", os.getpid())
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


def test_a_zombie_does_not_live() -> None:
    child = subprocess.Popen([sys.executable, "-I", "-S", "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    found = read_stat(child.pid)
    assert found is not None
    assert not found.alive
    assert identify(child.pid) is None
    assert child.pid not in Table.take().stats
    child.wait()
    assert read_stat(child.pid) is None


def test_the_session_the_group_and_all_descendants_are_family() -> None:
    leader = Identity(10, 100)
    found = family(
        leader,
        stat(10, session=10, pgrp=10),
        stat(11, ppid=10, session=10, pgrp=10),
        stat(12, ppid=1, session=10, pgrp=12, ticks=200),  # orphaned, own group
        stat(13, ppid=11, session=13, pgrp=13, ticks=200),  # own session
        stat(14, ppid=13, session=13, pgrp=13, ticks=200),
        stat(20, session=20, pgrp=20),
    )
    assert found == {10, 11, 12, 13, 14}


def test_the_family_of_a_dead_leader_is_its_session() -> None:
    assert family(Identity(10, 100), stat(12, session=10), stat(13, ppid=12), stat(14)) == {12, 13}


def test_a_stranger_at_the_leader_s_pid_has_no_part_in_it() -> None:
    reused = (stat(10, session=10, pgrp=10, ticks=900), stat(11, ppid=10, session=10, ticks=901))
    assert family(Identity(10, 100), *reused) == set()


def test_known_members_count_wherever_they_are_unless_their_pid_was_reused() -> None:
    known = (Identity(30, 150), Identity(31, 150))
    found = family(
        Identity(10, 100), stat(30, ticks=150), stat(31, ticks=999), stat(32, ppid=30), known=known
    )
    assert found == {30, 32}


def test_we_are_never_family() -> None:
    me = read_stat(os.getpid())
    assert me is not None
    assert me.identity not in Table.take().family(Identity(os.getsid(0), 0))


def test_a_marked_process_is_found(sleeper: subprocess.Popen[bytes]) -> None:
    identity = identify(sleeper.pid)
    assert identity is not None
    assert Table.take().marked("id") == {identity: Mark("id", "p1", 3)}
    assert Table.take().marked("other") == {}
    assert environment(sleeper.pid) == {MARK: "id/p1/3"}


@pytest.mark.parametrize("text", ["", "id", "id/p", "id/p/x", "id/p/1/2", "id/p/-1"])
def test_what_is_no_mark(text: str) -> None:
    assert parse_mark(text) is None


def test_a_mark_survives_text() -> None:
    mark = Mark("id", "prefill-0", 12)
    assert parse_mark(str(mark)) == mark


def test_a_signal_meant_for_another_process_of_that_pid_is_not_sent(
    sleeper: subprocess.Popen[bytes],
) -> None:
    identity = identify(sleeper.pid)
    assert identity is not None
    assert not send(Identity(sleeper.pid, identity.ticks - 1), signal.SIGKILL)
    assert alive(identity)
    assert send(identity, signal.SIGKILL)
    assert sleeper.wait() == -signal.SIGKILL
    assert not send(identity, signal.SIGKILL)


async def test_the_end_of_any_process_can_be_awaited(sleeper: subprocess.Popen[bytes]) -> None:
    identity = identify(sleeper.pid)
    assert identity is not None
    waiting = asyncio.create_task(ended(identity))
    done, _ = await asyncio.wait({waiting}, timeout=0.05)
    assert not done
    sleeper.kill()
    async with asyncio.timeout(30):
        await waiting
        await ended(identity)
        await ended(Identity(identity.pid, identity.ticks - 1))


def test_what_will_not_go_is_described() -> None:
    identity = identify(os.getpid())
    assert identity is not None
    assert describe(identity).startswith(f"pid {os.getpid()} (")
    assert describe(Identity(2**22, 1)) == f"pid {2**22} (gone)"
