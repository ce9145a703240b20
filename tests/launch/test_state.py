"""The state database: what is put in comes out, and what cannot be used is told with a way out."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.core.lifecycle import State
from orchestrator.errors import LaunchError
from orchestrator.launch.process import Identity
from orchestrator.launch.state import SCHEMA, Record, Store, put_aside, read_records

FULL = Record(
    name="p1",
    pool="prefill",
    role="prefill",
    url="http://127.0.0.1:1",
    ports={"http": 1, "bootstrap": 2},
    digest="abc",
    drain_s=1.5,
    incarnation=3,
    restarts=2,
    state=State.READY,
    pid=10,
    ticks=20,
    boot="boot",
    exit_code=-9,
    last_error="killed",
    started_s=1.0,
    changed_s=2.0,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


def test_records_and_plan_survive(path: Path) -> None:
    store = Store(path)
    store.put(FULL)
    store.put(Record("a"))
    store.put(replace(FULL, restarts=3))
    store.put_plan(b"{}")
    store.put_plan(b"{1}")
    store.close()
    again = Store(path)
    assert again.records() == {"p1": replace(FULL, restarts=3), "a": Record("a")}
    assert list(again.records()) == ["p1", "a"], "the order of the plan"
    assert again.plan() == b"{1}"
    again.close()


def test_it_can_be_read_while_it_is_written(path: Path) -> None:
    store = Store(path)
    store.put(FULL)
    assert read_records(path) == {"p1": FULL}
    store.close()


def test_it_is_private(path: Path) -> None:
    Store(path).close()
    assert path.stat().st_mode & 0o777 == 0o600


def test_no_database_is_no_records(path: Path) -> None:
    assert read_records(path) == {}
    assert not path.exists()


def test_no_plan_yet(path: Path) -> None:
    store = Store(path)
    assert store.plan() is None
    store.close()


@pytest.mark.parametrize("content", [b"not a database" * 100, b"SQLite format 3\0" + b"\xff" * 2000])
@pytest.mark.parametrize("use", [Store, read_records])
def test_a_damaged_one_is_told_with_the_way_out(path: Path, content: bytes, use: type[Store]) -> None:
    path.write_bytes(content)
    with pytest.raises(LaunchError, match=r"state\.db is damaged, or not pdctl's .* put it aside") as error:
        use(path)
    assert error.value.reason == "state-damaged"


@pytest.mark.parametrize("use", [Store, read_records])
def test_a_newer_one_is_not_touched(path: Path, use: type[Store]) -> None:
    Store(path).close()
    db = sqlite3.connect(path)
    db.execute(f"PRAGMA user_version={SCHEMA + 1}")
    db.close()
    with pytest.raises(LaunchError, match=rf"newer pdctl \(schema {SCHEMA + 1}, this one knows {SCHEMA}\)"):
        use(path)


def test_a_state_that_no_table_knows_is_damage(path: Path) -> None:
    store = Store(path)
    store.put(FULL)
    store.close()
    db = sqlite3.connect(path)
    with db:
        db.execute("UPDATE instances SET state='flying'")
    db.close()
    with pytest.raises(LaunchError, match="damaged"):
        read_records(path)


@pytest.mark.parametrize(
    "change",
    [
        "ports='[1]'",
        'ports=\'{"http": "x"}\'',
        "ports='{'",
        "pid='x'",
        "incarnation=NULL",
        "started_s='yesterday'",
        "drain_s='long'",
        "boot=X'00'",
        "name=X'00'",
    ],
)
@pytest.mark.parametrize("use", [Store, read_records])
def test_a_row_that_no_pdctl_wrote_is_damage(path: Path, change: str, use: type[Store]) -> None:
    """SQLite keeps whatever it is given, whatever the column was declared as."""
    store = Store(path)
    store.put(FULL)
    store.close()
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(f"UPDATE instances SET {change}")
    with pytest.raises(LaunchError) as error:
        use(path)
    assert error.value.reason == "state-damaged"


def test_a_sound_database_of_somebody_else_s_is_put_aside_whole(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE instances (a)")
    with pytest.raises(LaunchError) as error:
        Store(path)
    assert error.value.reason == "state-damaged"
    Path(f"{path}-wal").write_bytes(b"x")
    aside = put_aside(path)
    assert aside.name.startswith("state.db.damaged-")
    assert Path(f"{aside}-wal").exists()
    assert read_records(path) == {}


def test_a_folder_in_its_place(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="Is a directory; move it away"):
        Store(tmp_path)


def test_what_cannot_be_written_now_is_written_later(path: Path) -> None:
    """A lock stands here for a full disk: SQLite refuses either in the same way."""
    store = Store(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        store.put(FULL)
        assert "state.db: database is locked; another process has it open" in store.problem
        with pytest.raises(LaunchError, match="database is locked"):
            store.put_plan(b"plan")
    assert read_records(path) == {}
    store.flush()
    assert store.problem == ""
    assert read_records(path) == {FULL.name: FULL}
    store.close()


def test_one_without_a_file_is_forgotten(tmp_path: Path) -> None:
    store = Store(None)
    store.put(FULL)
    assert store.records() == {FULL.name: FULL}
    store.close()
    assert list(tmp_path.iterdir()) == []


def test_a_process_of_another_boot_is_no_identity() -> None:
    assert FULL.identity("boot") == Identity(10, 20)
    assert FULL.identity("other") is None
    assert replace(FULL, pid=None).identity("boot") is None
