"""What a settings model knows, read off its JSON Schema: the fields of a place, and which are secrets."""

from __future__ import annotations

from functools import cache
from typing import Any

from pydantic import BaseModel

from orchestrator.topology.source import Place

Json = dict[str, Any]

EXTENSION = "x-"
"""Top-level keys that begin so are ignored: a home for YAML anchors."""


@cache
def json_schema(model: type[BaseModel]) -> Json:
    """The JSON Schema of `model`, as editors use it; treat it as read-only."""
    schema = _plain(model.model_json_schema())
    assert isinstance(schema, dict)
    schema["patternProperties"] = {f"^{EXTENSION}": {"description": "Ignored: a home for YAML anchors."}}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _plain(value: Any, in_properties: bool = False) -> Any:
    """`value` without the titles pydantic makes of field names."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _plain(item, in_properties=key in ("properties", "$defs"))
        for key, item in value.items()
        if in_properties or key != "title"
    }


def node_at(schema: Json, place: Place) -> Json | None:
    """The part of `schema` that describes `place`; None where nothing is known of it."""
    node: Json | None = schema
    for step in place:
        node = _step(schema, node, step) if node is not None else None
    return None if node is None else _resolved(schema, node)


def fields_at(schema: Json, place: Place) -> tuple[str, ...]:
    """The field names that may stand at `place`; none if any key may, or it is no mapping."""
    node = node_at(schema, place)
    return tuple(node.get("properties", ())) if node else ()


def secret_at(schema: Json, place: Place) -> bool:
    """Whether the value at `place` is a key or a list of keys, which no message may repeat."""
    node = node_at(schema, place) or {}
    items = node.get("items")
    return "password" in (node.get("format"), items.get("format") if isinstance(items, dict) else None)


def interpolates_at(schema: Json, place: Place) -> bool:
    """Whether `${env:NAME}` is filled in at `place`."""
    node = node_at(schema, place)
    return node is not None and (node.get("format") == "password" or bool(node.get("x-interpolates")))


def _resolved(schema: Json, node: Json) -> Json:
    """`node` with its reference followed, and `X or null` taken as X."""
    while True:
        if "$ref" in node:
            node = schema["$defs"][node["$ref"].rpartition("/")[2]]
            continue
        choices = [c for c in node.get("anyOf", ()) if c.get("type") != "null"]
        if len(choices) != 1:
            return node
        node = choices[0]


def _step(schema: Json, node: Json, step: str | int) -> Json | None:
    node = _resolved(schema, node)
    if isinstance(step, int):
        items = node.get("items")
        return items if isinstance(items, dict) else None
    found = node.get("properties", {}).get(step)
    if found is None:
        found = node.get("additionalProperties")
    if found is None:
        found = next(iter(node.get("patternProperties", {}).values()), None)
    return found if isinstance(found, dict) else None
