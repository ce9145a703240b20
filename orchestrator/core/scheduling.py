"""The pair of endpoints for a request, and the scheduler that decides it the moment the request arrives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from random import Random
from typing import ClassVar

from orchestrator.core.admission import Drain
from orchestrator.core.choosing import AllFiltered, OnPolicyError, RoleProfile, choose
from orchestrator.core.choosing import least_work as least_work
from orchestrator.core.contracts import Assign, Bind, Context, Decision, Reject, Spent
from orchestrator.core.fleet import Fleet
from orchestrator.core.frozen import frozen
from orchestrator.core.inflight import Ledger, expected_kv_tokens
from orchestrator.core.outlook import NoOutlook, Outlook, Promise
from orchestrator.core.prediction import Predictor
from orchestrator.core.prefix import PrefixIndex
from orchestrator.core.prefixcheck import PrefixCheck
from orchestrator.core.slo import Classes
from orchestrator.core.types import (
    Choice,
    Endpoint,
    LegEvent,
    LegKind,
    Outcome,
    PathKind,
    RequestView,
    Role,
    Route,
    Snapshot,
)
from orchestrator.errors import AccountingError, NoCapacity, Overloaded, PolicyError

Serves = Callable[[PathKind, Endpoint], bool]
"""Whether an endpoint answers this kind of request in its role; asked anew after each `observe` only."""

Places = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""Where in a snapshot the candidates of each role of a `Fleet` stand: the same until the next `observe`."""

_ONE_ENDPOINT = frozenset({PathKind.TOKENIZE, PathKind.EMBED})
"""Kinds that are never handed off: any endpoint that serves them will do, whatever its role."""


@frozen(frozen=True, slots=True)
class Routed:
    """A route and why: one Choice per role that was decided."""

    route: Route
    why: tuple[Choice, ...]


@frozen(frozen=True, slots=True)
class SchedulingProfile:
    """The policies of each role; a pure decision over what it is given.

    `headers` are the lower-case names of the request headers that its policies read: the router puts
    them into every RequestView.
    """

    prefill: RoleProfile
    decode: RoleProfile
    unified: RoleProfile
    headers: frozenset[str] = field(default_factory=frozenset)

    def route(
        self, request: RequestView, fleet: Fleet, context: Context, on_error: OnPolicyError
    ) -> Routed | Mapping[Role, AllFiltered]:
        """A pair where both sides exist, prefill first and decode knowing it; else one endpoint.

        That a pair is preferred is a rule and no price: where unified endpoints stand beside pairs, they
        take only what no pair can. If no role has an endpoint left, what each role's filters took out.
        """
        full: dict[Role, AllFiltered] = {}
        if fleet.prefill and fleet.decode:
            asking = _asking(context, Role.PREFILL)
            first = choose(self.prefill, request, fleet.prefill, asking, on_error)
            if isinstance(first, Choice):
                for prefill in fleet.prefill:
                    if prefill.id == first.chosen:
                        break
                asking = _asking(context, Role.DECODE, prefill)
                decode = fleet.decode
                if prefill.shuns:
                    decode = tuple(e for e in decode if e.id not in prefill.shuns)
                second = choose(self.decode, request, decode, asking, on_error)
                if isinstance(second, Choice):
                    return Routed(Route(decode=second.chosen, prefill=first.chosen), (first, second))
                full[Role.DECODE] = second
            else:
                full[Role.PREFILL] = first
        if fleet.single:
            asking = _asking(context, Role.UNIFIED)
            alone = choose(self.unified, request, fleet.single, asking, on_error)
            if isinstance(alone, Choice):
                return Routed(Route(decode=alone.chosen), (alone,))
            full[Role.UNIFIED] = alone
        return full


def _asking(context: Context, role: Role, prefill: Endpoint | None = None) -> Context:
    """`context` for one role's choice; spelt out, as `dataclasses.replace` takes three times as long."""
    return Context(
        context.snapshot,
        role,
        context.now_s,
        context.rng,
        context.prefix,
        prefill,
        context.block_tokens,
        context.extra,
        context.predictor,
        context.slo,
        context.first_token_by_s,
        context.wait_s,
        context.step_limit_s,
    )


def _serves_all(kind: PathKind, endpoint: Endpoint) -> bool:
    return True


def _ignore(name: str, error: PolicyError) -> None:
    """`Choice.fallbacks` names it all the same."""


def _raise(error: AccountingError) -> None:
    raise error


class ImmediateScheduler:
    """The Scheduler that binds each request to its endpoints at `submit`, or refuses it there and then.

    Every decision reads the endpoints last observed and the work in flight at this moment. A retry is a
    `finish` of the failed attempt and a new `submit`, with the endpoints to `avoid`. `profile` may be
    replaced between two calls. Not thread-safe: one event loop owns it.

    `rng` draws ties; `serves` says which endpoints answer which kinds of request; one block hash stands for
    `block_tokens` tokens. With a `predictor`, which learns from what comes of each request, policies may ask
    it, and requests have the promises of their `classes`; without one nothing is predicted or promised.
    `on_policy_error` is told of each fallback, `on_accounting_error` of each `finish` of work that is not in
    flight, which raises unless told otherwise.
    """

    def __init__(
        self,
        profile: SchedulingProfile,
        *,
        rng: Random,
        serves: Serves = _serves_all,
        block_tokens: int = 128,
        predictor: Predictor | None = None,
        classes: Classes | None = None,
        on_policy_error: OnPolicyError = _ignore,
        on_accounting_error: Callable[[AccountingError], None] = _raise,
    ) -> None:
        self.profile = profile
        self.predictor = predictor
        self._outlook = NoOutlook() if predictor is None else Outlook(predictor, classes or {})
        self.ledger = Ledger()
        self.prefix = PrefixIndex()
        self.cached = PrefixCheck(self.prefix, block_tokens)
        self._rng = rng
        self._serves = serves
        self._block_tokens = block_tokens
        self._on_policy_error = on_policy_error
        self._on_accounting_error = on_accounting_error
        self._drain = Drain()
        self._incarnations: dict[str, str] = {}
        self._pages: dict[str, int | None] = {}
        self._places: dict[tuple[str, PathKind], Places] = {}
        self._limited = False

    heeds: ClassVar[frozenset[str]] = frozenset({"first_token", "done"})
    """What of a leg's progress changes anything here; it need not be told the rest."""

    decides_in: ClassVar[frozenset[str]] = frozenset({"submit", "rebind"})
    """The calls that ask policies."""

    @property
    def classes(self) -> Classes:
        """The SLO classes by name; may be replaced between two calls."""
        return self._outlook.classes

    @classes.setter
    def classes(self, classes: Classes) -> None:
        self._outlook.classes = classes

    def submit(self, request: RequestView, now_s: float) -> Sequence[Decision]:
        """Assign the request, or refuse it: 503 if nothing is ready for it, 429 if all that is is full.

        Raises AccountingError if it is in flight already.
        """
        if request.id in self.ledger:
            raise AccountingError(f"request {request.id} was submitted while in flight")
        snapshot = self.ledger.snapshot(now_s)
        fleet = self._fleet(request, snapshot)
        if not fleet.usable:
            return (self._no_capacity(request, snapshot),)
        outlook = self._outlook
        promise = outlook.promise(request, now_s)
        context = self._context(request, snapshot, Role.UNIFIED, promise, None, now_s)
        routed = self.profile.route(request, fleet, context, self._on_policy_error)
        if not isinstance(routed, Routed):
            return (self._full(request, routed, now_s),)
        cached = self._account(request, routed.route, now_s)
        predicted = None
        if request.path not in _ONE_ENDPOINT:
            predicted = outlook.sent(request, routed.route, cached, promise, snapshot)
        return (Assign(request.id, routed.route, routed.why, predicted=predicted),)

    def progress(self, event: LegEvent, now_s: float) -> Sequence[Decision]:
        """Release what a leg is done with; an event after the request's end changes nothing."""
        if event.what in self.heeds and event.request_id in self.ledger:
            if event.leg is LegKind.DECODE or event.leg is LegKind.UNIFIED:
                self.ledger.handed_over(event.request_id)
                self.cached.computed(event.request_id)
                self._outlook.computed(event.request_id, now_s, first_token=True)
            elif event.leg is LegKind.PREFILL and event.what == "done":
                self.ledger.prefill_done(event.request_id)
                self.cached.computed(event.request_id)
                self._outlook.computed(event.request_id, now_s, first_token=False)
        return ()

    def cancel(self, request_id: str, now_s: float) -> Sequence[Decision]:
        """Nothing: every submitted request is decided; `finish` releases it."""
        return ()

    def rebind(self, request: RequestView, now_s: float) -> Sequence[Decision]:
        """Name another decode side at once, or give the hand-off up."""
        if request.id not in self.ledger:
            return ()
        route = self.ledger.route(request.id)
        snapshot = self.ledger.snapshot(now_s)
        promise = self._outlook.promise(request, now_s)
        prefill = next((e for e in snapshot.endpoints if e.id == route.prefill), None)
        shuns = frozenset() if prefill is None else prefill.shuns
        decode = [e for e in self._fleet(request, snapshot).decode if e.id not in shuns]
        if not decode:
            return (Spent(request.id),)
        context = self._context(request, snapshot, Role.DECODE, promise, prefill, now_s)
        chosen = choose(self.profile.decode, request, decode, context, self._on_policy_error)
        if not isinstance(chosen, Choice):
            return (Spent(request.id),)
        new = Route(chosen.chosen, route.prefill, route.encode)
        self.ledger.rebind(request.id, new, expected_kv_tokens(request))
        self._outlook.rebound(request.id, new, promise)
        return (Bind(request.id, new, why=(chosen,)),)

    def finish(self, outcome: Outcome, now_s: float) -> Sequence[Decision]:
        """Release all that the request held: nothing if it was refused (its outcome has no route)."""
        self.cached.ended(outcome)
        self._outlook.finished(outcome, now_s)
        try:
            work = self.ledger.finish(outcome.request_id)
        except AccountingError as error:
            if outcome.route is not None:
                self._on_accounting_error(error)
        else:
            self._drain.finished(now_s - work.started_s)
        return ()

    def observe(self, snapshot: Snapshot, now_s: float) -> Sequence[Decision]:
        """Take the endpoints as they are now; a new incarnation has an empty prefix cache."""
        for endpoint in snapshot.endpoints:
            if self._incarnations.get(endpoint.id, endpoint.incarnation) != endpoint.incarnation:
                self.prefix.drop(endpoint.id)
            total = endpoint.kv_total_tokens
            self.prefix.resize(endpoint.id, None if total is None else total // self._block_tokens)
        incarnations = {e.id: e.incarnation for e in snapshot.endpoints}
        for endpoint_id in self._incarnations.keys() - incarnations.keys():
            self.prefix.drop(endpoint_id)
        self._incarnations = incarnations
        self._pages = {e.id: e.block_size for e in snapshot.endpoints}
        self._places.clear()
        self._limited = any(e.shuns or e.cap is not None for e in snapshot.endpoints)
        self.ledger.observe(snapshot.endpoints, snapshot.unix_s - snapshot.at_s)
        self._outlook.observe(snapshot, now_s)
        return ()

    def due_s(self) -> float | None:
        """Never: it acts on events only."""
        return None

    def tick(self, now_s: float) -> Sequence[Decision]:
        """Nothing waits here."""
        return ()

    def _context(
        self,
        request: RequestView,
        snapshot: Snapshot,
        role: Role,
        promise: Promise,
        prefill: Endpoint | None,
        now_s: float,
    ) -> Context:
        outlook = self._outlook
        return Context(
            snapshot=snapshot,
            role=role,
            now_s=now_s,
            rng=self._rng,
            prefix=self.cached.reader(request),
            prefill=prefill,
            block_tokens=self._block_tokens,
            predictor=outlook.predictor,
            slo=promise.slo,
            first_token_by_s=promise.first_token_by_s,
            wait_s=outlook.wait_s,
            step_limit_s=outlook.step_limit_s,
        )

    def _fleet(self, request: RequestView, snapshot: Snapshot) -> Fleet:
        key = (request.model, request.path)
        places = self._places.get(key)
        if places is None:
            places = self._find_places(request, snapshot)
            if any(places):  # a client may invent any number of models that nobody serves
                self._places[key] = places
        at = snapshot.endpoints.__getitem__
        prefill, decode, single = places
        fleet = Fleet(tuple(map(at, prefill)), tuple(map(at, decode)), tuple(map(at, single)))
        if self._limited:
            fleet = fleet.limited()
        return fleet.without(request.avoid) if request.avoid else fleet

    def _find_places(self, request: RequestView, snapshot: Snapshot) -> Places:
        serving = [
            (i, e.role)
            for i, e in enumerate(snapshot.endpoints)
            if e.ready and e.model == request.model and self._serves(request.path, e)
        ]
        if request.path in _ONE_ENDPOINT:
            return (), (), tuple(i for i, _ in serving)
        prefill, decode, single = (
            tuple(i for i, r in serving if r is role) for role in (Role.PREFILL, Role.DECODE, Role.UNIFIED)
        )
        return prefill, decode, single

    def _account(self, request: RequestView, route: Route, now_s: float) -> int:
        """Count the request against its route; how much of its prompt is believed to be cached there."""
        where = route.prefill or route.decode
        cached = self.cached.sent(request, where, self._pages.get(where))
        self.ledger.start(request, route, now_s, cached_tokens=cached)
        return cached

    def _no_capacity(self, request: RequestView, snapshot: Snapshot) -> Reject:
        mine = [e for e in snapshot.endpoints if e.model == request.model]
        ready = Counter(e.role.value for e in mine if e.ready)
        counts = [f"{role} {ready[role]} of {n}" for role, n in Counter(e.role.value for e in mine).items()]
        known = f"ready: {', '.join(counts)}" if counts else "no endpoint has this model"
        message = f"nothing is ready that could answer {request.path} for model {request.model!r} ({known})"
        return Reject(request.id, NoCapacity.default_reason, message, NoCapacity.http_status)

    def _reason(self, full: Mapping[Role, AllFiltered]) -> str:
        """The `reason` that the filters which left none give, if all give the same."""
        roles = (self.profile.prefill, self.profile.decode, self.profile.unified)
        filters = {step.name: step.policy for role in roles for step in role.filters}
        told = {
            getattr(filters.get(name), "reason", Overloaded.default_reason)
            for found in full.values()
            for name in found.filtered.values()
        }
        return told.pop() if len(told) == 1 else Overloaded.default_reason

    def _full(self, request: RequestView, full: Mapping[Role, AllFiltered], now_s: float) -> Reject:
        counts = [
            f"{role}: {', '.join(f'{n} by {name}' for name, n in Counter(found.filtered.values()).items())}"
            for role, found in full.items()
        ]
        return Reject(
            request.id,
            self._reason(full),
            f"every endpoint is full (filtered {'; '.join(counts)})",
            Overloaded.http_status,
            self._drain.retry_after_s(now_s, len(self.ledger)),
        )
