"""Every setting of a settings model as Markdown tables, from the same schema that validates it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from orchestrator.topology.known import Json


def markdown(schema: Json) -> str:
    """One table per section: field, form, default, meaning. Ends in a newline."""
    return "\n".join(_sections(schema)) + "\n"


def settings(schema: Json) -> Iterator[str]:
    """The dotted name of every setting, mapping keys as NAME and list items as N."""
    for path, node in _objects(schema):
        for name in node.get("properties", {}):
            yield ".".join((*path, name))


def _sections(schema: Json) -> Iterator[str]:
    for path, node in _objects(schema):
        title = ".".join(path) or "Top level"
        yield f"### {f'`{title}`' if path else title}"
        yield ""
        if node.get("description"):
            yield from (node["description"].splitlines()[0], "")
        yield "| setting | form | default | meaning |"
        yield "|---|---|---|---|"
        required = node.get("required", ())
        for name, field in node.get("properties", {}).items():
            default = "required" if name in required else _default(field)
            cells = (f"`{name}`", _form(schema, field), default, _meaning(schema, field))
            yield "| " + " | ".join(cells) + " |"
        yield ""


def _objects(
    schema: Json, node: Json | None = None, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Json]]:
    """Every mapping of settings with its path, in the order of the file."""
    node = schema if node is None else node
    yield path, node
    for name, field in node.get("properties", {}).items():
        inner, below = _inner(schema, field, (*path, name))
        if inner is not None:
            yield from _objects(schema, inner, below)


def _inner(schema: Json, field: Json, path: tuple[str, ...]) -> tuple[Json | None, tuple[str, ...]]:
    """The mapping of settings that a field holds, directly or as items or values, and its path."""
    field = _followed(schema, field)
    if "properties" in field:
        return field, path
    if isinstance(field.get("items"), dict):
        return _inner(schema, field["items"], (*path, "N"))
    values = field.get("additionalProperties") or next(
        iter(field.get("patternProperties", {}).values()), None
    )
    if isinstance(values, dict) and field.get("type") == "object":
        return _inner(schema, values, (*path, "NAME"))
    return None, path


def _followed(schema: Json, field: Json) -> Json:
    if "$ref" in field:
        return _followed(schema, schema["$defs"][field["$ref"].rpartition("/")[2]])
    choices = [c for c in field.get("anyOf", ()) if c.get("type") != "null"]
    return _followed(schema, choices[0]) if len(choices) == 1 else field


def _meaning(schema: Json, field: Json) -> str:
    """Its own description, else that of the form it holds (pydantic drops a repeated one)."""
    said = field.get("description") or _followed(schema, field).get("description", "")
    return str(said).replace("\n", " ")


def _form(schema: Json, field: Json) -> str:
    """What to write: a type, or the allowed words."""
    field = _followed(schema, field)
    if "enum" in field:
        return ", ".join(f"`{word}`" for word in field["enum"])
    if "anyOf" in field:
        return " or ".join(_form(schema, choice) for choice in field["anyOf"])
    kind = field.get("type", "any")
    if isinstance(kind, list):
        return "any YAML value" if len(kind) > 3 else " or ".join(k for k in kind if k != "null")
    if "|ms|s|m|h)" in field.get("pattern", ""):
        return "duration"
    if "i?B" in field.get("pattern", ""):
        return "size"
    if kind == "array":
        return f"list of {_form(schema, field['items'])}"
    if kind == "object":
        return "mapping"
    return {"string": "text", "integer": "whole number", "boolean": "true or false"}.get(kind, str(kind))


def _default(field: Json) -> str:
    value: Any = field.get("default")
    if value in (None, "", [], {}):
        return ""
    return (
        f"`{value}`"
        if isinstance(value, str)
        else f"`{json.dumps(value)}`"
        if not isinstance(value, dict)
        else ""
    )
