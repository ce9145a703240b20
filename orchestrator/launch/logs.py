"""Log files of units: written by the units themselves, kept small by us, read back for people."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path

from orchestrator.launch.paths import refusal
from orchestrator.topology.words import SHORT_SECRET

SEPARATOR = "--- pdctl: "
"""How a line begins that pdctl writes ahead of each incarnation's output."""
MAX_BYTES = 64 * 1024 * 1024
KEPT = 3
"""A log over MAX_BYTES is copied to `.1` (the older ones move up to `.KEPT`) and emptied in place."""
FOLLOW_S = 0.2
_BLOCK = 16 * 1024
_CONTROL = re.compile(
    r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)


def open_append(path: Path) -> int:
    """A descriptor for a unit to inherit. O_APPEND: after the file was emptied, writing goes on at 0."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def rotated(path: Path, number: int) -> Path:
    """The name of the `number`-th older part."""
    return path.with_name(f"{path.name}.{number}")


def rotate(path: Path, max_bytes: int = MAX_BYTES, kept: int = KEPT) -> bool:
    """Copy and empty `path` if it has grown over `max_bytes`; whether it did.

    The writer keeps its descriptor, so the file cannot simply be renamed. What is written between the
    copy and the emptying is lost: a line or two of an engine that has written megabytes.
    """
    try:
        if path.stat().st_size <= max_bytes:
            return False
        for number in range(kept - 1, 0, -1):
            if rotated(path, number).exists():
                os.replace(rotated(path, number), rotated(path, number + 1))
        shutil.copy(path, rotated(path, 1))
        os.truncate(path, 0)
    except FileNotFoundError:
        return False
    return True


def clean(line: str) -> str:
    """A log line as it may be shown on a terminal: no escape sequences, of a redrawn line the last state."""
    return _CONTROL.sub("", line.rstrip("\r\n").rpartition("\r")[2]).rstrip()


def strike(text: str, secrets: Iterable[str]) -> str:
    """`text` with every secret replaced by `***`; engines print their own command lines. One so short that
    it may be part of an innocent word is struck only where it stands as a whole word."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= SHORT_SECRET:
            text = text.replace(secret, "***")
        else:
            text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", "***", text)
    return text


def _tail_bytes(path: Path, count: int, *, must: bool) -> tuple[bytes, int]:
    """The last `count` lines (all if fewer), and the file's size when they were read.

    Nothing when there is no file; nor, unless they `must` be read, when it cannot be. Raises LaunchError.
    """
    try:
        with path.open("rb") as file:
            size = position = file.seek(0, os.SEEK_END)
            data = b""
            while position > 0 and data.count(b"\n") <= count:
                step = min(_BLOCK, position)
                position -= step
                file.seek(position)
                data = file.read(step) + data
    except OSError as error:
        if must and not isinstance(error, FileNotFoundError):
            raise refusal(path, error) from error
        return b"", 0
    kept = data.splitlines(keepends=True)[-count:] if count else []
    return b"".join(kept), size


def tail(path: Path, count: int) -> list[str]:
    """The last `count` lines of a log, as they may be shown; empty if there is none. Raises LaunchError."""
    return _lines(_tail_bytes(path, count, must=True)[0])


def _lines(data: bytes) -> list[str]:
    return [clean(line) for line in data.decode(errors="replace").split("\n") if line]


def last_words(path: Path, count: int) -> list[str]:
    """The last `count` lines that the present incarnation wrote, blank ones left out; none if they cannot be
    read, for they are asked for while there is worse to tell."""
    lines = _lines(_tail_bytes(path, count, must=False)[0])
    for index in range(len(lines) - 1, -1, -1):
        if lines[index].startswith(SEPARATOR):
            lines = lines[index + 1 :]
            break
    return [line for line in lines if line]


class Follower:
    """Reads what is appended to a log, also across its being copied and emptied."""

    def __init__(self, path: Path, position: int) -> None:
        self._path = path
        self._position = position
        self._partial = b""

    def read(self) -> list[str]:
        """The whole lines that have come since the last call."""
        data = b""
        try:
            with self._path.open("rb") as file:
                if file.seek(0, os.SEEK_END) < self._position:
                    data = self._missed()
                    self._position = 0
                file.seek(self._position)
                data += file.read()
                self._position = file.tell()
        except FileNotFoundError:
            return []
        *lines, self._partial = (self._partial + data).split(b"\n")
        return [clean(line.decode(errors="replace")) for line in lines]

    def _missed(self) -> bytes:
        """What was written after our position and before the file was emptied: it is in the copy."""
        try:
            with rotated(self._path, 1).open("rb") as file:
                file.seek(self._position)
                return file.read()
        except FileNotFoundError:
            return b""


async def follow(paths: Sequence[tuple[str, Path]], count: int) -> AsyncIterator[tuple[str, str]]:
    """(name, line) of the last `count` lines of each log, then of every line as it comes; never ends. Raises
    LaunchError."""
    followers: list[tuple[str, Follower]] = []
    for name, path in paths:
        data, size = _tail_bytes(path, count, must=True)
        *whole, partial = data.split(b"\n")
        for line in whole:
            yield name, clean(line.decode(errors="replace"))
        followers.append((name, Follower(path, size - len(partial))))
    while True:
        for name, follower in followers:
            for text in follower.read():
                yield name, text
        await asyncio.sleep(FOLLOW_S)
