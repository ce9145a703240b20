"""Which class a request is of: header, body, tenant and default, the clamp, and long prompts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.classes import Chosen, ClassRules, LongPrompts, PriorityRange, TenantClasses
from orchestrator.core.slo import Priority, SloClass
from orchestrator.errors import BadRequest

CLASSES = {
    "realtime": SloClass("realtime", priority=Priority.REALTIME),
    "interactive": SloClass("interactive"),
    "long": SloClass("long"),
    "batch": SloClass("batch", priority=Priority.BATCH),
}
TIERS = {"flex": "batch", "priority": "realtime"}
PRIORITIES = (PriorityRange("realtime", at_most=-1), PriorityRange("batch", at_least=10))


def rules(**more: Any) -> ClassRules:
    return ClassRules(CLASSES, **more)


def test_without_a_word_on_classes_nothing_is_promised() -> None:
    plain = rules()
    assert plain.idle
    assert plain.choose(None, {"service_tier": "flex", "priority": 3}, "acme", 9) == Chosen(None)
    assert plain.choose("batch", {}, None, 9) == Chosen("batch"), "the shipped ones can be named all the same"


@pytest.mark.parametrize(
    ("named", "fields", "tenant", "expected"),
    [
        ("long", {"service_tier": "flex", "priority": -5}, "acme", "long"),
        (None, {"service_tier": "flex", "priority": -5}, "acme", "batch"),
        (None, {"service_tier": "auto", "priority": -5}, "acme", "realtime"),
        (None, {"service_tier": 7, "priority": 10}, "acme", "batch"),
        (None, {"priority": 0}, "acme", "long"),
        (None, {"priority": True}, "acme", "long"),
        (None, {"priority": "-5"}, "acme", "long"),
        (None, {"priority": -5.0}, "acme", "long"),
        (None, {"priority": 0}, None, "interactive"),
        (None, {}, "someone", "interactive"),
    ],
)
def test_the_first_that_names_one_counts(
    named: str | None, fields: dict[str, Any], tenant: str | None, expected: str
) -> None:
    chosen = rules(
        default="interactive",
        tiers=TIERS,
        priorities=PRIORITIES,
        tenants={"acme": TenantClasses(default="long", allowed=tuple(CLASSES)), "someone": TenantClasses()},
    ).choose(named, fields, tenant, 1)
    assert chosen == Chosen(expected)


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(
        BadRequest, match=r"no SLO class 'realtme'; did you mean 'realtime'\?; known: batch, "
    ) as e:
        rules().choose("realtme", {}, None, 1)
    assert e.value.reason == "unknown-class"
    with pytest.raises(BadRequest, match="no SLO class 'gold'; known: none"):
        ClassRules({}).choose("gold", {}, None, 1)


@pytest.mark.parametrize(
    ("allowed", "asked", "got"),
    [
        (("interactive", "batch"), "realtime", "interactive"),
        (("batch", "interactive"), "realtime", "interactive"),
        (("batch",), "realtime", "batch"),
        (("batch",), "interactive", "batch"),
        (("long", "batch"), "interactive", "long"),
        (("realtime", "interactive"), "batch", "interactive"),
        (("realtime",), "batch", "realtime"),
        (("batch", "realtime"), "interactive", "batch"),
    ],
)
def test_a_header_cannot_promote_past_what_the_tenant_may_use(
    allowed: tuple[str, ...], asked: str, got: str
) -> None:
    clamped = rules(tenants={"t": TenantClasses(allowed=allowed)}).choose(asked, {}, "t", 1)
    assert clamped == Chosen(got, asked)


def test_a_body_field_cannot_promote_either() -> None:
    made = rules(tiers=TIERS, priorities=PRIORITIES, tenants={"t": TenantClasses(allowed=("batch",))})
    assert made.choose(None, {"service_tier": "priority"}, "t", 1) == Chosen("batch", "realtime")
    assert made.choose(None, {"priority": -1}, "t", 1) == Chosen("batch", "realtime")
    assert made.choose(None, {"service_tier": "priority"}, None, 1) == Chosen("realtime")


def test_with_a_class_of_its_own_a_tenant_cannot_rise_above_it() -> None:
    made = rules(tenants={"t": TenantClasses(default="interactive")})
    assert made.choose("realtime", {}, "t", 1) == Chosen("interactive", "realtime")
    assert made.choose("long", {}, "t", 1) == Chosen("long"), "of the same priority"
    assert made.choose("batch", {}, "t", 1) == Chosen("batch")


def test_naming_nothing_is_no_way_around_a_restriction() -> None:
    tenants = {"t": TenantClasses(allowed=("batch", "long"))}
    assert rules(tenants=tenants).choose(None, {}, "t", 1) == Chosen("batch"), "the first of its classes"
    chosen = rules(tenants=tenants, default="realtime").choose(None, {}, "t", 1)
    assert chosen == Chosen("long"), "what the default comes down to; nobody asked for more"


def test_long_prompts_are_of_another_class() -> None:
    made = rules(
        default="interactive",
        tenants={"t": TenantClasses(allowed=("interactive",))},
        long_prompts={"interactive": LongPrompts(100, "long")},
    )
    assert made.choose(None, {}, None, 100) == Chosen("interactive")
    assert made.choose(None, {}, None, 101) == Chosen("long")
    assert made.choose("realtime", {}, None, 101) == Chosen("realtime"), "it has none for long ones"
    assert made.choose("realtime", {}, "t", 101) == Chosen("long", "realtime"), "after the clamp"


def test_names_that_do_not_exist_are_a_fault_of_the_caller() -> None:
    with pytest.raises(KeyError):
        rules(tenants={"t": TenantClasses(default="gold")})


NAMES = st.sampled_from(sorted(CLASSES))


@given(st.lists(NAMES, min_size=1, unique=True), st.none() | NAMES, st.none() | NAMES)
def test_a_tenant_never_gets_what_is_not_allowed(
    allowed: list[str], default: str | None, asked: str | None
) -> None:
    made = rules(default=default, tiers=TIERS, tenants={"t": TenantClasses(allowed=tuple(allowed))})
    chosen = made.choose(asked, {}, "t", 1)
    assert chosen.name in allowed
    assert chosen.clamped_from == (None if asked is None or asked in allowed else asked)
