"""The state directory: where a deployment's plan, records, sockets and logs lie, and its identity."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from orchestrator.errors import LaunchError
from orchestrator.topology import lockfile

LOCK_TRIES = 5
LOCK_PAUSE_S = 0.02
"""Somebody who only looks (`controller_pid`) holds the lock for a moment: one refusal proves nothing."""


_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_FIXES = {
    **dict.fromkeys(_FULL, "free some there, or set another `state_dir`"),
    errno.EROFS: "set a `state_dir` that can be written",
    errno.ENOENT: "it was removed meanwhile; run `pdctl up` again",
    errno.EISDIR: "move it away",
}


def refusal(path: Path, error: OSError) -> LaunchError:
    """The system's refusal to read or write `path`, with what to do about it."""
    number = error.errno if error.errno is not None else 0
    fix = _FIXES.get(number, "is `state_dir` what it should be, and yours?")
    return LaunchError(f"{path}: {error.strerror or error}; {fix}", reason="state-dir")


@contextmanager
def reaching(path: Path) -> Iterator[None]:
    """Turn the system's refusal to read or write `path` into a LaunchError (`state-dir`) that names it.
    That nothing or nobody is there passes: it is an answer."""
    try:
        yield
    except (FileNotFoundError, ConnectionRefusedError):
        raise
    except OSError as error:
        raise refusal(path, error) from error


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """As `reaching`, where that nothing is there is a refusal as well."""
    try:
        yield
    except OSError as error:
        raise refusal(path, error) from error


class StateDir:
    """The files of one deployment's state directory. Making the object touches nothing on disk."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(os.path.abspath(Path(root).expanduser()))
        self.plan = self.root / "plan.json"
        self.lockfile = self.root / lockfile.FILE
        self.db = self.root / "state.db"
        self.lock = self.root / "controller.lock"
        self.control = self.root / "control.sock"
        self.router = self.root / "router.sock"
        self.gates = self.root / "gates.json"
        self.logs = self.root / "logs"

    @property
    def id(self) -> str:
        """Twelve hex digits, made from the real path: what marks the processes that belong here.

        From the path and not from a stored number, so that processes are found again even when the
        folder's contents were deleted under them.
        """
        return hashlib.sha256(os.fsencode(os.path.realpath(self.root))).hexdigest()[:12]

    def log(self, name: str) -> Path:
        """The log file of a unit, or of the `controller`."""
        return self.logs / f"{name}.log"

    def create(self) -> None:
        """Make the folder, for this user only. Raises LaunchError (`state-dir`) when it cannot be."""
        _make(self.root, parents=True)
        with writing(self.root):
            owner = self.root.stat()
            if owner.st_uid != os.geteuid():
                raise LaunchError(
                    f"{self.root} belongs to user id {owner.st_uid}; choose a state directory of your own",
                    reason="state-dir",
                )
            if owner.st_mode & 0o077:
                # Plans hold keys, and whoever may write here decides what is run.
                self.root.chmod(0o700)
        _make(self.logs)


def _make(folder: Path, *, parents: bool = False) -> None:
    """Make a folder, unless it is there. Raises LaunchError (`state-dir`) when it cannot be."""
    try:
        folder.mkdir(mode=0o700, parents=parents, exist_ok=True)
    except FileExistsError:
        raise LaunchError(
            f"{folder} is no folder; move it away, or set another `state_dir`",
            reason="state-dir",
        ) from None
    except OSError as error:
        raise LaunchError(
            f"{folder} cannot be made: {error.strerror or error}; set another `state_dir`", reason="state-dir"
        ) from error


def write_private(path: Path, data: bytes) -> None:
    """Replace `path` by `data` in one step, readable by this user only. Raises LaunchError (`state-dir`)."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with writing(path):
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


class Lock:
    """The right to be the controller of a state directory; the kernel takes it back when we die."""

    def __init__(self, state: StateDir) -> None:
        self._path = state.lock
        self._fd: int | None = None

    def acquire(self) -> bool:
        """Take it; False if another process has it. Raises LaunchError when the file cannot be written."""
        with writing(self._path):
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        for left in range(LOCK_TRIES, 0, -1):
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if left == 1:
                    os.close(fd)
                    return False
                time.sleep(LOCK_PAUSE_S)
        # Held from here on: of a controller that cannot write its number down, less is known, no more.
        self._fd = fd
        with suppress(OSError):
            os.ftruncate(fd, 0)
            os.write(fd, f"{os.getpid()}\n".encode())
        return True

    def check(self) -> None:
        """Raise LaunchError (`state-dir`) if its file is not the one that is held any more: then nothing
        keeps another process from being the controller as well."""
        try:
            there = os.stat(self._path)
        except OSError:
            there = None
        if self._fd is None or there is None or not os.path.samestat(there, os.fstat(self._fd)):
            raise LaunchError(
                f"{self._path} was removed or replaced: this controller lets go of what it has started, "
                "which goes on; `pdctl up` adopts it",
                reason="state-dir",
            )

    def release(self) -> None:
        """Give it back, if held."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def controller_pid(state: StateDir) -> int | None:
    """The process that holds the lock of `state` now; 0 when it is held but the number is not yet written,
    None when nobody holds it. Raises LaunchError when that cannot be told."""
    try:
        with reaching(state.lock):
            fd = os.open(state.lock, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.read(fd, 32).strip()
        return int(text) if text.isdigit() else 0
    finally:
        os.close(fd)
    return None
