"""The exception tree: every class has its own slug, and its place in the tree says what it becomes."""

from __future__ import annotations

import inspect
import re

import pytest

from orchestrator import errors
from orchestrator.errors import Overloaded, PdctlError, Problem, RequestError, TopologyError

CLASSES = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, PdctlError)]


@pytest.mark.parametrize("error", CLASSES, ids=lambda c: c.__name__)
def test_reasons_are_slugs(error: type[PdctlError]) -> None:
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", error.default_reason)


def test_reasons_tell_classes_apart() -> None:
    reasons = [c.default_reason for c in CLASSES]
    assert len(set(reasons)) == len(reasons)


def test_the_drawing_names_every_class() -> None:
    drawn = errors.__doc__ or ""
    for error in CLASSES:
        assert re.search(rf"\b{error.__name__}\b", drawn), f"{error.__name__} is not in the tree's drawing"


def test_request_errors_become_http_errors() -> None:
    for error in CLASSES:
        if issubclass(error, RequestError):
            assert 400 <= error.http_status < 600
    refused = Overloaded("full", retry_after_s=2.5)
    assert (refused.http_status, refused.reason, refused.retry_after_s) == (429, "overloaded", 2.5)
    assert Overloaded("full", reason="queue-full").reason == "queue-full"


def test_a_problem_reads_as_place_field_message_and_mend() -> None:
    whole = Problem("unknown field", file="t.yaml", line=3, field="pools.p.rolle", hint="did you mean role?")
    assert str(whole) == "t.yaml:3: pools.p.rolle: unknown field (did you mean role?)"
    assert str(Problem("no nodes", rule="empty-fleet")) == "no nodes [empty-fleet]"


def test_a_topology_error_shows_every_problem() -> None:
    error = TopologyError([Problem("one"), Problem("two", file="t.yaml")])
    assert str(error).splitlines() == ["one", "t.yaml: two"]
    assert len(error.problems) == 2
