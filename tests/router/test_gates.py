"""Gates: whose they are, and that they outlive the router."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.router.gates import CONTROLLER, OPERATOR, GateFile


def test_what_is_saved_is_loaded_again(tmp_path: Path) -> None:
    path = tmp_path / "gates.json"
    GateFile(path).save({"p0": {OPERATOR, CONTROLLER}, "d0": {CONTROLLER}, "d1": set()})
    assert GateFile(path).load() == {"p0": {OPERATOR, CONTROLLER}, "d0": {CONTROLLER}}
    assert not list(tmp_path.glob("*.new"))


def test_nothing_is_remembered_without_a_file(tmp_path: Path) -> None:
    nowhere = GateFile(None)
    nowhere.save({"p0": {OPERATOR}})
    assert nowhere.load() == {}
    assert GateFile(tmp_path / "gates.json").load() == {}


@pytest.mark.parametrize("content", ["", "[]", "{", '{"p0": 1}', '{"p0": null}'])
def test_a_broken_file_is_said_and_done_without(
    tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "gates.json"
    path.write_text(content)
    assert GateFile(path).load() == {}
    assert "gates are forgotten" in caplog.text


def test_strangers_among_the_holders_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "gates.json"
    path.write_text(json.dumps({"p0": ["somebody", OPERATOR]}))
    assert GateFile(path).load() == {"p0": {OPERATOR}}


def test_where_it_cannot_be_written_the_gates_hold_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    GateFile(tmp_path / "missing" / "gates.json").save({"p0": {OPERATOR}})
    assert "gates cannot be remembered" in caplog.text
