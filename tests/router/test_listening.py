"""Where a router listens and how another takes that over (modules listening, succession, openfiles)."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from orchestrator.fabric import unix
from orchestrator.router.openfiles import SPARE_FDS, STREAM_FDS, raise_fd_limit
from orchestrator.router.succession import NAME, Heirs, inherit

GUARD_S = 20.0


@asynccontextmanager
async def heirs(path: Path, *names: str) -> AsyncIterator[tuple[list[socket.socket], asyncio.Event]]:
    """A router that would hand over a listening socket for each name."""
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in names]
    taken = asyncio.Event()
    told = {name: [listener.fileno()] for name, listener in zip(names, listeners, strict=True)}
    door = Heirs(path, lambda: told, taken.set)
    try:
        yield listeners, taken
    finally:
        door.close(remove=True)
        for listener in listeners:
            listener.close()


async def test_sockets_go_on_listening_in_other_hands(tmp_path: Path) -> None:
    async with heirs(tmp_path / NAME, "client a", "admin b") as (listeners, taken):
        where = listeners[0].getsockname()
        found = await asyncio.to_thread(inherit, tmp_path / NAME)
        assert found is not None
        assert not taken.is_set(), "not before the heir says that it listens"
        [ours] = found.take("client a")
        assert found.take("client elsewhere") == []
        found.taken()
        async with asyncio.timeout(GUARD_S):
            await taken.wait()
        for listener in listeners:
            listener.close()
        with socket.create_connection(where, timeout=GUARD_S), ours:
            ours.settimeout(GUARD_S)
            accepted, _ = ours.accept()
            accepted.close()
    assert not (tmp_path / NAME).exists()


async def test_an_heir_that_dies_before_it_listens_changes_nothing(tmp_path: Path) -> None:
    async with heirs(tmp_path / NAME, "client a") as (_, taken):
        with socket.socket(socket.AF_UNIX) as heir, unix.short(tmp_path / NAME) as name:
            heir.connect(name)
        again = await asyncio.to_thread(inherit, tmp_path / NAME)
        assert again is not None
        assert not taken.is_set()
        again.taken()
        async with asyncio.timeout(GUARD_S):
            await taken.wait()


async def test_nobody_to_inherit_from(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert inherit(tmp_path / NAME) is None
    dead = unix.bind(tmp_path / NAME)
    dead.close()
    assert inherit(tmp_path / NAME) is None
    assert not caplog.text


async def test_one_that_dies_while_it_is_asked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with unix.bind(tmp_path / NAME) as listener:
        listener.listen()

        def accept() -> None:
            listener.accept()[0].close()

        answers = asyncio.create_task(asyncio.to_thread(accept))
        assert await asyncio.to_thread(inherit, tmp_path / NAME) is None
        await answers
    assert "does not hand over" in caplog.text


def test_the_soft_limit_of_open_files_becomes_the_hard_one() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    child = os.fork()
    if child == 0:
        # In a process of its own: the limit is the process's, and is not to be given back.
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, min(1000, before[1])))
        streams = raise_fd_limit()
        right = resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(1000, before[1])
        os._exit(0 if right and streams == (1000 - SPARE_FDS) // STREAM_FDS else 1)
    assert os.waitpid(child, 0)[1] == 0
