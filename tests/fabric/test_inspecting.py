"""Asking an installed engine: a real interpreter, and what is said when it cannot answer."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from orchestrator.engines.capabilities import Recipe, dump, parse, program
from orchestrator.errors import LaunchError
from orchestrator.fabric.inspecting import inspect

HERE = Recipe(
    distributions=("pytest",),
    parser="tiny:add",
    variables="tiny:variables",
    scan=(("tiny", "TINY_"),),
)


@pytest.fixture
def python(tmp_path: Path) -> list[str]:
    """Our interpreter with a module `tiny` to ask."""
    (tmp_path / "tiny.py").write_text(
        "print('hello')\n"
        "def add(parser): parser.add_argument('--x', type=int)\n"
        "variables = {'TINY_A': lambda: 1}\n"
    )
    return ["/usr/bin/env", f"PYTHONPATH={tmp_path}", sys.executable]


def test_what_it_knows(python: list[str]) -> None:
    table = parse(dump(inspect(python, program(), asdict(HERE))))
    assert table.flags["x"].kind == "int"
    assert table.variables == {"TINY_A": 1}
    assert table.version[0].isdigit()


def failure(interpreter: list[str], timeout_s: float = 60.0) -> str:
    with pytest.raises(LaunchError) as caught:
        inspect(interpreter, program(), asdict(HERE), timeout_s)
    assert caught.value.reason == "inspect-failed"
    return caught.value.message


def test_why_it_cannot_answer(tmp_path: Path) -> None:
    assert "No such file" in failure([str(tmp_path / "python")])
    assert "No module named 'tiny'" in failure([sys.executable])
    assert "did not answer" in failure(["/bin/echo"])
    sleeper = tmp_path / "sleeper"
    sleeper.write_text("#!/bin/sh\nexec sleep 60\n")
    sleeper.chmod(0o755)
    assert "no answer within 0.2 s" in failure([str(sleeper)], 0.2)
