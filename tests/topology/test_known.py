"""What the schema knows: fields by place, secrets by place, and the committed JSON Schemas."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.topology.known import fields_at, interpolates_at, json_schema, node_at, secret_at
from orchestrator.topology.profiles import ProfileFile
from orchestrator.topology.schema import Topology

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_fields_by_place() -> None:
    schema = json_schema(Topology)
    assert "pools" in fields_at(schema, ())
    assert fields_at(schema, ("pools",)) == (), "names of pools are the user's"
    assert "instances" in fields_at(schema, ("pools", "any"))
    assert fields_at(schema, ("pools", "any", "external", 3)) == (
        "url",
        "bootstrap_port",
        "kv_events_url",
        "kv_replay_url",
    )
    assert fields_at(schema, ("pools", "any", "runtime")) == (
        "python",
        "command",
        "version",
        "table",
    )
    assert fields_at(schema, ("no", "such", "place")) == ()
    assert node_at(schema, ("pools", "any", "flags", "x")) is not None


def test_secrets_by_place() -> None:
    schema = json_schema(Topology)
    secrets = [
        ("router", "credentials", "client_keys", 0),
        ("router", "credentials", "engine_key"),
        ("router", "credentials", "admin_key"),
        ("tenants", "a", "keys", 1),
    ]
    assert all(secret_at(schema, place) and interpolates_at(schema, place) for place in secrets)
    for place in [("pools", "p", "env", "HF_TOKEN"), ("nodes", 0, "env", "A"), ("router", "env", "A")]:
        assert interpolates_at(schema, place)
        assert not secret_at(schema, place)
    assert not interpolates_at(schema, ("name",))
    assert not interpolates_at(schema, ("pools", "p", "flags", "x"))


@pytest.mark.parametrize(
    ("file", "model", "command"),
    [
        ("topology.schema.json", Topology, "pdctl schema"),
        ("launch-profile.schema.json", ProfileFile, "pdctl schema profile"),
    ],
)
def test_the_committed_json_schema_is_current(file: str, model: type, command: str) -> None:
    committed = json.loads((DOCS / file).read_text())
    assert committed == json_schema(model), f"run: {command} > docs/{file}"


def test_every_setting_has_a_meaning() -> None:
    for model in (Topology, ProfileFile):
        schema = json_schema(model)
        for name, definition in {"top": schema, **schema["$defs"]}.items():
            for field, node in definition.get("properties", {}).items():
                assert node.get("description") or "$ref" in node, f"{name}.{field} has no description"
