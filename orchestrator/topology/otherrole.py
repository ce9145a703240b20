"""The role that an instance can be switched to while it runs, worked out with the plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from orchestrator.core.types import Role
from orchestrator.engines.base import STARTED_AS, Engine, HttpCall, InstanceSpec, Probes
from orchestrator.topology.plan import InstancePlan, OtherRole

_OTHER = {Role.PREFILL: Role.DECODE, Role.DECODE: Role.PREFILL}

Form = tuple[Probes, Mapping[str, Any], Mapping[str, Any]]
"""Probes, facts, and what is expected of an instance in one role."""


def with_other_role(
    made: InstancePlan, adapter: Engine, spec: InstanceSpec, form: Callable[[InstanceSpec], Form]
) -> InstancePlan:
    """`made` with what it is in its other role by `form`, or with why it has none."""
    switch: Callable[[InstanceSpec, Role], HttpCall | str] | None = getattr(adapter, "switch", None)
    to = _OTHER.get(made.role)
    if to is None:
        return replace(made, no_other=f"{made.role} has no other role")
    if switch is None:
        return replace(made, no_other=f"engine {made.engine} cannot change roles while it runs")
    other = replace(spec, role=to)
    call, back = switch(spec, to), switch(other, made.role)
    if isinstance(call, str) or isinstance(back, str):
        return replace(made, no_other=call if isinstance(call, str) else str(back))
    started = {STARTED_AS: made.role.value}
    probes, facts, expects = form(other)
    return replace(
        made,
        facts={**made.facts, **started},
        other=OtherRole(to, call, back, probes, {**facts, **started}, expects),
    )
