"""The simulator's flags as the adapter knows them: those of its parser, and what is said of a user's."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.core.types import Role
from orchestrator.engines.base import InstanceSpec, LintContext
from orchestrator.engines.sim import Sim, SimVLLM
from orchestrator.engines.sim_flags import ALIASES, FORMS, Form
from orchestrator.sim.options import parser

Spec = Callable[..., InstanceSpec]
ACTIONS = [a for a in parser()._actions if not isinstance(a, argparse._HelpAction)]


def kind(action: argparse.Action) -> str:
    if isinstance(action, argparse._StoreTrueAction):
        return "switch"
    if action.nargs == "*":
        return "list"
    return {None: "text", int: "int"}.get(action.type, "float")  # type: ignore[arg-type]


def test_the_names_are_the_parsers() -> None:
    names = [[o.removeprefix("--") for o in action.option_strings] for action in ACTIONS]
    assert {first for first, *_ in names} == set(FORMS)
    assert {other: first for first, *others in names for other in others} == ALIASES


@pytest.mark.parametrize("action", ACTIONS, ids=lambda a: a.dest)
def test_the_forms_are_the_parsers(action: argparse.Action) -> None:
    form = FORMS[action.option_strings[0].removeprefix("--")]
    assert form.kind == kind(action)
    assert sorted(form.choices) == sorted(action.choices or ())
    if form.kind != "float":
        return
    for text in ("-1", "0", "0.5"):
        try:
            action.type(text)  # type: ignore[operator, misc]
            taken = True
        except argparse.ArgumentTypeError:
            taken = False
        assert (form.expects(text) is None) == taken, text


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"flags": {"max-runing": 64}}, "unknown-flag: --max-runing is unknown to the simulator (max-run"),
        ({"flags": {"port": 5000}}, "planned-flag: --port is set by the plan (ports come"),
        ({"flags": {"max-running": "lots"}}, "flag-value: --max-running should be a whole number, not 'lots"),
        ({"flags": {"link": "wet"}}, "flag-value: --link should be one of rdma, tcp, not 'wet'"),
        ({"flags": {"optimistic-prefill": 1}}, "flag-value: --optimistic-prefill should be true or false"),
        ({"options": {"spede": 2}}, "unknown-flag: is unknown to the simulator (speed"),
        ({"options": {"speed": "fast"}}, "flag-value: should be a number above 0, not 'fast'"),
        ({"options": {"speed": 0}}, "flag-value: should be a number above 0, not 0"),
        ({"options": {"kv_tokens": True}}, "flag-value: should be a whole number, not True"),
        ({"options": {"port": 1}}, "planned-flag: is set by the plan"),
    ],
)  # fmt: skip
def test_wrong_flags_and_options_are_refused(spec: Spec, given: dict[str, Any], expected: str) -> None:
    for adapter in (Sim(), SimVLLM()):
        (found,) = adapter.lint(LintContext((spec(Role.UNIFIED, **given),), {"unified": ("t.yaml", 7)}))
        hint = (found.hint or "").replace("did you mean ", "")
        assert f"{found.rule}: {found.message} ({hint}".startswith(expected)
        assert found.severity == "error"
        (place,) = [f"{where}.{name}" for where, values in given.items() for name in values]
        assert found.field == f"pools.unified.{place}"


def test_sound_flags_and_options_pass(spec: Spec) -> None:
    sound = spec(
        Role.UNIFIED,
        flags={"block-size": 32, "kv_tokens": "5000", "optimistic-prefill": True, "chunk": None},
        options={"dialect": "sglang", "speed": 2, "faults": {"rules": []}, "unchecked_media": True},
    )  # fmt: skip
    assert Sim().lint(LintContext((sound,), {})) == []
    assert Form("list").expects(["a"]) is None
    assert Form("list").expects(3) == "a list"
