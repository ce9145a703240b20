"""Fault scripts are read strictly, and strike as often as they say."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from orchestrator.sim.faults import KINDS, BadFault, Faults, parse


def faults(*rules: dict[str, Any]) -> Faults:
    made = Faults(Random(7))
    made.add(parse(list(rules)))
    return made


def test_scripts_are_inline_files_or_data(tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    path.write_text('{"rules": [{"kind": "hang", "count": 3}]}')
    for script in (str(path), path.read_text(), path.read_bytes(), [{"kind": "hang", "count": 3}]):
        (rule,) = parse(script)
        assert (rule.kind, rule.count) == ("hang", 3)
    assert parse({"kind": "freeze"})[0].kind == "freeze"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("[", "not JSON"),
        ("/no/such/file", "No such file"),
        ("5", "No such file"),
        ("[5]", "rule 0: `kind`"),
        ('[{"kind": "nap"}]', "must be one of"),
        ('[{"kind": "slow", "speed": 2}]', "unknown field 'speed'"),
        ('[{"kind": "slow", "factor": "big"}]', "factor has the wrong type"),
        ('[{"kind": "error", "status": true}]', "status has the wrong type"),
        ('{"rules": 5}', "a list of rules"),
    ],
)
def test_a_bad_script_names_rule_and_field(script: str, words: str) -> None:
    with pytest.raises(BadFault, match=r".") as caught:
        parse(script)
    assert words in str(caught.value)


def test_a_count_runs_out() -> None:
    made = faults({"kind": "error", "count": 2})
    assert [made.strike("error") is not None for _ in range(3)] == [True, True, False]
    assert made.fired == {"error": 2}
    assert made.rules == {}


def test_a_rate_is_thrown_with_the_dice_given() -> None:
    hits = [
        [made.strike("error") is not None for _ in range(200)]
        for made in (faults({"kind": "error", "rate": 0.25}), faults({"kind": "error", "rate": 0.25}))
    ]
    assert hits[0] == hits[1]
    assert 30 < sum(hits[0]) < 70


def test_paths_and_peers_are_respected() -> None:
    made = faults({"kind": "error", "path": "/v1/chat"}, {"kind": "garbage", "peer": "h:1"})
    assert made.strike("error", "/v1/completions") is None
    assert made.strike("error", "/v1/chat/completions") is not None
    assert made.strike("garbage", peer="h:2") is None
    assert made.strike("garbage", peer="h:1") is not None


def test_slowness_multiplies_and_rules_can_be_lifted() -> None:
    made = faults({"kind": "slow", "factor": 2.0}, {"kind": "slow", "factor": 3.0})
    assert made.factor() == 6.0
    first = made.first("slow")
    assert first is not None
    made.drop(first)
    assert made.factor() == 3.0
    made.clear()
    assert (made.factor(), made.first("slow")) == (1.0, None)
    made.add(parse([{"kind": "slow-link", "factor": 5.0}]))
    assert (made.factor(), made.factor("slow-link")) == (1.0, 5.0)


def test_every_kind_is_in_the_doc() -> None:
    doc = (Path(__file__).parents[2] / "docs" / "simulated-engine.md").read_text()
    for kind, what in KINDS.items():
        assert f"`{kind}`" in doc
        assert what
