"""What is remembered of a deployment between controllers: one SQLite file, written by one process."""

from __future__ import annotations

import json
import logging
import os
import re
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from types import NoneType
from typing import Any

from orchestrator.core.lifecycle import State
from orchestrator.errors import LaunchError
from orchestrator.launch.paths import refusal, writing
from orchestrator.launch.process import Identity

log = logging.getLogger(__name__)

BUSY_S = 1.0
"""How long a stranger's lock is waited for: nobody but the one controller has business here."""
SCHEMA = 1
"""Number of the schema below (SQLite's `user_version`); an older file is brought up to it on opening."""

_TABLES = """
CREATE TABLE IF NOT EXISTS instances (
    name TEXT PRIMARY KEY, pool TEXT, role TEXT, url TEXT, ports TEXT, digest TEXT, drain_s REAL,
    incarnation INTEGER, restarts INTEGER, state TEXT, pid INTEGER, ticks INTEGER, boot TEXT,
    exit_code INTEGER, last_error TEXT, started_s REAL, changed_s REAL);
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value BLOB);
"""


@dataclass(frozen=True, slots=True)
class Record:
    """What is remembered of one unit. Times are seconds since the epoch.

    The row is written with `pid` None before a process is made and again with its pid after: a controller
    killed in between leaves a row that says which incarnation to look for.
    """

    name: str
    pool: str = ""
    role: str = ""
    url: str = ""
    ports: Mapping[str, int] = field(default_factory=dict)
    digest: str = ""
    drain_s: float = 30.0
    incarnation: int = 0
    restarts: int = 0
    state: State = State.PENDING
    pid: int | None = None
    ticks: int | None = None
    boot: str | None = None
    exit_code: int | None = None
    last_error: str = ""
    started_s: float | None = None
    changed_s: float = 0.0

    def identity(self, boot: str) -> Identity | None:
        """The recorded process, if it was started in this boot of the machine."""
        if self.pid is None or self.ticks is None or self.boot != boot:
            return None
        return Identity(self.pid, self.ticks)


_COLUMNS = tuple(f.name for f in fields(Record))
_KINDS: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("name", "pool", "role", "url", "ports", "digest", "state", "last_error"), (str,)),
    **dict.fromkeys(("incarnation", "restarts"), (int,)),
    **dict.fromkeys(("drain_s", "changed_s"), (int, float)),
    **dict.fromkeys(("pid", "ticks", "exit_code"), (int, NoneType)),
    "started_s": (int, float, NoneType),
    "boot": (str, NoneType),
}
# An update in place keeps the order in which units were first put: the plan's.
_PUT = (
    f"INSERT INTO instances ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))}) "
    f"ON CONFLICT (name) DO UPDATE SET {', '.join(f'{c}=excluded.{c}' for c in _COLUMNS)}"
)


def _record(row: sqlite3.Row) -> Record:
    """The record in a row. Raises ValueError for one that no pdctl has written."""
    values: dict[str, Any] = {name: row[name] for name in _COLUMNS}
    for name, kinds in _KINDS.items():
        # SQLite stores whatever it is given, whatever the column was declared as.
        if not isinstance(values[name], kinds):
            raise ValueError(f"{name} of {values['name']!r} is {values[name]!r}")
    ports = json.loads(values["ports"])
    if not isinstance(ports, dict) or not all(isinstance(port, int) for port in ports.values()):
        raise ValueError(f"ports of {values['name']!r} are {ports!r}")
    return Record(**{**values, "ports": ports, "state": State(values["state"])})


_UNUSABLE = {
    "locked": "another process has it open; `fuser` names it",
    "full": "free some space there, or set another `state_dir`",
    "readonly": "make it writable for you, or set another `state_dir`",
    "unable to open": "is it a file, and may you read and write it and its folder?",
    "I/O": "is it a file, and is there space left on its disk?",
}
"""What to do, by words of SQLite's complaint."""

_FOREIGN = re.compile(r"no such (table|column)|has no column")
"""SQLite's complaint of a sound database that somebody else has made."""


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn SQLite's complaints into one that says what to do."""
    try:
        yield
    except OSError as error:
        raise refusal(path, error) from error
    except (sqlite3.DatabaseError, ValueError, KeyError, IndexError) as error:
        if isinstance(error, sqlite3.OperationalError) and not _FOREIGN.search(str(error)):
            fix = next((f"; {fix}" for word, fix in _UNUSABLE.items() if word in str(error)), "")
            raise LaunchError(f"{path}: {error}{fix}", reason="state-unusable") from error
        raise LaunchError(
            f"{path} is damaged, or not pdctl's ({error}); `pdctl up` and `pdctl down` put it aside, and "
            "find running processes by their marker",
            reason="state-damaged",
        ) from error


def put_aside(path: Path) -> Path:
    """Rename a database that cannot be used, with what belongs to it; its new name."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    aside = path.with_name(f"{path.name}.damaged-{stamp}")
    with writing(path):
        for suffix in ("", "-wal", "-shm"):
            with suppress(FileNotFoundError):
                os.replace(f"{path}{suffix}", f"{aside}{suffix}")
    return aside


class Store:
    """The state database, open for writing. Only the holder of the controller lock may open it.

    `problem` says why rows could not be written lately (a full disk, say), else it is empty: those who run
    engines go on without, and `flush` tries again.
    """

    def __init__(self, path: Path | None) -> None:
        """Open or create it; without a path, one that is forgotten. Raises LaunchError: damaged, unusable, or
        of a newer pdctl."""
        memory = path is None
        self._path = path = path or Path(":memory:")
        self._unwritten: dict[str, Record] = {}
        self.problem = ""
        with _explained(path):
            if not memory:
                # Made here and not by SQLite: nobody else may read it, whatever the umask.
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            self._db = sqlite3.connect(path, isolation_level=None, timeout=BUSY_S)
            try:
                self._db.row_factory = sqlite3.Row
                _check_version(self._db, path)
                self._db.execute("PRAGMA journal_mode=WAL")
                self._db.execute("PRAGMA synchronous=NORMAL")
                self._db.executescript(_TABLES)
                self._db.execute(f"PRAGMA user_version={SCHEMA}")
                # Now, while whoever opens it can still do something about rows that mean nothing.
                _records(self._db)
            except BaseException:
                self._db.close()
                raise

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def put(self, record: Record) -> None:
        """Write one unit's row, now or by a later `flush`. Raises LaunchError when the file is damaged."""
        self._unwritten[record.name] = record
        self.flush()

    def flush(self) -> None:
        """Write the rows that could not be written before. Raises LaunchError when the file is damaged."""
        try:
            for name, record in list(self._unwritten.items()):
                with _explained(self._path):
                    self._db.execute(_PUT, _row(record))
                del self._unwritten[name]
        except LaunchError as error:
            if error.reason == "state-damaged":
                raise
            if not self.problem:
                log.error("%s", error.message)
            self.problem = error.message
        else:
            self.problem = ""

    def records(self) -> dict[str, Record]:
        """All rows by name."""
        with _explained(self._path):
            return _records(self._db)

    def put_plan(self, data: bytes) -> None:
        """Remember the plan that was last asked for (`plan.json` holds what is being run of it)."""
        with _explained(self._path):
            self._db.execute("INSERT OR REPLACE INTO meta VALUES ('plan', ?)", (data,))

    def plan(self) -> bytes | None:
        """The plan last asked for, if any ever was."""
        with _explained(self._path):
            return _plan(self._db)


def _row(record: Record) -> list[Any]:
    values = [getattr(record, name) for name in _COLUMNS]
    values[_COLUMNS.index("ports")] = json.dumps(dict(record.ports))
    return values


def _records(db: sqlite3.Connection) -> dict[str, Record]:
    rows = db.execute(f"SELECT {', '.join(_COLUMNS)} FROM instances ORDER BY rowid").fetchall()
    return {record.name: record for record in map(_record, rows)}


def _plan(db: sqlite3.Connection) -> bytes | None:
    row = db.execute("SELECT value FROM meta WHERE key='plan'").fetchone()
    if row is not None and not isinstance(row["value"], bytes):
        raise ValueError("the plan is no blob")
    return None if row is None else row["value"]


def _check_version(db: sqlite3.Connection, path: Path) -> int:
    """The file's schema number. Raises LaunchError if it is newer than ours."""
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    if version > SCHEMA:
        raise LaunchError(
            f"{path} was written by a newer pdctl (schema {version}, this one knows {SCHEMA}): use that one",
            reason="state-newer",
        )
    return version


def read_records(path: Path) -> dict[str, Record]:
    """All rows of a database that nobody may be writing; empty if there is none. Raises LaunchError."""
    with _reading(path) as db:
        return {} if db is None else _records(db)


def read_plan(path: Path) -> bytes | None:
    """The plan last asked for, from a database that nobody may be writing. Raises LaunchError."""
    with _reading(path) as db:
        return None if db is None else _plan(db)


@contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection | None]:
    """The database, not to be written; None if there is none, or nothing in it yet."""
    with _explained(path):
        if not path.exists():
            yield None
            return
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=BUSY_S)) as db:
            db.row_factory = sqlite3.Row
            yield db if _check_version(db, path) else None
