"""How an interpreter was built, by what it says of itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.fabric import interpreter
from orchestrator.fabric.interpreter import DEBIAN, mine, slow_build

PLAIN = "'--prefix=/opt/python' '--enable-shared'"
SCHEMES = ("posix_prefix", "posix_home", "venv")


def test_a_build_without_profiles_is_told_of() -> None:
    told = slow_build(PLAIN, SCHEMES)
    assert told is not None
    assert "--enable-optimizations" in told


@pytest.mark.parametrize(
    ("configured", "schemes"),
    [
        (f"{PLAIN} '--enable-optimizations' '--with-lto'", SCHEMES),
        (PLAIN, (*SCHEMES, DEBIAN)),
        (None, SCHEMES),
        ("", SCHEMES),
    ],
    ids=["optimized", "Debian's", "does not tell", "tells nothing"],
)
def test_others_are_not(configured: str | None, schemes: tuple[str, ...]) -> None:
    assert slow_build(configured, schemes) is None


def test_the_script_says_the_same_of_the_interpreter_that_runs_it() -> None:
    done = subprocess.run(
        [sys.executable, "-P", str(Path(interpreter.__file__))], capture_output=True, text=True, check=True
    )
    assert done.stdout == (mine() or "")
