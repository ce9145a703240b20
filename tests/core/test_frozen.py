"""Data that is frozen to the type checker: equal and hashable by value, without a dictionary."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from orchestrator.core.frozen import frozen


@frozen(frozen=True, slots=True)
class Point:
    x: int
    y: int = 0


def test_it_is_a_dataclass_that_compares_and_hashes_by_value() -> None:
    assert [f.name for f in fields(Point)] == ["x", "y"]
    assert Point(1) == Point(1, 0) == replace(Point(1, 2), y=0) != Point(2)
    assert len({Point(1), Point(1, 0), Point(2)}) == 2


def test_it_has_its_fields_and_no_others() -> None:
    with pytest.raises(AttributeError):
        Point(1).z = 3  # type: ignore[attr-defined]
