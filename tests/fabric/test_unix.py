"""Unix sockets at paths the kernel would refuse, with real sockets."""

from __future__ import annotations

import socket
import stat
from pathlib import Path

import pytest

from orchestrator.fabric import unix


def deep(folder: Path) -> Path:
    path = folder / ("d" * 100) / ("e" * 100)
    path.mkdir(parents=True)
    return path / "router.sock"


def test_a_path_over_the_kernel_limit_is_bound_and_reached(tmp_path: Path) -> None:
    path = deep(tmp_path)
    with unix.bind(path) as listener:
        listener.listen()
        with socket.socket(socket.AF_UNIX) as client, unix.short(path) as name:
            client.connect(name)
            served, _ = listener.accept()
            served.close()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_file_of_a_dead_process_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "router.sock"
    unix.bind(path).close()
    assert path.exists()
    assert not unix.answers(path)
    with unix.bind(path) as listener:
        listener.listen()
        assert unix.answers(path)


def test_a_living_process_keeps_its_socket(tmp_path: Path) -> None:
    path = tmp_path / "router.sock"
    with unix.bind(path) as listener:
        listener.listen()
        with pytest.raises(FileExistsError, match="another process"):
            unix.bind(path)
        assert unix.answers(path)


def test_nothing_answers_where_nothing_is(tmp_path: Path) -> None:
    assert not unix.answers(tmp_path / "none.sock")
