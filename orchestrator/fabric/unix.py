"""Unix sockets at any path, also where it is longer than the 108 bytes of a socket address."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def short(path: Path) -> Iterator[str]:
    """A name for `path` that fits into a socket address; good while the context is open.

    The folder is opened and the socket named through `/proc/self/fd`, however deep it lies.
    """
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def answers(path: Path) -> bool:
    """True when a process listens on the socket at `path`."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe, short(path) as name:
        try:
            probe.connect(name)
        except (ConnectionRefusedError, FileNotFoundError):
            return False
    return True


def bind(path: Path, *, replace: bool = False) -> socket.socket:
    """A socket bound to `path`, for this user only; the file left by a dead process is replaced.

    Raises FileExistsError when a living process listens there, unless it is to be replaced: whoever had
    connected to that goes on with it.
    """
    if not replace and answers(path):
        raise FileExistsError(f"{path}: another process listens there")
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with short(path) as name:
            # The file's mode counts from the moment it exists: no chmod afterwards.
            before = os.umask(0o177)
            try:
                listener.bind(name)
            finally:
                os.umask(before)
    except OSError:
        listener.close()
        raise
    return listener
