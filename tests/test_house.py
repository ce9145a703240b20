"""The house rules as tests: what no linter says about this tree but every change must keep true."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from orchestrator import errors

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("orchestrator", "policies", "launch_profiles")
BENCHMARKS = "scripts/benchmarks"
MODULES = sorted(p for folder in (*PACKAGES, BENCHMARKS) for p in (ROOT / folder).rglob("*.py"))
MAX_MODULE, MAX_FUNCTION = 400, 60
ENGINE_NAMES = re.compile(r"sglang|vllm|mooncake|nixl", re.IGNORECASE)
ENGINE_HOMES = ("orchestrator/engines/", "orchestrator/sim/")


def ident(path: Path) -> str:
    return str(path.relative_to(ROOT))


def docs() -> str:
    return "\n".join(p.read_text() for p in sorted((ROOT / "docs").rglob("*.md")))


@pytest.mark.parametrize("path", MODULES, ids=ident)
def test_every_module_says_what_it_is(path: Path) -> None:
    doc = ast.get_docstring(ast.parse(path.read_text()))
    assert doc, "no docstring"
    first = doc.split("\n\n")[0]
    assert first.rstrip().endswith((".", ":")), f"not a sentence: {first!r}"


@pytest.mark.parametrize("path", MODULES, ids=ident)
def test_modules_and_functions_stay_small(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= MAX_MODULE
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            assert length <= MAX_FUNCTION, f"{node.name} has {length} lines"


@pytest.mark.parametrize("path", MODULES, ids=ident)
def test_no_unfinished_work(path: Path) -> None:
    found = re.search(r"\b(TODO|FIXME|XXX|NotImplementedError)\b", path.read_text())
    assert found is None, found


def code_strings_and_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Names and string constants with their lines, docstrings left out: prose may name an engine."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    prose = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node.lineno, node.value
        elif isinstance(node, ast.Name):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute):
            yield node.lineno, node.attr


@pytest.mark.parametrize(
    "path", [p for p in MODULES if p.parts[len(ROOT.parts)] == "orchestrator"], ids=ident
)
def test_no_engine_name_outside_its_home(path: Path) -> None:
    if ident(path).startswith(ENGINE_HOMES):
        return
    for line, text in code_strings_and_names(ast.parse(path.read_text())):
        assert not ENGINE_NAMES.search(text), f"line {line}: {text!r}"


@pytest.mark.parametrize("path", [p for p in MODULES if p.name != "__init__.py"], ids=ident)
def test_tests_mirror_the_packages(path: Path) -> None:
    """Each module has a test module of its name, or is named in one of its package's tests' docstrings."""
    relative = path.relative_to(ROOT)
    below = Path(*relative.parts[1:]) if relative.parts[0] in ("orchestrator", "scripts") else relative
    folder = ROOT / "tests" / below.parent
    stem = below.stem.strip("_")
    if any(folder.glob(f"test_{stem}*.py")):
        return
    mentions = re.compile(rf"\b{re.escape(below.stem)}\b")
    docs = [ast.get_docstring(ast.parse(t.read_text())) or "" for t in folder.glob("test_*.py")]
    assert any(mentions.search(d) for d in docs), f"no test covers {relative} by name"


@pytest.mark.parametrize(
    "group", ["pdctl.policies", "pdctl.predictors", "pdctl.engines", "pdctl.launchers", "pdctl.profiles"]
)
def test_every_registered_plugin_loads(group: str) -> None:
    found = entry_points(group=group)
    assert found
    for point in found:
        assert point.load() is not None


def test_every_shipped_policy_is_registered_and_documented() -> None:
    registered = {e.value.partition(":")[0]: e.name for e in entry_points(group="pdctl.policies")}
    text = (ROOT / "docs" / "policies.md").read_text()
    for kind in ("filters", "scorers", "orders", "pickers"):
        for path in sorted((ROOT / "policies" / kind).glob("[!_]*.py")):
            name = registered.get(f"policies.{kind}.{path.stem}")
            assert name, f"{ident(path)} is not registered"
            assert f"`{name}`" in text, f"{name} is not in docs/policies.md"


def test_every_error_is_documented() -> None:
    text = docs()
    for _, error in inspect.getmembers(errors, inspect.isclass):
        if issubclass(error, errors.PdctlError) and error is not errors.PdctlError:
            assert error.default_reason in text, f"{error.__name__} ({error.default_reason}) is in no doc"


def test_every_dependency_has_its_reason() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    listed = re.search(r"^dependencies = \[(.*?)^\]", project, re.DOTALL | re.MULTILINE)
    assert listed
    text = (ROOT / "docs" / "dependencies.md").read_text()
    for name in re.findall(r'"([a-z0-9-]+)', listed[1]):
        assert f"| {name} |" in text, f"{name} has no line in docs/dependencies.md"


def test_packages_import_under_their_own_names() -> None:
    for package in PACKAGES:
        assert importlib.import_module(package).__name__ == package


def test_relative_links_in_docs_lead_somewhere() -> None:
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text()):
            if "://" not in target:
                assert (path.parent / target).exists(), f"{ident(path)} links to {target}"
