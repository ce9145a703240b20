"""The reference of every setting: complete, and the one in the docs."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.topology.known import json_schema
from orchestrator.topology.profiles import ProfileFile
from orchestrator.topology.reference import markdown, settings
from orchestrator.topology.schema import Topology

DOC = Path(__file__).resolve().parents[2] / "docs" / "topology.md"


def test_every_setting_has_a_row() -> None:
    schema = json_schema(Topology)
    text = markdown(schema)
    names = list(settings(schema))
    assert {"name", "nodes.N.ports", "pools.NAME.runtime.python", "router.credentials.client_keys"} <= set(
        names
    )
    for name in names:
        assert f"| `{name.rpartition('.')[2]}` |" in text
    for section in {name.rpartition(".")[0] for name in names} - {""}:
        assert f"### `{section}`" in text


def test_every_row_says_what_it_means() -> None:
    for model in (Topology, ProfileFile):
        for line in markdown(json_schema(model)).splitlines():
            if line.startswith("| `"):
                cells = line.strip("| ").split(" | ")
                assert len(cells) == 4, line
                assert cells[3], line


@pytest.mark.parametrize(
    ("model", "marker", "command"),
    [
        (Topology, "topology", "pdctl schema --format markdown"),
        (ProfileFile, "profile", "pdctl schema profile --format markdown"),
    ],
)
def test_the_docs_hold_the_current_reference(model: type, marker: str, command: str) -> None:
    text = DOC.read_text()
    begin, end = f"<!-- {marker} reference: {command} -->\n", f"<!-- end of {marker} reference -->"
    assert begin in text
    assert end in text
    committed = text.partition(begin)[2].partition(end)[0]
    assert committed == markdown(json_schema(model)), f"put the output of `{command}` between the markers"
