"""How processes ended that are no children of ours, told by a real kernel."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from orchestrator.launch.ending import exit_code, hold
from orchestrator.launch.process import Identity, ended, identify

END = "import os, sys; os.write(1, b'x'); sys.stdin.read(1); %s"
ENDS = {"os._exit(0)": 0, "os._exit(7)": 7, "os.kill(os.getpid(), 9)": -9, "os.kill(os.getpid(), 11)": -11}


@pytest.fixture(params=ENDS)
def child(request: pytest.FixtureRequest) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A child that ends in its way once it is told to, and the code it ends with."""
    words = [sys.executable, "-I", "-S", "-c", END % request.param]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(words, **pipes) as child:  # type: ignore[call-overload]
        child.stdout.read(1)
        yield child, ENDS[request.param]
        child.kill()


def known(pid: int) -> Identity:
    identity = identify(pid)
    assert identity is not None
    return identity


async def over(child: subprocess.Popen[bytes], identity: Identity) -> None:
    assert child.stdin is not None
    child.stdin.write(b"x")
    child.stdin.close()
    async with asyncio.timeout(30):
        await ended(identity)


async def test_before_its_parent_has_reaped_it_all_is_known(
    child: tuple[subprocess.Popen[bytes], int],
) -> None:
    process, code = child
    identity = known(process.pid)
    fd = hold(identity)
    assert fd is not None
    try:
        await over(process, identity)
        assert exit_code(identity, fd) == code
        assert exit_code(identity, None) == code
    finally:
        os.close(fd)


async def test_after_that_it_is_known_to_who_held_it_or_to_nobody(
    child: tuple[subprocess.Popen[bytes], int],
) -> None:
    """By the kernel's version: none may tell a wrong code."""
    process, code = child
    identity = known(process.pid)
    fd = hold(identity)
    assert fd is not None
    try:
        await over(process, identity)
        process.wait()
        major, minor = map(int, os.uname().release.split(".")[:2])
        assert exit_code(identity, fd) == (code if (major, minor) >= (6, 15) else None)
        assert exit_code(identity, None) is None
    finally:
        os.close(fd)


def test_another_process_of_that_pid_is_not_held() -> None:
    me = known(os.getpid())
    assert hold(Identity(me.pid, me.ticks - 1)) is None
    assert hold(Identity(2**22, 1)) is None


def test_one_that_lives_has_no_exit_code() -> None:
    me = known(os.getpid())
    fd = hold(me)
    assert fd is not None
    assert exit_code(me, fd) is None
    os.close(fd)


def test_a_kernel_that_does_not_understand_the_question_answers_nothing() -> None:
    """As one before 6.15; a pipe refuses every question of that kind."""
    end, other = os.pipe()
    assert exit_code(Identity(2**22, 1), end) is None
    os.close(end)
    os.close(other)
