"""docs/router.md against the code: every slug a client may meet, every admin route, every log level."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from orchestrator import errors
from orchestrator.router import logs
from orchestrator.wire import connection

ROOT = Path(__file__).resolve().parent.parent.parent
TEXT = (ROOT / "docs" / "router.md").read_text()

SOURCES = sorted(
    path
    for folder in ("router", "engines")
    for path in (ROOT / "orchestrator" / folder).rglob("*.py")
    if path.stem not in ("lint", "linting", "command", "sim")
)


def slugs(path: Path) -> set[str]:
    return set(re.findall(r'\breason="([a-z-]+)"', path.read_text()))


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT / "orchestrator")))
def test_every_reason_is_documented(path: Path) -> None:
    assert {slug for slug in slugs(path) if f"`{slug}`" not in TEXT} == set()


def test_reasons_are_found_at_all() -> None:
    found = set().union(*map(slugs, SOURCES))
    assert {"draining", "prompt-too-long", "engine-auth"} <= found


@pytest.mark.parametrize("module", [errors, connection])
def test_every_class_of_error_that_a_client_may_meet_is_documented(module: object) -> None:
    roots = (errors.RequestError, connection.WireError)
    for _, error in inspect.getmembers(module, inspect.isclass):
        if issubclass(error, roots) and error not in roots:
            assert f"`{error.default_reason}`" in TEXT, error.__name__


def test_every_admin_route_is_documented() -> None:
    source = (ROOT / "orchestrator" / "router" / "admin.py").read_text()
    routes = re.findall(r'\("(GET|POST)", "(/\w+)"\): ', source)
    assert len(routes) == 9
    for method, path in routes:
        assert f"| `{method} {path}`" in TEXT


def test_every_log_level_is_documented() -> None:
    for level in logs.LEVELS:
        assert f"`{level}`" in TEXT
