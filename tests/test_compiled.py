"""The modules that a compiled wheel compiles hold nothing that only works interpreted."""

import ast
import importlib.util
import os
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HOOK = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"][
    "hooks"
]
PATTERNS = HOOK["mypyc"]["include"]
COMPILED = sorted(
    path
    for pattern in PATTERNS
    for path in ROOT.glob(pattern.removeprefix("/"))
    if path.name not in HOOK["mypyc"]["exclude"]
)


def decorators(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for decorator in node.decorator_list:
                called = decorator.func if isinstance(decorator, ast.Call) else decorator
                yield node.name, ast.unparse(called)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_each_pattern_matches_a_module(pattern):
    assert list(ROOT.glob(pattern.removeprefix("/")))


@pytest.mark.parametrize("path", COMPILED, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_compiled_class_is_no_slotted_dataclass_and_no_protocol_of_run_time(path):
    wrong = {"dataclass", "dataclasses.dataclass", "runtime_checkable"}
    found = [(name, how) for name, how in decorators(ast.parse(path.read_text())) if how in wrong]
    assert not found, f"{path}: {found}; use `frozen` or `record` of core/frozen.py, or leave it interpreted"


@pytest.mark.parametrize("path", COMPILED, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_compiled_class_inherits_from_nothing_that_is_interpreted(path):
    bases = [
        ast.unparse(base)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
        for base in node.bases
    ]
    assert not [base for base in bases if base.startswith("asyncio.")]


@pytest.mark.parametrize("path", COMPILED, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_is_tested_is_compiled_if_it_is_to_be(path):
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    source = importlib.util.find_spec(name).origin
    assert source.endswith(".so") == ("PDCTL_TEST_COMPILED" in os.environ)
