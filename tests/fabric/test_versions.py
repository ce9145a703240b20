"""Versions asked of a real interpreter, and of things that are none."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from orchestrator.errors import LaunchError
from orchestrator.fabric import versions


def script(folder: Path, text: str) -> str:
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_the_environment_tells_what_it_has() -> None:
    found = versions.installed([sys.executable], ["httptools", "no-such-distribution"])
    assert found == {"httptools": version("httptools")}


def test_a_prefix_may_print_before_the_answer(tmp_path: Path) -> None:
    runner = script(tmp_path, f'echo "Welcome to the container"; exec {sys.executable} "$@"')
    assert "httptools" in versions.installed([runner], ["httptools"])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("echo broken >&2; exit 3", "exit code 3: broken"),
        ("echo hello", "did not behave"),
        ("exec sleep 60", "no answer"),
    ],
)
def test_what_is_no_python_is_refused_with_the_reason(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(LaunchError, match=why) as caught:
        versions.installed([script(tmp_path, text)], ["httptools"], timeout_s=2.0)
    assert caught.value.reason == "runtime-broken"


def test_a_missing_interpreter_is_named(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="nowhere/python: No such file"):
        versions.installed([str(tmp_path / "nowhere" / "python")], ["httptools"])
