"""The scheduler that lets requests wait: each endpoint gets its next prompt when its last one is computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from random import Random
from typing import ClassVar

from orchestrator.core.admission import Drain
from orchestrator.core.choosing import OnPolicyError
from orchestrator.core.contracts import Assign, Decision, Reject
from orchestrator.core.inflight import Ledger
from orchestrator.core.late import alone
from orchestrator.core.late.board import Board, Serves, kind
from orchestrator.core.late.lanes import Lane
from orchestrator.core.late.live import Live, explain, prediction
from orchestrator.core.late.policies import Policies
from orchestrator.core.late.pricing import Pick, Pricing
from orchestrator.core.late.pump import Pump
from orchestrator.core.late.queue import Item
from orchestrator.core.late.refusals import Refusals
from orchestrator.core.late.slicing import Slices
from orchestrator.core.late.touched import Touched
from orchestrator.core.late.tracking import Tracking
from orchestrator.core.lateprofile import LateProfile
from orchestrator.core.prediction import Predictor
from orchestrator.core.prefix import PrefixIndex
from orchestrator.core.prefixcheck import PrefixCheck
from orchestrator.core.slo import NO_PROMISE, Classes, SloClass, Unattainable
from orchestrator.core.types import LegEvent, Outcome, PathKind, Prediction, RequestView, Route, Snapshot
from orchestrator.errors import AccountingError, PolicyError

RELEARN_S = 0.1
"""A predictor learns from every answer; taking each lesson at once costs a look at every endpoint."""


def _serves_all(kind: PathKind, endpoint: object) -> bool:
    return True


def _ignore(name: str, error: PolicyError) -> None:
    """A shell that wants to know passes its own."""


def _raise(error: AccountingError) -> None:
    raise error


class LateScheduler:
    """The Scheduler that keeps requests until an endpoint is free for them, or refuses them.

    Per endpoint one unit of prefill is outstanding; its completion pumps the queue. Requests of a class that
    rejects what is unattainable are refused at their latest start, but for those that an engine failed. Not
    thread-safe. `predictor` prices every choice and learns from what comes of it. `classes` are the SLO
    classes by name. `max_wait_s` bounds every wait. The other arguments are `ImmediateScheduler`'s.
    """

    heeds: ClassVar[frozenset[str]] = frozenset({"first_token", "done"})
    """What of a leg's progress changes anything here; it need not be told the rest."""

    decides_in: ClassVar[frozenset[str]] = frozenset({"submit", "progress", "finish", "observe", "tick"})
    """The calls that ask policies."""

    def __init__(
        self,
        profile: LateProfile,
        predictor: Predictor,
        *,
        rng: Random,
        classes: Classes | None = None,
        serves: Serves = _serves_all,
        block_tokens: int = 128,
        max_wait_s: float = 600.0,
        on_policy_error: OnPolicyError = _ignore,
        on_accounting_error: Callable[[AccountingError], None] = _raise,
    ) -> None:
        self.ledger = Ledger()
        self.prefix = PrefixIndex()
        self.cached = PrefixCheck(self.prefix, block_tokens)
        self.predictor = predictor
        self.classes: Classes = classes or {}
        self._rng = rng
        self._serves = serves
        self._block_tokens = block_tokens
        self._max_wait_s = max_wait_s
        self._on_accounting_error = on_accounting_error
        self._drain = Drain()
        self._refusals = Refusals(self._drain)
        self._waiting: dict[str, tuple[Item, Lane]] = {}
        self._admitted: dict[str, Prediction] = {}
        self._ticked_s = self._learned_s = -inf
        self._seq = 0
        self._touched = Touched()
        self._out: list[Decision] = []
        self._board = Board(self.ledger, predictor, serves, profile.settings)
        self._tracking = Tracking(self.ledger, self._board, predictor, self.cached, on_accounting_error)
        self._slices = Slices(self.ledger, self.cached)
        self._on_policy_error = on_policy_error
        self.profile = profile

    @property
    def profile(self) -> LateProfile:
        """May be replaced between two calls; what waits is put in the new order."""
        return self._profile

    @profile.setter
    def profile(self, profile: LateProfile) -> None:
        self._profile = profile
        self._board.adopt(profile.settings)
        self._slices.every_s = profile.settings.slices_s
        policies = Policies(
            profile, self._board, self.ledger, self.predictor, self.cached, self._rng, self._block_tokens,
            self._on_policy_error,
        )  # fmt: skip
        self._tracking.policies = policies
        pricing = Pricing(self._board, self.ledger, self.predictor, profile.settings)
        self._pricing = pricing
        self._pump = Pump(profile, pricing, self.cached, policies, self._touched, self._tracking.bringing)
        for item, lane in self._waiting.values():
            item.waits_for, item.deferred = None, False
            lane.move(item, self._pump.key(item))

    def slices(self, request: RequestView) -> bool:
        """Whether the prompt may be computed in slices, if its tokens are known."""
        return self._slices.may(request, self.classes, self._board)

    @property
    def waiting(self) -> int:
        """Requests without a decision."""
        return len(self._waiting)

    # -- the port

    def submit(self, request: RequestView, now_s: float) -> Sequence[Decision]:
        """Queue the request, and dispatch whatever may go now.

        Refuses it at once if nothing is ready for it (503), the queue is full, or its promise is out of reach
        (429); one that comes again waits. Raises AccountingError if it is waiting or in flight already.
        """
        if request.id in self.ledger or request.id in self._waiting or request.id in self._slices:
            raise AccountingError(f"request {request.id} was submitted while in flight")
        if request.path in alone.ONE_ENDPOINT:
            return alone.decide(
                request, self.ledger, self._board, self._serves, self._refusals, self._rng, now_s
            )
        if now_s - self._learned_s >= RELEARN_S:
            self._learned_s = now_s
            self._board.refresh()
        slo = self.classes.get(request.slo_class or "", NO_PROMISE)
        again = bool(request.avoid)
        lane = self._board.lane((request.model, request.path, slo.pools), keep=again)
        if not lane.usable and not again:
            return (self._refusals.no_capacity(request, self._board.endpoints),)
        if len(self._waiting) >= self._profile.settings.max_queue:
            full = self._refusals.queue_full(request, len(self._waiting), lane, now_s, len(self.ledger))
            return (full,)
        item = self._item(request, slo, lane)
        self._enqueue(item, lane)
        if lane.usable:
            self._admitted[request.id] = self._pricing.admission(lane, item, now_s)
        return self._run(self._board.beside(lane), now_s, new=item)

    def progress(self, event: LegEvent, now_s: float) -> Sequence[Decision]:
        """Take note of a leg's progress; a finished prefill frees its endpoint for the next."""
        sliced = self._slices.over(event, now_s)
        if sliced is not None:
            return self._queue_again(sliced, now_s)
        if event.what not in self.heeds:
            return ()
        lane = self._tracking.progress(event, now_s, self._out)
        return self._run(self._board.beside(lane), now_s) if lane is not None else self._take()

    def cancel(self, request_id: str, now_s: float) -> Sequence[Decision]:
        """The client left before a decision."""
        found = self._waiting.get(request_id)
        if found is None:
            self._drop_slice(request_id, now_s)
            return self._take()
        item, lane = found
        kept = lane.keeps is not None and lane.keeps[0] is item
        self._forget(item, lane)
        self._admitted.pop(request_id, None)
        # Room that was kept for it may do for others.
        return self._run(self._board.beside(lane), now_s) if kept else ()

    def rebind(self, request: RequestView, now_s: float) -> Sequence[Decision]:
        """Name another decode side for a finished prefill, or hold it until one has room."""
        self._tracking.unbind(request, now_s, self._out)
        return self._take()

    def finish(self, outcome: Outcome, now_s: float) -> Sequence[Decision]:
        """Release all that the request held, learn from it, and give what it freed to the next."""
        self._drop_slice(outcome.request_id, now_s)
        self._admitted.pop(outcome.request_id, None)
        live = self._tracking.live.get(outcome.request_id)
        self.cached.ended(outcome)
        if live is not None:
            self._touch(live.item.request)
        finished = self._tracking.finish(outcome, now_s)
        if finished is None:
            return self._take()
        started_s, freed = finished
        self._drain.finished(now_s - started_s)
        if live is None:
            return self._take()
        lanes = self._board.beside(live.lane)
        if freed or live.provisional or any(lane.blocked or lane.alone for lane in lanes):
            return self._run(lanes, now_s)
        # Memory has become free that nobody waits for.
        self._tracking.bind_held(lanes, now_s, self._out)
        return self._take()

    def observe(self, snapshot: Snapshot, now_s: float) -> Sequence[Decision]:
        """Take the endpoints as they are now; a new incarnation has an empty prefix cache."""
        restarted, changed = self.cached.observe(snapshot)
        for endpoint_id in restarted:
            self._tracking.restarted(endpoint_id, self._out)
        if changed:
            self._touched.all()
        self.predictor.observe(snapshot, now_s)
        self.ledger.observe(snapshot.endpoints, snapshot.unix_s - snapshot.at_s)
        if self._board.observe(self.ledger.snapshot(now_s).endpoints):
            for item, _ in list(self._waiting.values()):
                item.waits_for, item.passed_s, item.hits_at = None, inf, -1
                self._enqueue(item, self._board.lane(kind(item), keep=True))
            self._tracking.to_new_lanes()
        self._tracking.observe(now_s, self._out)
        return self._run_all(now_s)

    def due_s(self) -> float | None:
        """When something will be too late, free, or worth a poll."""
        due_s = self._tracking.due_s()
        for lane in self._board.lanes.values():
            if not lane.waiting:
                continue
            due_s = min(due_s, lane.deadlines.next_s(), lane.recheck_s, lane.next_ahead_s(self._ticked_s))
        return None if due_s == inf else due_s

    def tick(self, now_s: float) -> Sequence[Decision]:
        """Refuse what is too late, hand ahead, ask overdue endpoints, give up hand-offs nobody took."""
        self._ticked_s = now_s
        self._tracking.tick(now_s, self._out)
        return self._run_all(now_s)

    # -- the queue

    def _item(self, request: RequestView, slo: SloClass, lane: Lane) -> Item:
        tokens = max(1, request.prompt_tokens)
        output = request.n * self.predictor.output_tokens(request.slo_class, request.max_tokens)
        cold_s = self.predictor.reference_s(request.model, tokens)
        encode_s = self.predictor.encode_s(request.model, request.media) if request.media else 0.0
        decode_s = output / max(1, request.n) * lane.step_s()
        by_s = slo.first_token_by_s(request.arrived_s, cold_s, decode_s)
        wait_s = self._max_wait_s if slo is NO_PROMISE else min(slo.max_wait_s, self._max_wait_s)
        self._seq += 1
        item = Item(
            request=request,
            arrived_s=request.arrived_s,
            work_s=encode_s + lane.fastest.seconds(tokens),
            first_token_by_s=by_s,
            latest_start_s=inf,
            slo=slo,
            tokens=tokens,
            output_tokens=output,
            expires_s=request.arrived_s + wait_s,
            cold_s=cold_s,
            encode_s=encode_s,
            key=(0, 0.0, self._seq),
        )
        item.slice_s = self._slices.seconds(request, slo) if request.parts else 0.0
        self._pump.refresh(lane, item)
        item.latest_start_s = by_s
        if lane.usable:
            takes_s = item.work_s + self._board.least_exposed_s(lane, tokens)
            item.latest_start_s -= takes_s + self._pricing.margin_s(lane.stations[0], takes_s)
        item.key = self._pump.key(item)
        return item

    def _enqueue(self, item: Item, lane: Lane) -> None:
        self._waiting[item.request.id] = (item, lane)
        lane.add(item)
        if item.first_token_by_s < inf:
            slack_s = item.latest_start_s - item.arrived_s
            for over_s, _ in self._profile.settings.spare:
                if item.work_s <= over_s:
                    lane.note_short(over_s, item.arrived_s, slack_s)

    def _queue_again(self, item: Item, now_s: float) -> Sequence[Decision]:
        """One of its slices is over: it waits for the rest."""
        lane = self._board.lane(kind(item), keep=True)
        self._touch(item.request)
        item.waits_for, item.passed_s = None, inf
        self._pump.refresh(lane, item)
        item.key = self._pump.key(item)
        self._enqueue(item, lane)
        return self._run(self._board.beside(lane), now_s)

    def _drop_slice(self, request_id: str, now_s: float) -> None:
        """A request is over of which a slice may be on its way."""
        item = self._slices.drop(request_id, now_s)
        if item is not None:
            self._admitted.pop(request_id, None)
            self._touch(item.request)
            self._pump_out(self._board.beside(self._board.lane(kind(item))), now_s)

    def _forget(self, item: Item, lane: Lane) -> None:
        """It waits no more."""
        lane.remove(item)
        del self._waiting[item.request.id]

    def _expire(self, lane: Lane, now_s: float) -> None:
        """Refuse, or let wait behind all others, whatever cannot be on time any more."""
        while (item := lane.deadlines.overdue(now_s)) is not None:
            if now_s >= item.expires_s:
                self._refuse(item, lane, self._refusals.timeout(item, lane, now_s, len(self.ledger)), now_s)
                continue
            self._pump.refresh(lane, item)
            if item.late or item.latest_start_s > now_s:
                lane.deadlines.remind(item)
            elif item.slo.unattainable is Unattainable.REJECT and not item.request.avoid:
                told = self._admitted.get(item.request.id)
                reject = self._refusals.unreachable(item, lane, now_s, len(self.ledger), told)
                self._refuse(item, lane, reject, now_s)
            elif item.slo.unattainable is Unattainable.QUEUE:
                lane.remove(item)
                item.late = True
                lane.add(item)
            else:
                item.first_token_by_s, item.latest_start_s, item.deferred = inf, inf, False
                lane.move(item, self._pump.key(item))
                lane.deadlines.remind(item)

    def _refuse(self, item: Item, lane: Lane, reject: Reject, now_s: float) -> None:
        self._forget(item, lane)
        self._admitted.pop(item.request.id, None)
        self._out.append(replace(reject, explain=partial(self._pump.refused, lane, item, now_s)))

    def _dispatch(self, now_s: float, pick: Pick, unit: int) -> None:
        """Send a request to the station it was priced for."""
        lane, item, best = pick.lane, pick.item, pick.best
        request, station = item.request, best.station
        self._forget(item, lane)
        piece = self._slices.begin(pick, unit, now_s)
        if piece is not None:
            self._touch(request)
            self._out.append(piece)
            return
        takes_s = best.wait_s + best.work_s + best.exposed_s
        tail_s = self.predictor.tail_s(station.id, takes_s, item.slo.quantile)
        predicted = prediction(now_s, item, best, tail_s, self.predictor)
        route = Route(station.id) if best.side is None else Route(best.side.id, station.id)
        provisional = best.side is not None and bool(station.endpoint.facts.get("late_decode"))
        admitted = self._admitted.pop(request.id, None)
        live = Live(item, lane, route, best, now_s, admitted, predicted, provisional)
        self._tracking.start(live, unit, now_s)
        self.cached.sent(request, station.id, station.endpoint.block_size)
        self._touch(request)
        self._out.append(
            Assign(
                request.id,
                route,
                (),
                provisional,
                predicted,
                admitted=admitted,
                explain=partial(explain, pick),
            )
        )

    def _run_all(self, now_s: float) -> Sequence[Decision]:
        """Every lane, model by model."""
        for lanes in self._board.models():
            self._pump_out(lanes, now_s)
        return self._take()

    def _run(self, lanes: Sequence[Lane], now_s: float, new: Item | None = None) -> Sequence[Decision]:
        """The lanes of one model."""
        self._pump_out(lanes, now_s, new)
        return self._take()

    def _pump_out(self, lanes: Sequence[Lane], now_s: float, new: Item | None = None) -> None:
        for lane in lanes:
            self._expire(lane, now_s)
        self._tracking.bind_held(lanes, now_s, self._out)
        if any(lane.waiting for lane in lanes) and (new is None or self._pump.considers(lanes, new)):
            self._pump.run(lanes, now_s, partial(self._dispatch, now_s), new)

    def _touch(self, request: RequestView) -> None:
        """What is cached of prompts that begin as this one does has changed."""
        if request.block_hashes:
            self._touched.block(request.block_hashes[0])

    def _take(self) -> Sequence[Decision]:
        if not self._out:
            return ()
        out, self._out = self._out, []
        return out
