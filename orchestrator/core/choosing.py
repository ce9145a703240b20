"""How one role's endpoint is chosen: filters, then weighted scorers, then a picker, none of them trusted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from operator import mul
from pathlib import Path
from random import Random
from typing import Any, Generic, TypeVar

from orchestrator.core.contracts import Context, Filter, Picker, Scorer
from orchestrator.core.frozen import frozen
from orchestrator.core.types import Choice, Endpoint, RequestView, Scored
from orchestrator.errors import PolicyError

PolicyT = TypeVar("PolicyT")

OnPolicyError = Callable[[str, PolicyError], None]
"""Told the policy's name and what it did wrong, each time a decision goes on without it."""


class Step(Generic[PolicyT]):
    """A policy and the name it goes by in explanations, metrics and errors."""

    __slots__ = ("name", "policy", "weight")

    def __init__(self, name: str, policy: PolicyT, weight: float = 1.0) -> None:
        self.name = name
        self.policy = policy
        self.weight = weight


@frozen(frozen=True, slots=True)
class RoleProfile:
    """The policies that choose one role's endpoint. Only a scorer's step has a weight that counts."""

    picker: Step[Picker]
    filters: tuple[Step[Filter], ...] = ()
    scorers: tuple[Step[Scorer], ...] = ()


@frozen(frozen=True, slots=True)
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
    left = tuple(candidates)
    filtered: dict[str, str] = {}
    for kept_by in profile.filters:
        try:
            kept = tuple(kept_by.policy.filter(request, left, context))
            if kept != left:
                left = _kept(kept_by.name, kept, left, filtered)
        except Exception as error:  # noqa: BLE001  a stranger's code: no fault of it may cost a request
            _bypass(kept_by, error, fallbacks, on_error)
        if not left:
            return AllFiltered(filtered)
    scored: tuple[Scored, ...] = ()
    runner_up = None
    asked: Step[Any] = profile.picker
    try:
        columns = []
        for asked in profile.scorers:
            column = tuple(map(float, asked.policy.score(request, left, context)))
            if len(column) != len(left):
                raise ValueError(f"returned {len(column)} scores for {len(left)} candidates")
            # What is no number compares as neither less nor more, so the sum has to tell.
            if not (min(column) >= 0.0 and max(column) <= 1.0 and isfinite(sum(column, 0.0))):
                raise _no_share(column, left)
            columns.append(column)
        scored = _scored(profile.scorers, columns, left)
        asked = profile.picker
        chosen = asked.policy.pick(request, scored, context).endpoint
        runner_up = _runner_up(scored, chosen)
    except Exception as error:  # noqa: BLE001  as above
        _bypass(asked, error, fallbacks, on_error)
        chosen = least_work(left, context.rng).id
        if scored:
            runner_up = _runner_up(scored, chosen)
    return Choice(context.role, chosen, runner_up, scored, filtered, tuple(fallbacks))


def least_work(candidates: Sequence[Endpoint], rng: Random) -> Endpoint:
    """The candidate with the least prompt work in flight, then the fewest requests; a tie is drawn.

    What every decision falls back to: it needs no policy, no prefix and no report. Raises ValueError
    for no candidates.
    """
    work = [(e.inflight.prefill_tokens, e.requests) for e in candidates]
    least = min(work)
    return rng.choice([e for e, w in zip(candidates, work, strict=True) if w == least])


def failure(name: str, policy: object, error: Exception) -> PolicyError:
    """What `policy`, which goes by `name`, did wrong, and at which line of its file."""
    said = f"policy {name}: {type(error).__name__}: {error}"
    where = _raised_at(error) or _written_at(policy)
    failed = PolicyError(f"{said} ({where})" if where else said, policy=name)
    failed.__cause__ = error
    return failed


def _raised_at(error: Exception) -> str | None:
    """The last line outside this package that an exception came through; None: there is none."""
    found = None
    step = error.__traceback__
    while step is not None:
        file = step.tb_frame.f_code.co_filename
        if not file.startswith((_OURS, _COMPILED)):
            found = f"{file}:{step.tb_lineno}"
        step = step.tb_next
    return found


def _written_at(policy: object) -> str | None:
    """Where a policy's method is that was asked: of one that returned nonsense and raised nothing."""
    for method in ("filter", "score", "pick", "key"):
        code = getattr(getattr(type(policy), method, None), "__code__", None)
        if code is not None:
            return f"{code.co_filename}:{code.co_firstlineno}"
    return None


_OURS = str(Path(__file__).parents[1])
_COMPILED = f"{Path(_OURS).name}/"
"""Frames of compiled code name their files from the package on."""


def _bypass(step: Step[Any], error: Exception, fallbacks: list[str], on_error: OnPolicyError) -> None:
    """Note that a policy failed, and tell of it by name."""
    fallbacks.append(step.name)
    on_error(step.name, failure(step.name, step.policy, error))


def _kept(
    name: str, kept: Sequence[Endpoint], left: tuple[Endpoint, ...], filtered: dict[str, str]
) -> tuple[Endpoint, ...]:
    """What is left of `left` by a filter that returned `kept`; who is not goes into `filtered`."""
    ids = {e.id for e in kept}
    strangers = ids.difference(e.id for e in left)
    if strangers:
        raise ValueError(f"kept {', '.join(sorted(strangers))}, which it was not given")
    filtered.update((e.id, name) for e in left if e.id not in ids)
    return tuple(e for e in left if e.id in ids)


def _no_share(scores: Sequence[float], left: Sequence[Endpoint]) -> ValueError:
    """What is wrong with scores of which at least one is no share."""
    worst = next((e.id, s) for e, s in zip(left, scores, strict=True) if not 0.0 <= s <= 1.0)
    return ValueError(f"the score of {worst[0]}, {worst[1]}, is not a number in 0..1")


def _scored(
    steps: Sequence[Step[Scorer]], columns: Sequence[Sequence[float]], left: Sequence[Endpoint]
) -> tuple[Scored, ...]:
    """The candidates with their totals; `parts` are weighted and add up to them."""
    if not columns:
        return tuple([Scored(e.id, 0.0) for e in left])
    names = [step.name for step in steps]
    weights = [step.weight for step in steps]
    scored = []
    for endpoint, row in zip(left, zip(*columns, strict=True), strict=True):
        parts = list(map(mul, weights, row))
        scored.append(Scored(endpoint.id, sum(parts, 0.0), dict(zip(names, parts, strict=True))))
    return tuple(scored)


def _runner_up(scored: Sequence[Scored], chosen: str) -> str | None:
    """The best of the others, the first of equals. Raises ValueError if `chosen` is none of `scored`."""
    best: Scored | None = None
    others = 0
    for one in scored:
        if one.endpoint != chosen:
            others += 1
            if best is None or one.total > best.total:
                best = one
    if others == len(scored):
        raise ValueError(f"picked {chosen}, which it was not given")
    return best.endpoint if best else None
