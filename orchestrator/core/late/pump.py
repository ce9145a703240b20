"""The pump: whenever an endpoint is free, which waiting request goes there next, or that none should."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from math import inf
from operator import itemgetter

from orchestrator.core.contracts import DeferringOrder, Order
from orchestrator.core.frozen import record
from orchestrator.core.late.bringing import Bringing
from orchestrator.core.late.deferring import Deferring
from orchestrator.core.late.lanes import Lane
from orchestrator.core.late.live import explain_refusal
from orchestrator.core.late.policies import Policies, leaves_nobody
from orchestrator.core.late.pricing import Pick, Pricing
from orchestrator.core.late.queue import PATIENCE_S, Item, Key
from orchestrator.core.late.station import Station
from orchestrator.core.late.touched import Touched
from orchestrator.core.late.waits import RECHECK_S
from orchestrator.core.lateprofile import LateProfile
from orchestrator.core.prefixcheck import PrefixCheck
from orchestrator.core.slo import Priority
from orchestrator.core.types import Choice

RESERVED_S = 30.0
"""Endpoints are kept from batch for so long after the last request that is none."""

BATCH_HEADS = 8
"""Batch requests looked at for one that belongs on a free endpoint."""

UNIT_LOOKAHEAD = 64
"""Requests behind a short one that are looked at to go with it."""

EVENTS_S = 0.05
"""What engines tell of their caches is put to use as often as this: they tell with every step."""

DEFERRED = 1e8
"""The key of one that its order has put off, its prefill added: behind those of all that have not."""

ASIDE = 4
"""Of the requests that policies left nowhere to go, so many are asked about anew at a time."""

Dispatch = Callable[[Pick, int], None]
"""Sends the picked request, in the unit of that number."""


@record(slots=True, eq=False)
class Turn:
    """One look at the free stations of each lane, and what it has found so far.

    `claims` are the seconds that those ahead wait to put on busy stations, `skipped` those ahead that could
    not go. `asked` are all that could not: what is sent leaves less to them. `new`: nothing has changed but
    that this request came, so that no other can go.
    """

    now_s: float
    free: dict[Lane, Sequence[Station]] = field(default_factory=dict)
    claims: dict[str, float] = field(default_factory=dict)
    batch_claims: dict[str, float] = field(default_factory=dict)
    skipped: list[Item] = field(default_factory=list)
    asked: set[Item] = field(default_factory=set)
    new: Item | None = None


class Pump:
    """Chooses for one lane at a time."""

    def __init__(
        self,
        profile: LateProfile,
        pricing: Pricing,
        cached: PrefixCheck,
        policies: Policies,
        touched: Touched,
        bringing: Bringing,
    ) -> None:
        self._profile = profile
        self._settings = profile.settings
        self._pricing = pricing
        self._cached = cached
        self._policies = policies
        self._touched = touched
        self._bringing = bringing
        order = profile.order.policy
        self._deferring = Deferring(order, self._moved) if isinstance(order, DeferringOrder) else None
        self._told, self._told_s = 0, -inf
        self._credits: dict[tuple[str, str], float] = {}
        """By model and class."""
        self._credited_s: dict[str, float] = {}

    def run(self, lanes: Sequence[Lane], now_s: float, dispatch: Dispatch, new: Item | None = None) -> None:
        """Dispatch to every free station for which there is a fitting request, in lanes of one model.

        `new`: nothing has changed since the last time but that this request came.
        """
        told = self._cached.exact.version
        if told != self._told and now_s >= self._told_s + EVENTS_S:
            self._told, self._told_s = told, now_s
            self._touched.all()
        self._credit(lanes, now_s)
        if new is None and self._deferring is not None:
            self._defer(self._deferring, lanes, now_s)
        ahead, short = self._settings.hand_ahead_s, self._settings.hand_ahead_work_s
        near: dict[Station, None] = {}
        for lane in lanes:
            if new is None:
                lane.blocked, lane.recheck_s = False, inf
            if ahead > 0.0 and lane.waiting:
                near.update(dict.fromkeys(lane.nearly_free(now_s, ahead, short)))
        turn = Turn(now_s, new=new)
        while True:
            turn.free.clear()
            for lane in lanes:
                if lane.waiting:
                    free = [*lane.idle.values(), *(s for s in near if lane.station(s.id) is s)]
                    if free:
                        turn.free[lane] = free
            pick = self._next(turn) if turn.free else None
            if pick is None:
                return
            for item in turn.skipped:
                # Somebody behind it goes first.
                item.passed_s = min(item.passed_s, now_s)
            station = pick.best.station
            unit = station.unit()
            self._send(pick, unit, dispatch)
            self._fill(pick, unit, now_s, dispatch)
            if new is not None:
                return
            near.pop(station, None)

    def considers(self, lanes: Sequence[Lane], new: Item) -> bool:
        """Whether a request that has just come is among those that a look at the queue would consider."""
        if new.slo.reserve > 0.0:
            return True
        batch = new.slo.priority is Priority.BATCH
        for lane in lanes:
            if new in (lane.batch.head(BATCH_HEADS) if batch else lane.queue.head(self._settings.candidates)):
                return True
        return False

    def refused(self, lane: Lane, item: Item, now_s: float) -> tuple[Choice, ...]:
        """What there was to choose from for a request that is refused."""
        added = self._policies.added(lane, item, now_s)
        return explain_refusal(lane, item, self._pricing.looked_at(lane, item, now_s, added), added)

    def key(self, item: Item) -> Key:
        """Where an item stands in the queue: by priority, then as the order has it, then by arrival."""
        order: Order = self._profile.order.policy
        try:
            key = float(order.key(item))
            if key != key:
                raise ValueError("the key is not a number")
        except Exception as error:  # noqa: BLE001  a stranger's code: no fault of it may cost a request
            self._policies.bypass(self._profile.order.name, self._profile.order.policy, error)
            key = item.work_s
        if item.deferred:
            key = DEFERRED + item.work_s
        return (int(item.slo.priority), key, item.key[2])

    def _moved(self, lane: Lane, item: Item) -> None:
        lane.move(item, self.key(item))

    def _defer(self, deferring: Deferring, lanes: Sequence[Lane], now_s: float) -> None:
        """Put off whom the order puts off."""
        try:
            deferring.ask(lanes, now_s)
        except Exception as error:  # noqa: BLE001  a stranger's code: no fault of it may cost a request
            self._policies.bypass(self._profile.order.name, self._profile.order.policy, error)

    def refresh(self, lane: Lane, item: Item) -> bool:
        """Bring up to date what of an item's prompt is cached where, and with it its work and its place.

        True: it has another place.
        """
        touched = self._touched
        if item.hits_at >= touched.count or not lane.usable:
            return False
        known = item.hits_at >= touched.changed(item.request.block_hashes)
        item.hits_at = touched.count
        if known:
            return False
        item.waits_for = None
        hits = self._cached.tokens(item.request)
        if self._cached.exact.tiers:
            hits = dict(hits)
            self._bringing.worth(lane, hits, self._cached.exact.behind(item.request), item.tokens)
        item.hits = dict(sorted(hits.items(), key=_tokens, reverse=True)) if len(hits) > 1 else hits
        work_s = lane.fastest.seconds(item.tokens)
        for endpoint_id, hit in item.hits.items():
            station = lane.station(endpoint_id)
            if station is not None:
                work_s = min(work_s, station.curve.seconds(item.tokens, hit))
        work_s += item.encode_s
        if abs(work_s - item.work_s) <= 0.01 * item.work_s:
            return False
        earlier = work_s > item.work_s
        item.latest_start_s += item.work_s - work_s
        item.work_s = work_s
        if not item.queued:
            return False
        before, key = item.key, self.key(item)
        lane.move(item, key)
        if earlier:
            lane.deadlines.remind(item)
        return key != before

    def _next(self, turn: Turn) -> Pick | None:
        lanes = tuple(turn.free)
        for lane in lanes:
            if lane.aside and turn.new is None and not turn.asked:
                for item in list(lane.aside.values())[:ASIDE]:
                    if not self._shut_out(lane, item, turn.now_s):
                        lane.take_back(item)
        for lane, item in self._candidates(turn, lanes):
            pick = self._pick(turn, lane, item)
            if pick is not None:
                return pick
        for lane, item in _by_arrival(lanes, [lane.kept.head(self._settings.candidates) for lane in lanes]):
            pick = self._pick(turn, lane, item)
            if pick is not None:
                return pick
        return self._batch(turn, lanes)

    def _candidates(self, turn: Turn, lanes: Sequence[Lane]) -> Iterator[tuple[Lane, Item]]:
        """The head of the queue, those first whose class has saved up a share of the machine."""
        first = self._reserved(lanes) if self._credits else ()
        yield from first
        # Whom a share was saved up for was asked already.
        asked = {item for _, item in first}
        turn.skipped.clear()
        for lane, item in _by_key(lanes, [self._heads(lane) for lane in lanes]):
            if item not in asked:
                yield lane, item

    def _heads(self, lane: Lane) -> Sequence[Item]:
        """The head of a lane's queue, each where it belongs now."""
        heads = lane.queue.head(self._settings.candidates)
        count = self._touched.count
        moved = [item for item in heads if item.hits_at < count and self.refresh(lane, item)]
        return lane.queue.head(self._settings.candidates) if moved else heads

    def _reserved(self, lanes: Sequence[Lane]) -> Sequence[tuple[Lane, Item]]:
        """For each class with credit for it, its first request."""
        found = []
        for lane in lanes:
            for name, queue in lane.reserved.items():
                item = queue.first
                if item is not None and item.work_s <= self._credits.get((lane.model, name), 0.0):
                    found.append((lane, item))
        return found

    def _credit(self, lanes: Sequence[Lane], now_s: float) -> None:
        """Every class with a reserve saves its share of its stations' time while it has requests waiting."""
        if not any(lane.reserved for lane in lanes):
            return
        model = lanes[0].model
        passed_s = now_s - self._credited_s.get(model, now_s)
        self._credited_s[model] = now_s
        saved: dict[str, float] = {}
        most: dict[str, float] = {}
        for lane in lanes:
            for name, queue in lane.reserved.items():
                first = queue.first
                if first is None:
                    continue
                share_s = first.slo.reserve * passed_s * len(lane.stations)
                saved[name] = max(saved.get(name, 0.0), share_s)
                most[name] = max(most.get(name, 0.0), first.work_s, queue.work_s / len(queue))
        for name in {name for of, name in self._credits if of == model} - saved.keys():
            del self._credits[model, name]
        for name, share_s in saved.items():
            credit_s = self._credits.get((model, name), 0.0) + share_s
            self._credits[model, name] = min(2.0 * most[name], credit_s)

    def _pick(self, turn: Turn, lane: Lane, item: Item) -> Pick | None:
        free, now_s = turn.free[lane], turn.now_s
        turn.skipped.append(item)
        if item in turn.asked:
            return None
        turn.asked.add(item)
        claims = turn.batch_claims if item.slo.priority is Priority.BATCH else turn.claims
        if item.hits_at < self._touched.count:
            self.refresh(lane, item)
        if (
            item.waits_for is not None
            and not item.late
            and self._pricing.still_waits(lane, item, now_s, claims)
        ):
            return None
        starved = (
            lane.keeps is None
            and now_s - item.passed_s > PATIENCE_S
            and item.slo.priority is not Priority.BATCH
        )
        if turn.new is not None and turn.new is not item and not starved:
            return None
        added = self._policies.added(lane, item, now_s)
        if leaves_nobody(lane, added):
            lane.put_aside(item)
            return None
        pick = self._pricing.pick(lane, item, free, now_s, claims, added, urgent=item.late)
        if pick is not None:
            turn.skipped.pop()
            return pick
        lane.blocked |= item.waits_for is None
        side = self._pricing.to_keep_room(lane, item) if starved else None
        if side is not None:
            lane.keep_room(item, side)
        return None

    def _shut_out(self, lane: Lane, item: Item, now_s: float) -> bool:
        """Whether policies still leave it nowhere to go; if so, it will be the last to be asked again."""
        added = self._policies.added(lane, item, now_s)
        if not leaves_nobody(lane, added):
            return False
        lane.put_aside(item)
        return True

    def _batch(self, turn: Turn, lanes: Sequence[Lane]) -> Pick | None:
        """A batch request for a gap: one that belongs on a free endpoint, of the first few."""
        heads = []
        for lane in lanes:
            wanted = turn.now_s - lane.prompted_s <= RESERVED_S
            reserve = min(self._settings.batch_reserve, len(lane.stations) - 1) if wanted else 0
            heads.append(lane.batch.head(BATCH_HEADS) if len(turn.free[lane]) > reserve else [])
            if reserve and len(lane.batch):
                lane.recheck_s = min(lane.recheck_s, lane.prompted_s + RESERVED_S + RECHECK_S)
        for lane, item in _by_arrival(lanes, heads):
            pick = self._pick(turn, lane, item)
            if pick is not None:
                return pick
        return None

    def _send(self, pick: Pick, unit: int, dispatch: Dispatch) -> None:
        item = pick.item
        if item.slo.reserve > 0.0:
            saved = (pick.lane.model, item.slo.name)
            self._credits[saved] = max(0.0, self._credits.get(saved, 0.0) - pick.best.work_s)
        dispatch(pick, unit)

    def _fill(self, pick: Pick, unit: int, now_s: float, dispatch: Dispatch) -> None:
        """Let short requests behind a short one go with it, up to an efficient chunk."""
        lane, station = pick.lane, pick.best.station
        left = station.unit_tokens - (pick.item.tokens - pick.best.cached)
        if left <= 0 or not len(lane.queue):
            return
        for item in lane.queue.head(UNIT_LOOKAHEAD):
            if left <= 0:
                return
            if item.tokens - item.hits.get(station.id, 0) > left:
                continue
            turn = Turn(now_s, {lane: [station]})
            joined = self._pick(turn, lane, item)
            if joined is not None and joined.best.station is station:
                left -= item.tokens - joined.best.cached
                self._send(joined, unit, dispatch)


_tokens = itemgetter(1)


def _by_key(lanes: Sequence[Lane], heads: Sequence[Sequence[Item]]) -> list[tuple[Lane, Item]]:
    """The heads of several lanes in one order."""
    found = [(lane, item) for lane, items in zip(lanes, heads, strict=True) for item in items]
    if len(lanes) > 1:
        found.sort(key=lambda one: one[1].key)
    return found


def _by_arrival(lanes: Sequence[Lane], heads: Sequence[Sequence[Item]]) -> list[tuple[Lane, Item]]:
    found = [(lane, item) for lane, items in zip(lanes, heads, strict=True) for item in items]
    if len(lanes) > 1:
        found.sort(key=lambda one: (one[1].arrived_s, one[1].key[2]))
    return found
