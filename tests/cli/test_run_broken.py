"""Commands on a state directory that is broken, or somebody else's: what is wrong and the way out."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator.cli.main import run
from orchestrator.fabric import unix
from orchestrator.launch.paths import StateDir
from orchestrator.launch.process import boot_id
from orchestrator.launch.state import Record, Store

TOPOLOGY = {
    "name": "t",
    "model": {"path": "m"},
    "state_dir": "./state",
    "pools": {"prefill": {"role": "prefill", "engine": "sim"}, "decode": {"role": "decode", "engine": "sim"}},
}
Break = Callable[[StateDir], object]
COMMANDS = (("ps",), ("ps", "--json"), ("logs",), ("restart",), ("down",), ("down", "--force"), ("ps",))


@pytest.fixture
def pdctl(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Runs pdctl in this process on a topology; exit code, and all that it said. Any other exception than
    the exit's is a traceback to whoever runs the command."""
    file = tmp_path / "topology.yaml"
    file.write_text(json.dumps(TOPOLOGY))

    def call(command: str, *words: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            run([command, str(file), *words])
        told = capsys.readouterr()
        return int(ended.value.code or 0), told.out + told.err

    return call


def garbage(path: Path) -> None:
    path.write_bytes(b"\xff\x00nonsense" * 400)


def changed(state: StateDir, sql: str) -> None:
    store = Store(state.db)
    store.put(Record("prefill-0", pool="prefill", pid=2**22, ticks=1, boot=boot_id(), incarnation=1))
    store.close()
    with closing(sqlite3.connect(state.db)) as db, db:
        db.execute(sql)


ALTER = "ALTER TABLE instances"


def stale_socket(path: Path) -> None:
    unix.bind(path).close()


BROKEN: dict[str, tuple[Break, str]] = {
    "db garbage": (lambda s: garbage(s.db), "state.db is damaged, or not pdctl's"),
    "db empty": (lambda s: s.db.touch(), "nothing runs in"),
    "db a folder": (lambda s: s.db.mkdir(), "state.db: disk I/O error; is it a file"),
    "db of a newer pdctl": (lambda s: changed(s, "PRAGMA user_version=99"), "was written by a newer pdctl"),
    "db without a column": (
        lambda s: changed(s, "ALTER TABLE instances DROP COLUMN pid"),
        "no such column: pid",
    ),
    "db with a strange row": (lambda s: changed(s, "UPDATE instances SET state='flying'"), "'flying'"),
    "plan cut off": (lambda s: s.plan.write_text('{"name": "t", "inst'), "nothing runs in"),
    "plan garbage": (lambda s: garbage(s.plan), "nothing runs in"),
    "plan of another shape": (lambda s: s.plan.write_text("[1]"), "nothing runs in"),
    "plan a folder": (
        lambda s: (s.log("prefill-0").touch(), s.plan.mkdir()),
        "plan.json: Is a directory; move it away",
    ),
    "socket of a dead one": (lambda s: stale_socket(s.control), "nothing runs in"),
    "socket a folder": (lambda s: s.control.mkdir(), "control.sock: Is a directory; move it away"),
    "lock a folder": (lambda s: s.lock.mkdir(), "controller.lock: Is a directory; move it away"),
    "logs a file": (lambda s: s.logs.rmdir() or s.logs.touch(), "logs is no folder; move it away"),
    "a log a folder": (lambda s: s.log("prefill-0").mkdir(), "prefill-0.log: Is a directory; move it away"),
    "controller's log a folder": (lambda s: s.log("controller").mkdir(), "controller.log: Is a directory"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_every_command_says_what_is_wrong(
    name: str, tmp_path: Path, pdctl: Callable[..., tuple[int, str]]
) -> None:
    state = StateDir(tmp_path / "state")
    state.create()
    spoil, said = BROKEN[name]
    spoil(state)
    told = ""
    for command, *words in COMMANDS:
        code, text = pdctl(command, *words)
        assert code in (0, 3), text
        assert text, f"{command} said nothing"
        told += text
    assert said in told


def test_what_is_not_ours_is_refused(tmp_path: Path, pdctl: Callable[..., tuple[int, str]]) -> None:
    if os.geteuid() == 0:
        state = StateDir(tmp_path / "state")
        state.create()
        os.chown(state.root, 12345, -1)
        words: tuple[str, ...] = ()
    else:
        words = ("--set", "state_dir=/")
    code, text = pdctl("down", *words)
    assert code == 3
    assert "belongs to user id" in text
