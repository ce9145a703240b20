"""Tables that a topology brings itself stand in for the shipped ones."""

from __future__ import annotations

import pytest

from orchestrator.engines.capabilities import dump

TOPOLOGY = """\
name: own
model: {path: org/model, vocab_size: 9}
pools:
  only: {role: unified, engine: sglang, gpus: 0, flags: {brand-new: 1},
         runtime: {version: 0.9.9, table: ./0.9.9.json}}
router: {auth: none}
"""
TOLD = {
    "version": "0.9.9",
    "flags": {"brand-new": {"kind": "int"}},
    "variables": {},
    "replaced": {},
}


def test_it_is_what_names_and_values_are_held_against(site) -> None:
    (site.folder / "0.9.9.json").write_bytes(dump(TOLD))
    assert site.plan(TOPOLOGY).warnings == ()
    (told,) = site.told(TOPOLOGY, "pools.only.flags={brand-newer: 1}")
    assert "--brand-newer is not a flag of version 0.9.9 [unknown-flag] (did you mean --brand-new?)" in told
    (told,) = site.told(TOPOLOGY, "pools.only.flags.brand-new=x")
    assert "[flag-value]" in told
    warnings = site.plan(TOPOLOGY, "pools.only.runtime={version: 0.9.9}").warnings
    assert ["[unknown-version]" in w or "[unknown-flag]" in w for w in warnings] == [True, True]


@pytest.mark.parametrize(
    ("text", "says"), [(None, "No such file"), ("{", "unexpected end"), ("{}", "is no table")]
)
def test_one_that_cannot_be_read_is_refused_with_its_line(site, text: str | None, says: str) -> None:
    if text is not None:
        (site.folder / "0.9.9.json").write_text(text)
    (told,) = site.told(TOPOLOGY)
    assert told.startswith("t.yaml:5: pools.only.runtime.table: ")
    assert says in told
