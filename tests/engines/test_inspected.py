"""The program for an engine's environment, run by a real interpreter on a small engine of this test's own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.engines import inspected

ENGINE = {
    "cli.py": '''
import argparse
class Parser(argparse.ArgumentParser):
    pass
class DeprecatedAction(argparse.Action):
    new_flag = "--mode"
    def __call__(self, *_): ...
def add(parser):
    assert isinstance(parser, Parser)
    parser.add_argument("--page_size", "--block-size", type=int, default=16)
    parser.add_argument("--mode", choices=["a", "b"], default="a")
    parser.add_argument("--any", choices={"z", "y"})
    parser.add_argument("--ratio", type=float)
    parser.add_argument("--names", nargs="+", default=["x"])
    parser.add_argument("--trace", nargs="?")
    parser.add_argument("--data", type=__import__("json").loads)
    parser.add_argument("--fast", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--home", default=__import__("os").path.expanduser("~/x"))
    parser.add_argument("--old", action=DeprecatedAction)
    parser.add_argument("positional", nargs="?")
    return parser
''',
    "envs.py": '''
import os
class Gone:
    replacement, note = "TINY_NEW", "Since 1.0."
declared = {"TINY_A": lambda: int(os.getenv("TINY_A", "3")), "TINY_B": lambda: 1 / 0, "OTHER": lambda: None}
gone = {"TINY_OLD": Gone()}
class Field:
    def __init__(self, default): self.default = default
class Fields:
    TINY_A = Field(3)
    TINY_F = Field(print)
fields = Fields()
''',
    "use.py": 'import os\nos.getenv("TINY_SEEN_2")\n# TINY_ and MY_TINY_X and TINY_x are none\n',
    "__init__.py": "",
}  # fmt: skip


@pytest.fixture
def site(tmp_path: Path) -> Path:
    for name, text in ENGINE.items():
        path = tmp_path / "tiny" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    info = tmp_path / "tiny_engine-1.5.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-engine\nVersion: 1.5.0\n")
    return tmp_path


def run(site: Path, **changes: Any) -> subprocess.CompletedProcess[str]:
    recipe = {
        "distributions": ["not-there", "tiny-engine"],
        "parser": "tiny.cli:add",
        "parser_class": "tiny.cli:Parser",
        "variables": "tiny.envs:declared",
        "replaced": "tiny.envs:gone",
        "scan": [["tiny", "TINY_"], ["no_such_package", "NO_"]],
    } | changes
    program = Path(inspected.__file__).read_text()
    return subprocess.run(
        [sys.executable, "-c", program, json.dumps(recipe)],
        env={"PYTHONPATH": str(site), "HOME": "/home/someone"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def told(site: Path, **changes: Any) -> dict[str, Any]:
    done = run(site, **changes)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.rstrip().rpartition("\n")[2])
    return answer


def test_flags_with_kind_default_choices_and_names(site: Path) -> None:
    answer = told(site)
    assert answer["version"] == "1.5.0"
    assert answer["flags"] == {
        "any": {"kind": "text", "choices": ["y", "z"], "default": None},
        "data": {"kind": "text", "default": None},
        "fast": {"kind": "switch", "default": True},
        "home": {"kind": "text"},
        "mode": {"kind": "text", "choices": ["a", "b"], "default": "a"},
        "names": {"kind": "list", "default": ["x"]},
        "old": {"kind": "text", "default": None, "deprecated": "--mode", "gone": False},
        "page-size": {"kind": "int", "default": 16, "also": ["block-size"]},
        "ratio": {"kind": "float", "default": None},
        "trace": {"kind": "text", "bare": True, "default": None},
    }


def test_variables_that_are_declared_and_those_that_are_only_read(site: Path) -> None:
    answer = told(site)
    assert answer["variables"] == {
        "OTHER": {"default": None},
        "TINY_A": {"default": 3},
        "TINY_B": {},
        "TINY_F": {},
        "TINY_NEW": {},
        "TINY_OLD": {},
        "TINY_SEEN_2": {},
    }
    assert answer["replaced"] == {"TINY_OLD": "TINY_NEW Since 1.0."}


def test_variables_that_are_fields_of_an_object(site: Path) -> None:
    answer = told(site, variables="tiny.envs:fields", replaced=None, scan=[])
    assert answer["variables"] == {"TINY_A": {"default": 3}, "TINY_F": {}}
    assert answer["replaced"] == {}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"distributions": ["not-there"]}, "no not-there is installed here"),
        ({"parser": "tiny.nowhere:add"}, "No module named 'tiny.nowhere'"),
        ({"variables": "tiny.envs:nothing"}, "has no attribute 'nothing'"),
    ],
)
def test_an_engine_that_is_laid_out_otherwise_is_an_error(
    site: Path, changes: dict[str, Any], says: str
) -> None:
    done = run(site, **changes)
    assert done.returncode != 0
    assert says in done.stderr
