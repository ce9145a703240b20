"""pydantic's validation errors as findings in plain words: file, line, field, and the nearest known name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pydantic import ValidationError

from orchestrator.errors import Problem
from orchestrator.plugins import nearest
from orchestrator.topology.known import Json, fields_at, secret_at
from orchestrator.topology.source import Place, Source

_EXPECTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping of settings",
    "model_attributes_type": "a mapping of settings",
}
_BOUND = {
    "greater_than": ("more than", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("less than", "lt"),
    "less_than_equal": ("at most", "le"),
}
_ELSEWHERE = {
    "replicas": "instances",
    "count": "instances",
    "tensor-parallel-size": "tp",
    "tp-size": "tp",
    "pipeline-parallel-size": "pp",
    "pp-size": "pp",
    "data-parallel-size": "dp",
    "dp-size": "dp",
    "args": "flags",
    "extra-args": "flags",
    "environment": "env",
    "port": "listen",
    "host": "address",
    "model-path": "path",
    "served-model-name": "served_name",
    "launch-profile": "profile",
    "slos": "slo_classes",
}
"""What people who know other launchers write, and what it is called here."""


def translate(error: ValidationError, source: Source, schema: Json) -> list[Problem]:
    """Every finding of `error`, in the order of the file."""
    errors = error.errors(include_url=False)
    blamed = {tuple(e["loc"]) for e in errors}
    found: list[tuple[int, Problem]] = []
    for one in errors:
        place: Place = tuple(one["loc"])
        if one["type"] == "too_short" and any(b != place and b[: len(place)] == place for b in blamed):
            continue  # pydantic counts the items that survived; those that did not have findings of their own
        for at, message, hint in _words(dict(one), place, schema):
            problem = source.problem(at, message, hint=hint)
            found.append((problem.line or 0, problem))
    found.sort(key=lambda pair: pair[0])
    return [problem for _, problem in found]


def _words(error: dict[str, Any], place: Place, schema: Json) -> Iterator[tuple[Place, str, str | None]]:
    kind, context = error["type"], error.get("ctx", {})
    if place and place[-1] == "[key]":
        place = place[:-1]
    if kind == "findings":
        for below, message in context["found"]:
            yield (*place, *below), message, None
    elif kind == "extra_forbidden":
        yield place, "unknown field", _known_fields(place, schema)
    elif kind == "missing":
        yield place, "is required", None
    elif kind in ("enum", "literal_error"):
        allowed = [word.strip("'") for word in context["expected"].replace(" or ", ", ").split(", ")]
        close = nearest(str(error["input"]).lower(), allowed)
        hint = f"did you mean {close!r}?" if close else None
        yield place, f"{error['input']!r} is not one of {', '.join(allowed)}", hint
    elif kind in _EXPECTED:
        yield place, *_mistyped(error, place, schema)
    elif kind in _BOUND:
        words, key = _BOUND[kind]
        yield place, f"must be {words} {context[key]:g}, not {error['input']!r}", None
    elif kind in ("too_short", "string_too_short"):
        yield place, "must not be empty", None
    elif kind == "value_error":
        yield place, str(context["error"]), None
    else:
        yield place, str(error["msg"]), None


def _mistyped(error: dict[str, Any], place: Place, schema: Json) -> tuple[str, str | None]:
    expected, value = _EXPECTED[error["type"]], error["input"]
    if value is None:
        return f"has no value; it should be {expected}", None
    if secret_at(schema, place):
        return f"should be {expected}", "quote it"
    hint = None
    if expected == "text" and isinstance(value, int | float):
        hint = f'quote it: "{value}"'
    elif expected == "a list":
        hint = "write it as [one, two]"
    return f"should be {expected}, not {_shown(value)}", hint


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, bool):
        return str(value).lower()
    return f"the text {value[:60]!r}" if isinstance(value, str) else str(value)


def _known_fields(place: Place, schema: Json) -> str | None:
    """The nearest field name here, else where such a field belongs, else all there are."""
    name, parent = str(place[-1]), place[:-1]
    known = fields_at(schema, parent)
    close = nearest(name.lower().replace("-", "_"), known)
    alias = _ELSEWHERE.get(name.lower().replace("_", "-"))
    if alias in known:
        close = alias
    if close:
        return f"did you mean {close!r}?"
    homes = [".".join(map(str, h)) for h in _homes(schema, name)]
    if homes:
        return f"{name!r} belongs in {' or '.join(homes)}"
    return f"known here: {', '.join(known)}" if known else None


def _homes(schema: Json, name: str) -> list[Place]:
    """The top-level sections that have a field of this name."""
    sections = [(key,) for key in fields_at(schema, ())]
    return [place for place in sections if name in fields_at(schema, place)]


def close_to(word: str, known: Iterable[str]) -> str | None:
    """`did you mean ...?` for a name among `known`, else what is known; None if nothing is."""
    known = list(known)
    close = nearest(word, known)
    if close:
        return f"did you mean {close!r}?"
    return f"known: {', '.join(known)}" if known else None
