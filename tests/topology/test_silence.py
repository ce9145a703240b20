"""Silencing by rule and reason, and the rulebook of topology/rules and adapters that names are looked up in.

Covers silence, rulebook and rules.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.core.rules import WARN, reference
from orchestrator.engines.sglang import SGLang
from orchestrator.topology.rulebook import rulebook

DOC = Path(__file__).resolve().parents[2] / "docs" / "rules.md"
HOSTS = "nodes: [{name: a, rack: r}, {name: b, ports: 30000-30099}]\n"
MODE = "role: decode,\n    flags: {mode: prefill},"


def silence(rule: str, more: str = "") -> str:
    return f"silence:\n  {rule}: {{reason: tried it{more}}}\n"


def test_a_silenced_warning_is_told_apart(site, pair: str) -> None:
    plan = site.plan(pair + HOSTS + silence("racks"))
    assert plan.warnings == ()
    (apart,) = plan.silenced
    assert "[racks]" in apart
    assert apart.endswith("silenced: tried it")
    assert {i.silenced for i in plan.instances} == {("racks",)}


def test_a_silenced_error_lets_the_plan_go_on(site, pair: str) -> None:
    """By the name of a rule that only the adapter of this topology speaks by."""
    text = pair.replace("role: decode,", MODE)
    assert site.told(text) == ["t.yaml:6: pools.decode.flags.mode: contradicts the role [role-flags]"]
    plan = site.plan(text + silence("role-flags"))
    assert len(plan.silenced) == 1
    assert site.plan(text + silence("role-flags", ", pools: [decode]")).silenced == plan.silenced
    assert site.told(text + silence("role-flags", ", pools: [prefill]")) == [
        "t.yaml:6: pools.decode.flags.mode: contradicts the role [role-flags]"
    ]


def test_it_holds_for_the_named_pools_alone(site, pair: str) -> None:
    plan = site.plan(pair + silence("untried", ", pools: [decode]"))
    assert {i.pool: i.silenced for i in plan.instances} == {"prefill": (), "decode": ("untried",)}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            silence("rackss"),
            "t.yaml:7: silence.rackss: there is no lint rule 'rackss' [silence] (did you mean 'racks'?)",
        ),
        (
            silence("zzzzzz"),
            "t.yaml:7: silence.zzzzzz: there is no lint rule 'zzzzzz' [silence] (`pdctl rules` lists them)",
        ),
        (
            silence("ports"),
            "t.yaml:7: silence.ports: cannot be silenced: nothing could be launched",
        ),
        (
            silence("racks", ", pools: [decodes]"),
            "t.yaml:7: silence.racks.pools.0: there is no pool 'decodes' [silence] (did you mean 'decode'?)",
        ),
        ("silence: {racks: {}}\n", "t.yaml:6: silence.racks.reason: is required"),
        ("silence: {racks: {reason: ''}}\n", "t.yaml:6: silence.racks.reason: must not be empty"),
    ],
)
def test_a_silence_that_is_no_good_is_refused_with_its_line(
    site, pair: str, text: str, expected: str
) -> None:
    (told,) = site.told(pair + text)
    assert told.startswith(expected)


def test_a_silence_without_anything_to_silence_is_warned_of(site, pair: str) -> None:
    (warning,) = site.plan(pair + silence("racks")).warnings
    assert "t.yaml:7: silence.racks: finds nothing here [unused-silence] (remove it)" in warning
    # It may speak once the engines run.
    assert site.plan(pair + silence("page-size")).warnings == ()


def test_fixed_rules_speak_whatever_is_silenced(site, pair: str) -> None:
    told = site.told(pair + silence("placement"), "pools.decode.gpus=1")
    assert [line.rpartition("[")[2].partition("]")[0] for line in told] == ["placement", "silence"]


def test_every_rule_is_whole_and_its_name_a_slug() -> None:
    book = rulebook()
    assert len(book) > 40
    for name, rule in book.items():
        assert name == rule.name == name.lower().replace("_", "-")
        for text in (rule.finds, rule.why, rule.mend):
            assert text.endswith("."), (name, text)
        assert rule.severity in ("error", WARN)


def test_the_book_has_what_a_further_adapter_brings() -> None:
    class Mine(SGLang):
        rules = (next(iter(rulebook().values())),)

    assert rulebook([Mine()]) == rulebook()


def test_the_docs_hold_the_current_rules() -> None:
    command = "pdctl rules --format markdown"
    begin, end = f"<!-- rules: {command} -->\n", "<!-- end of rules -->"
    committed = DOC.read_text().partition(begin)[2].partition(end)[0]
    assert committed == reference(rulebook().values()), f"put the output of `{command}` between the markers"
