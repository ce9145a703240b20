"""A new scheduling profile tried on recorded requests, before any request depends on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isfinite
from random import Random

from orchestrator.core.choosing import OnPolicyError, Step
from orchestrator.core.contracts import Context, DeferringOrder, PrefixReader, Scorer, Waiting
from orchestrator.core.fleet import Fleet
from orchestrator.core.late.alone import ONE_ENDPOINT
from orchestrator.core.lateprofile import LateProfile, LateRole
from orchestrator.core.prediction import Predictor
from orchestrator.core.scheduling import Routed, SchedulingProfile
from orchestrator.core.slo import Classes
from orchestrator.core.types import Endpoint, PathKind, RequestView, Role, Route, Snapshot
from orchestrator.errors import PolicyError
from orchestrator.policy.estimates import first_tokens, left_s, step_s
from orchestrator.policy.guard import Guard

Profile = SchedulingProfile | LateProfile

MOST_REFUSED = 0.5
"""A profile that would refuse a larger share of what the one in use accepts is taken for a mistake."""

MOST_S = 0.25
"""A dry run takes milliseconds; one that takes so long is ended, for it holds up every stream."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A recorded request, as if it arrived now: where it could go, and what policies are given with it."""

    request: RequestView
    fleet: Fleet
    context: Context


@dataclass(slots=True)
class Report:
    """What a new profile did with the samples, beside the one in use.

    `differ` counts requests that both would send somewhere, but not to the same endpoints; `newly_refused`
    those that only the new one refuses. `failed` are policies of the new one that raised or returned
    nonsense, by name: how often, and what they said first.
    """

    samples: int = 0
    differ: int = 0
    refused_before: int = 0
    refused: int = 0
    newly_refused: int = 0
    failed: dict[str, tuple[int, str]] = field(default_factory=dict)

    def fails(self, name: str, error: PolicyError) -> None:
        """A policy has failed."""
        n, said = self.failed.get(name, (0, error.message))
        self.failed[name] = (n + 1, said)

    def why_not(self, requests: str = "recorded requests") -> str | None:
        """Why the new profile should not be used; None if nothing speaks against it."""
        if self.failed:
            told = [f"{said} ({'once' if n == 1 else f'{n} times'})" for n, said in self.failed.values()]
            return f"on {self.samples} {requests} {'; '.join(told)}"
        accepted = self.samples - self.refused_before
        if self.newly_refused > MOST_REFUSED * accepted:
            most = f"{self.newly_refused} of {accepted} {requests}"
            return f"it would refuse {most} that the profile in use accepts"
        return None

    def says(self) -> str:
        """One line for people."""
        if not self.samples:
            return "no request was recorded yet: it was built, and not tried"
        return (
            f"tried on {self.samples} recorded requests: {self.differ} would go elsewhere, "
            f"{self.refused} be refused ({self.refused_before} by the profile in use)"
        )


def take(
    requests: Iterable[RequestView],
    snapshot: Snapshot,
    serves: Callable[[PathKind, Endpoint], bool],
    prefix: PrefixReader,
    *,
    now_s: float,
    predictor: Predictor | None = None,
    classes: Classes | None = None,
    block_tokens: int = 128,
) -> list[Sample]:
    """Samples of what the router has seen, on the endpoints as they are.

    Requests that nothing serves now, and kinds that no profile is asked about, are left out. Waits are
    estimated from the prompt tokens in flight.
    """
    waits: dict[str, float] = {}
    if predictor is not None:
        waits = {
            e.id: predictor.prefill(e).seconds(e.inflight.prefill_tokens)
            for e in snapshot.endpoints
            if e.inflight.prefill_tokens
        }
    samples = []
    for recorded in requests:
        request = replace(recorded, arrived_s=now_s, deadline_s=None)
        mine = [
            e for e in snapshot.endpoints if e.ready and e.model == request.model and serves(request.path, e)
        ]
        fleet = Fleet(*(tuple(e for e in mine if e.role is role) for role in _ROLES))
        if request.path in ONE_ENDPOINT or not fleet.usable:
            continue
        slo = (classes or {}).get(request.slo_class or "")
        by_s = inf
        if slo is not None and predictor is not None:
            cold_s = predictor.reference_s(request.model, max(1, request.prompt_tokens))
            by_s = slo.first_token_by_s(now_s, cold_s, 0.0)
        context = Context(
            snapshot=snapshot,
            role=Role.UNIFIED,
            now_s=now_s,
            rng=Random(0),
            prefix=prefix,
            block_tokens=block_tokens,
            predictor=predictor,
            slo=slo,
            first_token_by_s=by_s,
            wait_s=lambda endpoint_id: waits.get(endpoint_id, 0.0),
        )
        samples.append(Sample(request, fleet, context))
    return samples


def dry_run(
    old: Profile, new: Profile, samples: Sequence[Sample], clock: Callable[[], float], most_s: float = MOST_S
) -> Report:
    """Decide every sample by both profiles. Their policies may keep state: give it profiles built for this.

    A late profile is asked where each request would go if it were alone in the queue, and to order them all.
    A policy that is over the time budget again and again has failed. After `most_s` by `clock` it ends with
    the samples it has done, and whoever was over the budget at all has failed: requests wait meanwhile.
    """
    report = Report()
    slow = Report()

    def failed(name: str, error: PolicyError) -> None:
        report.fails(name, error)

    guard = Guard(clock, lambda name, error: slow.fails(name, error), watching=True)
    new = guard.watch(new)
    began_s = clock()
    for i, sample in enumerate(samples):
        if clock() - began_s > most_s:
            report.failed |= slow.failed
            return report
        report.samples += 1
        before = _route(old, sample, i, _ignore)
        after = _route(new, sample, i, failed)
        report.refused_before += before is None
        report.refused += after is None
        report.newly_refused += after is None and before is not None
        report.differ += after is not None and before is not None and before != after
    if isinstance(new, LateProfile):
        _order(new, samples, failed)
    return report


def _route(profile: Profile, sample: Sample, seed: int, on_error: OnPolicyError) -> Route | None:
    """Where `profile` sends the sample, ties drawn by `seed`; None: it refuses it."""
    context = replace(sample.context, rng=Random(seed))
    if isinstance(profile, LateProfile):
        return _late_route(profile, sample.request, sample.fleet, context, on_error)
    routed = profile.route(sample.request, sample.fleet, context, on_error)
    return routed.route if isinstance(routed, Routed) else None


def _late_route(
    profile: LateProfile, request: RequestView, fleet: Fleet, context: Context, on_error: OnPolicyError
) -> Route | None:
    """The cheapest pair or endpoint, by the same price as the late scheduler's."""
    others = profile.settings.others
    routes: list[tuple[float, Route]] = []
    if fleet.prefill and fleet.decode:
        asking = replace(context, role=Role.PREFILL)
        first = _cheapest(profile.prefill, request, fleet.prefill, asking, others, on_error)
        if first is not None:
            asking = replace(context, role=Role.DECODE, prefill=first[1])
            second = _cheapest(profile.decode, request, fleet.decode, asking, others, on_error)
            if second is not None:
                routes.append((first[0], Route(second[1].id, first[1].id)))
    if fleet.single:
        alone = _cheapest(profile.unified, request, fleet.single, context, others, on_error)
        if alone is not None:
            routes.append((alone[0], Route(alone[1].id)))
    return min(routes, key=lambda r: r[0])[1] if routes else None


def _cheapest(
    role: LateRole,
    request: RequestView,
    candidates: Sequence[Endpoint],
    context: Context,
    others: float,
    on_error: OnPolicyError,
) -> tuple[float, Endpoint] | None:
    left = tuple(candidates)
    for step in role.filters:
        given = {e.id for e in left}
        try:
            kept = tuple(step.policy.filter(request, left, context))
            if not {e.id for e in kept} <= given:
                raise ValueError("kept what it was not given")
            left = kept
        except Exception as error:  # noqa: BLE001  to find what raises is what this is for
            _tell(step.name, error, on_error)
    if not left:
        return None
    costs = _predicted(request, left, context, others)
    for scorer in role.scorers:
        for i, cost_s in enumerate(_seconds(scorer, request, left, context, on_error)):
            costs[i] += cost_s
    best = min(range(len(left)), key=costs.__getitem__)
    return costs[best], left[best]


def _seconds(
    scorer: Step[Scorer],
    request: RequestView,
    left: Sequence[Endpoint],
    context: Context,
    on_error: OnPolicyError,
) -> Sequence[float]:
    try:
        seconds = tuple(map(float, scorer.policy.score(request, left, context)))
        if len(seconds) != len(left) or not all(map(isfinite, seconds)):
            raise ValueError(f"returned {len(seconds)} figures for {len(left)} candidates, or one not finite")
    except Exception as error:  # noqa: BLE001  as above
        _tell(scorer.name, error, on_error)
        return ()
    return seconds


def _predicted(
    request: RequestView, left: Sequence[Endpoint], context: Context, others: float
) -> list[float]:
    """What the scheduler itself says that each costs; nothing where nothing predicts."""
    if context.predictor is None:
        return [0.0] * len(left)
    if context.role is Role.DECODE:
        return [step_s(request, e, context.predictor) for e in left]
    firsts = first_tokens(request, left, context, context.predictor)
    return [f.wait_s + (1.0 + others) * f.prefill_s + f.handoff_s for f in firsts]


def _order(profile: LateProfile, samples: Sequence[Sample], on_error: OnPolicyError) -> None:
    """Ask the order for the key of each sample, and whom of all it would put off."""
    order, queue = profile.order.policy, []
    for sample in samples:
        waiting = _waiting(sample)
        try:
            key = float(order.key(waiting))
            if key != key:
                raise ValueError("the key is not a number")
            queue.append(waiting)
        except Exception as error:  # noqa: BLE001  as above
            _tell(profile.order.name, error, on_error)
    if not queue or not isinstance(order, DeferringOrder):
        return
    try:
        deferred = order.defer(tuple(queue), samples[0].context.now_s, 1.0)
        if not {id(w) for w in deferred} <= {id(w) for w in queue}:
            raise ValueError("put off what was not in the queue")
    except Exception as error:  # noqa: BLE001  as above
        _tell(profile.order.name, error, on_error)


def _waiting(sample: Sample) -> Waiting:
    """The sample as it would wait."""
    request, context = sample.request, sample.context
    candidates = sample.fleet.prefill or sample.fleet.single
    work_s = handoff_s = 0.0
    if context.predictor is not None:
        role = Role.PREFILL if sample.fleet.prefill else Role.UNIFIED
        firsts = first_tokens(request, candidates, replace(context, role=role), context.predictor)
        best = min(firsts, key=lambda f: f.prefill_s)
        work_s, handoff_s = best.prefill_s, best.handoff_s
    latest_s = context.now_s + left_s(context) - work_s - handoff_s
    return Waiting(request, context.now_s, work_s, context.first_token_by_s, latest_s)


def _tell(name: str, error: Exception, on_error: OnPolicyError) -> None:
    message = f"policy {name}: {type(error).__name__}: {error}"
    on_error(name, PolicyError(message, policy=name))


def _ignore(name: str, error: PolicyError) -> None:
    """What the profile in use does wrong is known already."""


_ROLES: Sequence[Role] = (Role.PREFILL, Role.DECODE, Role.UNIFIED)
