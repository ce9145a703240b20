"""The pump: whenever an endpoint is free, which waiting request goes there next, or that none should."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from orchestrator.core.contracts import Order, PlannedOrder
from orchestrator.core.late.lanes import Lane
from orchestrator.core.late.policies import Policies
from orchestrator.core.late.pricing import Pick, Pricing
from orchestrator.core.late.queue import Item, Key
from orchestrator.core.late.station import Station
from orchestrator.core.lateprofile import LateProfile
from orchestrator.core.prefix import PrefixIndex
from orchestrator.core.prefixcheck import cached_tokens
from orchestrator.core.slo import Classes, Priority

BATCH_HEADS = 8
"""Batch requests looked at for one that belongs on a free endpoint."""

UNIT_LOOKAHEAD = 64
"""Requests behind a short one that are looked at to go with it."""

TOUCHES = 4096
"""First blocks whose last change is remembered; beyond, all waiting requests are looked up anew once. What
one prompt evicts of others' is noticed then, or when they are next sent or reported."""

Dispatch = Callable[[Pick, int], None]
"""Sends the picked request, in the unit of that number."""


class Pump:
    """Chooses for one lane at a time."""

    def __init__(
        self,
        profile: LateProfile,
        pricing: Pricing,
        prefix: PrefixIndex,
        policies: Policies,
        classes: Classes,
        block_tokens: int,
    ) -> None:
        self._profile = profile
        self._settings = profile.settings
        self._pricing = pricing
        self._prefix = prefix
        self._policies = policies
        self._reserves = {name: c.reserve for name, c in classes.items() if c.reserve > 0.0}
        self._block_tokens = block_tokens
        self._touched: dict[int, int] = {}
        self._touches = 0
        self._all_touched = 0

    def run(self, lane: Lane, now_s: float, dispatch: Dispatch) -> None:
        """Dispatch to every free station for which there is a fitting request."""
        self._credit(lane, now_s)
        ahead, short = self._settings.hand_ahead_s, self._settings.hand_ahead_work_s
        near = lane.nearly_free(now_s, ahead, short) if ahead > 0.0 else []
        while lane.waiting:
            free = [*lane.idle.values(), *near] if near else list(lane.idle.values())
            if not free:
                return
            pick = self._next(lane, free, now_s)
            if pick is None:
                return
            station = pick.best.station
            unit = station.unit()
            dispatch(pick, unit)
            self._fill(lane, pick, unit, now_s, dispatch)
            if station in near:
                near.remove(station)

    def key(self, item: Item) -> Key:
        """Where an item stands in the queue: by priority, then as the order has it, then by arrival."""
        order: Order = self._profile.order.policy
        try:
            key = float(order.key(item))
            if key != key:
                raise ValueError("the key is not a number")
        except Exception as error:  # noqa: BLE001  a stranger's code: no fault of it may cost a request
            self._policies.bypass(self._profile.order.name, error)
            key = item.work_s
        return (int(item.slo.priority), key, item.key[2])

    def touched(self, first_block: int) -> None:
        """What is cached of the prompts that begin with this block may have changed."""
        self._touches += 1
        if len(self._touched) > TOUCHES:
            self.touched_all()
        self._touched[first_block] = self._touches

    def touched_all(self) -> None:
        """Whatever is cached may have changed."""
        self._touches += 1
        self._all_touched = self._touches
        self._touched.clear()

    def refresh(self, lane: Lane, item: Item) -> None:
        """Bring up to date what of an item's prompt is cached where, and with it its work and its place."""
        hashes = item.request.block_hashes
        changed = max(self._all_touched, self._touched.get(hashes[0], 0)) if hashes else 0
        if item.hits_at >= changed:
            return
        item.hits_at = self._touches
        item.waits_for = None
        hits = self._prefix.hits(hashes)
        each = self._block_tokens
        item.hits = {e: cached_tokens(item.request, blocks, each) for e, blocks in hits.items()}
        work_s = lane.fastest.seconds(item.tokens)
        for endpoint_id, hit in item.hits.items():
            station = lane.station(endpoint_id)
            if station is not None:
                work_s = min(work_s, station.curve.seconds(item.tokens, hit))
        if abs(work_s - item.work_s) <= 0.01 * item.work_s:
            return
        item.latest_start_s += item.work_s - work_s
        item.work_s = work_s
        if item.queued and not item.late and item.slo.priority is not Priority.BATCH:
            key = self.key(item)
            if key != item.key:
                lane.queue.move(item, key)

    def _next(self, lane: Lane, free: Sequence[Station], now_s: float) -> Pick | None:
        claims: dict[str, float] = {}
        for item in self._candidates(lane, now_s):
            pick = self._pick(lane, item, free, now_s, claims)
            if pick is not None:
                return pick
        for item in lane.kept.head(self._settings.candidates):
            pick = self._pick(lane, item, free, now_s, claims, urgent=True)
            if pick is not None:
                return pick
        return self._batch(lane, free, now_s)

    def _candidates(self, lane: Lane, now_s: float) -> Iterator[Item]:
        """The head of the queue, those first whose class has saved up a share of the machine."""
        first = self._reserved(lane) if self._reserves else ()
        yield from first
        heads: Sequence[Item]
        order = self._profile.order.policy
        if isinstance(order, PlannedOrder) and len(lane.queue) > 1:
            heads = self._planned(order, lane, now_s)
        else:
            heads = lane.queue.head(self._settings.candidates)
        for item in heads:
            if item not in first:
                yield item

    def _planned(self, order: PlannedOrder, lane: Lane, now_s: float) -> Sequence[Item]:
        items = lane.queue.items
        try:
            plan = order.plan(items, now_s, len(lane.stations))
            if not isinstance(plan, Sequence) or any(not isinstance(w, Item) or not w.queued for w in plan):
                raise TypeError("a plan is a sequence of what was in the queue")
        except Exception as error:  # noqa: BLE001  as above
            self._policies.bypass(self._profile.order.name, error)
            plan = items
        return list(plan[: self._settings.candidates])  # type: ignore[arg-type]

    def _reserved(self, lane: Lane) -> Sequence[Item]:
        """For each class with credit for it, its first request."""
        found = []
        for name in self._reserves:
            credit = lane.credits.get(name, 0.0)
            if credit <= 0.0:
                continue
            item = next((i for i in lane.queue if i.slo.name == name), None)
            if item is not None and item.work_s <= credit:
                found.append(item)
        return found

    def _credit(self, lane: Lane, now_s: float) -> None:
        """Every class with a reserve saves its share of the machine's time while it has requests waiting."""
        if not self._reserves:
            return
        passed_s = (now_s - lane.credited_s) * len(lane.stations)
        lane.credited_s = now_s
        waiting = {item.slo.name: item.work_s for item in lane.queue}
        for name, share in self._reserves.items():
            if name not in waiting:
                lane.credits[name] = 0.0
                continue
            most = 2.0 * max(i.work_s for i in lane.queue if i.slo.name == name)
            lane.credits[name] = min(most, lane.credits.get(name, 0.0) + share * passed_s)

    def _pick(
        self,
        lane: Lane,
        item: Item,
        free: Sequence[Station],
        now_s: float,
        claims: dict[str, float],
        *,
        urgent: bool = False,
    ) -> Pick | None:
        self.refresh(lane, item)
        if not urgent and self._pricing.still_waits(lane, item, now_s, claims):
            return None
        extra = self._policies.extra(lane, item, now_s)
        return self._pricing.pick(lane, item, free, now_s, claims, extra, urgent=urgent)

    def _batch(self, lane: Lane, free: Sequence[Station], now_s: float) -> Pick | None:
        """A batch request for a gap: one that belongs on a free endpoint, of the first few."""
        reserve = min(self._settings.batch_reserve, len(lane.stations) - 1)
        if len(free) <= reserve or not len(lane.batch):
            return None
        claims: dict[str, float] = {}
        for item in lane.batch.head(BATCH_HEADS):
            pick = self._pick(lane, item, free, now_s, claims)
            if pick is not None:
                return pick
        return None

    def _fill(self, lane: Lane, pick: Pick, unit: int, now_s: float, dispatch: Dispatch) -> None:
        """Let short requests behind a short one go with it, up to an efficient chunk."""
        station = pick.best.station
        left = station.unit_tokens - (pick.item.tokens - pick.best.cached)
        if left <= 0 or not len(lane.queue):
            return
        for item in lane.queue.head(UNIT_LOOKAHEAD):
            if left <= 0:
                return
            if item.tokens - item.hits.get(station.id, 0) > left:
                continue
            joined = self._pick(lane, item, (station,), now_s, {})
            if joined is not None and joined.best.station is station:
                left -= item.tokens - joined.best.cached
                dispatch(joined, unit)
