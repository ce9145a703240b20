"""How one role's endpoint is chosen: filters, then weighted scorers, then a picker, none of them trusted."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Generic, TypeVar

from orchestrator.core.contracts import Context, Filter, Picker, Scorer
from orchestrator.core.types import Choice, Endpoint, RequestView, Scored
from orchestrator.errors import PolicyError

T = TypeVar("T")
PolicyT = TypeVar("PolicyT")

OnPolicyError = Callable[[str, PolicyError], None]
"""Told the policy's name and what it did wrong, each time a decision goes on without it."""


@dataclass(frozen=True, slots=True)
class Step(Generic[PolicyT]):
    """A policy and the name it goes by in explanations, metrics and errors."""

    name: str
    policy: PolicyT
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class RoleProfile:
    """The policies that choose one role's endpoint. Only a scorer's step has a weight that counts."""

    picker: Step[Picker]
    filters: tuple[Step[Filter], ...] = ()
    scorers: tuple[Step[Scorer], ...] = ()


@dataclass(frozen=True, slots=True)
class AllFiltered:
    """No candidate was left: which filter took out each (endpoint id to filter name)."""

    filtered: Mapping[str, str]


def choose(
    profile: RoleProfile,
    request: RequestView,
    candidates: Sequence[Endpoint],
    context: Context,
    on_error: OnPolicyError,
) -> Choice | AllFiltered:
    """One of `candidates` by `profile`, with why; AllFiltered if its filters leave none.

    A policy that raises or returns nonsense fails open and is named in `Choice.fallbacks`: a filter is
    passed over, as if it had kept all; a scorer or picker leaves the choice to `least_work` among those
    the filters kept, since ranking by the remaining scorers could be ranking without a load term.
    """
    fallbacks: list[str] = []

    def failed(error: PolicyError) -> None:
        fallbacks.append(error.policy)
        on_error(error.policy, error)

    left = candidates
    filtered: dict[str, str] = {}
    for step in profile.filters:
        try:
            kept = _guarded(step.name, partial(_kept, step.policy, request, left, context))
        except PolicyError as error:
            failed(error)
            continue
        if len(kept) < len(left):
            filtered.update((e.id, step.name) for e in left if e.id not in kept)
            left = [e for e in left if e.id in kept]
        if not left:
            return AllFiltered(filtered)
    scored: tuple[Scored, ...] = ()
    try:
        scored = _scored(profile.scorers, request, left, context)
        chosen = _guarded(
            profile.picker.name, partial(_picked, profile.picker.policy, request, scored, context)
        )
    except PolicyError as error:
        failed(error)
        chosen = least_work(left, context.rng).id
    return Choice(
        role=context.role,
        chosen=chosen,
        runner_up=_runner_up(scored, chosen),
        scored=scored,
        filtered=filtered,
        fallbacks=tuple(fallbacks),
    )


def least_work(candidates: Sequence[Endpoint], rng: Random) -> Endpoint:
    """The candidate with the least prompt work in flight, then the fewest requests; a tie is drawn.

    What every decision falls back to: it needs no policy, no prefix and no report. Raises ValueError
    for no candidates.
    """
    work = [(e.inflight.prefill_tokens, e.requests) for e in candidates]
    least = min(work)
    return rng.choice([e for e, w in zip(candidates, work, strict=True) if w == least])


def _kept(policy: Filter, request: RequestView, left: Sequence[Endpoint], context: Context) -> set[str]:
    """The ids that a filter keeps of `left`."""
    kept = {e.id for e in policy.filter(request, left, context)}
    strangers = kept.difference(e.id for e in left)
    if strangers:
        raise ValueError(f"kept {', '.join(sorted(strangers))}, which it was not given")
    return kept


def _scored(
    steps: Sequence[Step[Scorer]], request: RequestView, left: Sequence[Endpoint], context: Context
) -> tuple[Scored, ...]:
    """The candidates with their totals; `parts` are weighted and add up to them. Raises PolicyError."""
    names = [step.name for step in steps]
    columns = []
    for step in steps:
        shares = _guarded(step.name, partial(_shares, step.policy, request, left, context))
        columns.append([step.weight * share for share in shares])
    if not columns:
        return tuple(Scored(e.id, 0.0) for e in left)
    rows = list(zip(*columns, strict=True))
    parts = [dict(zip(names, row, strict=True)) for row in rows]
    return tuple(map(Scored, [e.id for e in left], map(sum, rows), parts))


def _shares(policy: Scorer, request: RequestView, left: Sequence[Endpoint], context: Context) -> list[float]:
    """One share in 0..1 for each of `left`."""
    shares = list(map(float, policy.score(request, left, context)))
    if len(shares) != len(left):
        raise ValueError(f"returned {len(shares)} scores for {len(left)} candidates")
    if not (min(shares) >= 0.0 and max(shares) <= 1.0 and math.isfinite(sum(shares))):
        worst = next((e.id, s) for e, s in zip(left, shares, strict=True) if not 0.0 <= s <= 1.0)
        raise ValueError(f"the score of {worst[0]}, {worst[1]}, is not a number in 0..1")
    return shares


def _picked(policy: Picker, request: RequestView, scored: Sequence[Scored], context: Context) -> str:
    """The id that a picker takes of `scored`."""
    picked = policy.pick(request, scored, context).endpoint
    if all(s.endpoint != picked for s in scored):
        raise ValueError(f"picked {picked}, which it was not given")
    return picked


def _runner_up(scored: Sequence[Scored], chosen: str) -> str | None:
    """The best of the others, the first of equals."""
    best: Scored | None = None
    for one in scored:
        if one.endpoint != chosen and (best is None or one.total > best.total):
            best = one
    return best.endpoint if best else None


def _guarded(name: str, ask: Callable[[], T]) -> T:
    """What `ask` returns; whatever it raises becomes a PolicyError that names the policy."""
    try:
        return ask()
    except Exception as error:  # a stranger's code: any fault of it must not cost a request
        raise PolicyError(f"policy {name}: {type(error).__name__}: {error}", policy=name) from error
