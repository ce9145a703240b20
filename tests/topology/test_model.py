"""What a model's folder says: the size of its vocabulary, wherever its description has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.topology.model import vocab_size

POOLS = "pools: {u: {role: unified, engine: sglang, external: [{url: 'http://10.0.0.1:1'}]}}\n"


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ('{"vocab_size": 2048}', 2048),
        ('{"text_config": {"vocab_size": 5}, "vocab_size": 2048}', 5),
        ('{"text_config": {}, "vocab_size": 2048}', 2048),
        ('{"text_config": null, "vocab_size": 2048}', 2048),
        ('{"vocab_size": "2048"}', None),
        ('{"vocab_size": 0}', None),
        ('{"vocab_size": true}', None),
        ("[]", None),
        ("{", None),
        ("\udcff", None),
    ],
)
def test_the_size_as_the_description_has_it(tmp_path: Path, config: str, expected: int | None) -> None:
    (tmp_path / "config.json").write_bytes(config.encode(errors="surrogateescape"))
    assert vocab_size(tmp_path) == expected


def test_no_folder_and_no_description(tmp_path: Path) -> None:
    assert vocab_size(tmp_path) is None
    assert vocab_size(tmp_path / "none") is None
    (tmp_path / "config.json").mkdir()
    assert vocab_size(tmp_path) is None


def test_a_plan_knows_the_vocabulary_of_a_folder_and_believes_the_topology_first(site) -> None:
    text = "name: x\nmodel: {path: ./weights, served_name: m}\n" + POOLS
    assert "vocab_size" not in site.plan(text).instance("u-0").facts
    (site.folder / "weights").mkdir()
    (site.folder / "weights" / "config.json").write_text('{"vocab_size": 2048}')
    plan = site.plan(text)
    assert plan.instance("u-0").facts["vocab_size"] == 2048
    assert plan.warnings == ()
    assert site.plan(text, "model.vocab_size=7").instance("u-0").facts["vocab_size"] == 7
    # A hub id is no folder, even where one of that name lies about.
    assert "vocab_size" not in site.plan(text, "model.path=weights").instance("u-0").facts
