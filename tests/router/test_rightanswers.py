"""Right answers that outlive the router, for the engines that gave them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.core.types import Role
from orchestrator.launch.testing import instance
from orchestrator.router.rightanswers import NAME, AnswerFile

ONE = replace(instance("p0", Role.PREFILL, 9000, ["engine"]), digest="a")


def test_what_was_right_is_remembered_for_the_same_engines_alone(tmp_path: Path) -> None:
    path = tmp_path / NAME
    AnswerFile(path, lambda: [ONE]).save({"m": ["10", "11"]})
    assert AnswerFile(path, lambda: [ONE]).load() == {"m": ["10", "11"]}
    assert AnswerFile(path, lambda: [replace(ONE, digest="b")]).load() == {}
    assert AnswerFile(path).load() == {}


@pytest.mark.parametrize("told", [b"", b"[]", b'{"m": 1}', b'{"m": {"plan": "x"}}'])
def test_a_file_that_makes_no_sense_is_no_memory(tmp_path: Path, told: bytes) -> None:
    (tmp_path / NAME).write_bytes(told)
    assert AnswerFile(tmp_path / NAME, lambda: [ONE]).load() == {}


def test_without_a_folder_or_a_file_nothing_is_remembered(tmp_path: Path) -> None:
    AnswerFile(None).save({"m": ["10"]})
    assert AnswerFile(None).load() == {}
    assert AnswerFile(tmp_path / NAME).load() == {}
    AnswerFile(tmp_path / "gone" / NAME).save({"m": ["10"]})


def test_it_is_written_when_something_has_changed(tmp_path: Path) -> None:
    answers = AnswerFile(tmp_path / NAME)
    answers.save({"m": ["10"]})
    (tmp_path / NAME).unlink()
    answers.save({"m": ["10"]})
    assert not (tmp_path / NAME).exists()
    answers.save({"m": ["10", "11"]})
    assert json.loads((tmp_path / NAME).read_text())["m"]["right"] == ["10", "11"]
