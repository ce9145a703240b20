"""The decision log on disk: numbered files of JSON lines that together never take more than their share."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

PARTS = 8
"""Files that the log is made of: the oldest is removed whole, so that an eighth of it goes at once."""

_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


class DecisionFiles:
    """`directory`/00000001.jsonl and so on, at most `keep_bytes` of them, for their owner's eyes only.

    Used by one thread at a time. `write` is `os.write`, or what a test takes in its place.
    """

    def __init__(
        self, directory: Path, keep_bytes: int, *, write: Callable[[int, memoryview], int] = os.write
    ) -> None:
        self._directory = directory
        self._keep = keep_bytes
        self._part = max(1, keep_bytes // PARTS)
        self._write = write
        self._fd: int | None = None
        self._size = 0

    def append(self, lines: bytes) -> None:
        """Write whole lines. Raises OSError; what was written of them is taken back then."""
        if self._fd is not None and self._gone():
            self.close()
        if self._fd is None or (self._size and self._size + len(lines) > self._part):
            self._next(len(lines))
        assert self._fd is not None
        view, before = memoryview(lines), self._size
        try:
            while view:
                view = view[self._write(self._fd, view) :]
        except OSError:
            # A disk that is full lets a file become shorter all the same.
            os.ftruncate(self._fd, before)
            raise
        self._size += len(lines)

    def close(self) -> None:
        """Close the file in use; the next `append` goes on with it."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _gone(self) -> bool:
        """Whether somebody has removed the file in use."""
        assert self._fd is not None
        return os.fstat(self._fd).st_nlink == 0

    def _next(self, coming: int) -> None:
        """Go on with the last file if it has room and is nobody else's, or begin one; remove the oldest."""
        self.close()
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        files = parts(self._directory)
        last = int(files[-1].stem) if files else 0
        self._fd = self._resumed(files[-1], coming) if files else None
        while self._fd is None:
            last += 1
            try:
                fd = os.open(self._directory / f"{last:08}.jsonl", _FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
            except FileExistsError:
                continue
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._fd, self._size = fd, 0
        self._prune()

    def _resumed(self, path: Path, coming: int) -> int | None:
        fd = os.open(path, _FLAGS)
        size = os.fstat(fd).st_size
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            size = self._part
        if size + coming > self._part:
            os.close(fd)
            return None
        if size and not _ends_whole(path):
            # A process was killed within a line: readers pass over it.
            size += self._write(fd, memoryview(b"\n"))
        self._size = size
        return fd

    def _prune(self) -> None:
        """Remove the oldest files, so that there is room for one more of full size."""
        *older, _ = files = parts(self._directory)
        taken = sum(map(_size, files)) + self._part - self._size
        for path in older:
            if taken <= self._keep:
                return
            taken -= _size(path)
            path.unlink(missing_ok=True)


def parts(directory: Path) -> list[Path]:
    """The files of a decision log, the oldest first; none where there is none."""
    if not directory.is_dir():
        return []
    return sorted(path for path in directory.glob("*.jsonl") if path.stem.isdecimal())


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _ends_whole(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
