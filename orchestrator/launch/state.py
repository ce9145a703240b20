"""What is remembered of a deployment between controllers: one SQLite file, written by one process."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from orchestrator.core.lifecycle import State
from orchestrator.errors import LaunchError
from orchestrator.launch.process import Identity

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
# An update in place keeps the order in which units were first put: the plan's.
_PUT = (
    f"INSERT INTO instances ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))}) "
    f"ON CONFLICT (name) DO UPDATE SET {', '.join(f'{c}=excluded.{c}' for c in _COLUMNS)}"
)


def _record(row: sqlite3.Row) -> Record:
    values: dict[str, Any] = {name: row[name] for name in _COLUMNS}
    values |= {"ports": json.loads(values["ports"]), "state": State(values["state"])}
    return Record(**values)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn SQLite's complaints into one that says what to do."""
    try:
        yield
    except (OSError, sqlite3.DatabaseError, ValueError, KeyError, IndexError) as error:
        if isinstance(error, sqlite3.OperationalError | OSError):
            raise LaunchError(f"{path}: {error}", reason="state-unusable") from error
        raise LaunchError(
            f"{path} is damaged ({error}). Move it away and run `pdctl up` again: running processes are "
            "found by their marker and adopted",
            reason="state-damaged",
        ) from error


class Store:
    """The state database, open for writing. Only the holder of the controller lock may open it."""

    def __init__(self, path: Path) -> None:
        """Open or create it. Raises LaunchError: damaged, unusable, or of a newer pdctl."""
        self._path = path
        with _explained(path):
            # Made here and not by SQLite: nobody else may read it, whatever the umask.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            self._db = sqlite3.connect(path, isolation_level=None)
            try:
                self._db.row_factory = sqlite3.Row
                _check_version(self._db, path)
                self._db.execute("PRAGMA journal_mode=WAL")
                self._db.execute("PRAGMA synchronous=NORMAL")
                self._db.executescript(_TABLES)
                self._db.execute(f"PRAGMA user_version={SCHEMA}")
            except BaseException:
                self._db.close()
                raise

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def put(self, record: Record) -> None:
        """Write one unit's row."""
        values = [getattr(record, name) for name in _COLUMNS]
        values[_COLUMNS.index("ports")] = json.dumps(dict(record.ports))
        with _explained(self._path):
            self._db.execute(_PUT, values)

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
            row = self._db.execute("SELECT value FROM meta WHERE key='plan'").fetchone()
        return None if row is None else bytes(row["value"])


def _records(db: sqlite3.Connection) -> dict[str, Record]:
    rows = db.execute(f"SELECT {', '.join(_COLUMNS)} FROM instances ORDER BY rowid").fetchall()
    return {row["name"]: _record(row) for row in rows}


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
    if not path.exists():
        return {}
    with _explained(path), closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as db:
        db.row_factory = sqlite3.Row
        return _records(db) if _check_version(db, path) else {}
