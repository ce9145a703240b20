"""The modules that a compiled wheel compiles hold nothing that only works interpreted."""

import ast
import importlib.util
import os
import tomllib
from dataclasses import field, replace
from pathlib import Path
from typing import ClassVar

import constructors
import pytest

from orchestrator.core.frozen import record

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


EXAMPLE = '''
@record(slots=True)
class One:
    """A class."""

    name: str
    KIND: ClassVar[str] = "one"
    size: int = 3
    limit: float | None = None
    parts: list[str] = field(default_factory=list)
    made: int = field(init=False, default=7)
    later: str = field(init=False)

    def __post_init__(self) -> None:
        self.later = self.name * 2


class Two:
    x: int = 1
'''


def test_a_written_constructor_makes_what_the_dataclass_makes_itself():
    written = constructors.written(EXAMPLE)
    made = []
    for source in (EXAMPLE, written):
        names = {"record": record, "field": field, "ClassVar": ClassVar}
        exec(source, names)
        one, other = names["One"]("a"), names["One"]("b", 4, limit=2.0, parts=["x"])
        assert one.parts is not names["One"]("a").parts
        made.append((str(one), str(other), str(replace(other, size=5))))
    assert made[0] == made[1]
    assert "def __init__(self, name: str, size: int = 3, limit: float | None = None, " in written
    assert written.endswith(EXAMPLE[EXAMPLE.index("class Two") :])


def test_a_class_with_a_base_keeps_its_own_and_so_does_the_base():
    source = "@record(slots=True)\nclass One:\n    x: int\n@record(slots=True)\nclass Two(One):\n    y: int\n"
    assert constructors.inherited([source]) == {"One"}
    assert constructors.written(source, frozenset({"One"})) == source


def test_a_field_that_cannot_be_written_out_is_refused():
    with pytest.raises(ValueError, match=r"One\.x: a kind of field"):
        constructors.written("@record(slots=True)\nclass One:\n    x: int = field(kw_only=True, default=1)\n")


@pytest.mark.parametrize("path", COMPILED, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_compiled_module_has_constructors_that_can_be_written(path):
    compile(constructors.written(path.read_text()), str(path), "exec")
