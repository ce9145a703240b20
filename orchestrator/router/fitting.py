"""Which of the engines that have joined go with each other: a pair whose KV does not fit is given nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from orchestrator.core.types import Role
from orchestrator.engines.told import Finding, Side, agreements, disagreements, grave
from orchestrator.router.state import State


def side(state: State) -> Side:
    """An endpoint as it told of itself."""
    return Side(state.plan.name, {**state.plan.facts, **state.learned}, state.plan.silenced)


def between(prefill: State, decode: State) -> list[Finding]:
    """Findings about a pair."""
    return list(disagreements(agreements(prefill.engine), side(prefill), side(decode)))


def apart(states: Iterable[State]) -> Mapping[str, str]:
    """The joined endpoints that do not go with those that are used, by name, and why.

    Of the groups in which every prefill goes with every decode, the one with the most pairs is used, first by
    those in which nobody is gated; among equals the one that is in use, then the first of the plan. Who has
    no partner at all is not apart.
    """
    found: dict[str, str] = {}
    joined = [state for state in states if state.joined and state.plan.disaggregated]
    for model in {state.plan.model for state in joined}:
        of = [state for state in joined if state.plan.model == model]
        prefills = [state for state in of if state.plan.role is Role.PREFILL]
        decodes = [state for state in of if state.plan.role is Role.DECODE]
        if prefills and decodes:
            found |= _apart(prefills, decodes)
    return found


def _apart(prefills: Sequence[State], decodes: Sequence[State]) -> dict[str, str]:
    why = {(p.plan.name, d.plan.name): grave(between(p, d)) for p in prefills for d in decodes}
    if not any(why.values()):
        return {}
    groups = [_group(prefills, decodes, why, around) for around in prefills]
    kept_p, kept_d = max(groups, key=lambda group: _worth(*group))
    out: dict[str, str] = {}
    for p in prefills:
        if p not in kept_p:
            reasons = (why[p.plan.name, d.plan.name] for d in kept_d)
            out[p.plan.name] = next(filter(None, reasons))
    for d in decodes:
        if d not in kept_d:
            reasons = (why[p.plan.name, d.plan.name] for p in kept_p)
            out[d.plan.name] = next(filter(None, reasons))
    return out


def _group(
    prefills: Sequence[State],
    decodes: Sequence[State],
    why: Mapping[tuple[str, str], str],
    around: State,
) -> tuple[list[State], list[State]]:
    """The decodes that go with the prefill `around`, and all prefills that go with every one of them."""
    fit = [d for d in decodes if not why[around.plan.name, d.plan.name]]
    return [p for p in prefills if not any(why[p.plan.name, d.plan.name] for d in fit)], fit


def _worth(prefills: Sequence[State], decodes: Sequence[State]) -> tuple[int, int, int]:
    """Pairs that nobody keeps work from, then pairs, then members that are in use."""
    free = sum(not p.gated for p in prefills) * sum(not d.gated for d in decodes)
    in_use = sum(not state.apart for state in (*prefills, *decodes))
    return free, len(prefills) * len(decodes), in_use
