"""Requests on their way: which endpoint each keeps busy, hand-offs that wait for a decode side, polls."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from functools import partial
from math import inf

from orchestrator.core.contracts import Bind, Decision, Poll, Spent
from orchestrator.core.inflight import Ledger
from orchestrator.core.late.board import Board, kind
from orchestrator.core.late.bringing import Bringing
from orchestrator.core.late.lanes import Lane
from orchestrator.core.late.live import Live, explain_decode
from orchestrator.core.late.policies import Added, Policies, left_to
from orchestrator.core.late.station import Station
from orchestrator.core.prediction import Predictor
from orchestrator.core.prefixcheck import PrefixCheck
from orchestrator.core.types import End, LegEvent, LegKind, Outcome, RequestView, Route
from orchestrator.errors import AccountingError

DEFAULT_LEASE_S = 30.0
"""How long an engine keeps a finished prefill that nobody fetches, where its adapter does not say."""

HOLD_SHARE = 0.5
"""Of a lease, how much may pass before the decode side is bound: the other half is for fetching."""

LOST = "handoff-lost"
"""Why a held hand-off is given up whose prefill is another process now."""

TRANSFERRED = "transferred"
"""The fact `prefill_answers` of an endpoint that answers only when the KV is fetched; else `computed`."""


class Tracking:
    """Every attempt from its Assign to its `finish`. Decisions that become due go to `out`."""

    def __init__(
        self,
        ledger: Ledger,
        board: Board,
        predictor: Predictor,
        cached: PrefixCheck,
        on_accounting_error: Callable[[AccountingError], None],
    ) -> None:
        self.live: dict[str, Live] = {}
        self.bringing = Bringing()
        self._ledger = ledger
        self._board = board
        self._predictor = predictor
        self._cached = cached
        self._on_accounting_error = on_accounting_error
        self.policies: Policies | None = None
        """Those in force, which are asked when a decode side is bound late."""
        self._held: dict[str, Live] = {}
        self._give_up: list[tuple[float, str]] = []
        self._polls: list[tuple[float, str, Station]] = []
        self._unseen: list[tuple[float, str]] = []

    def start(self, live: Live, unit: int, now_s: float) -> None:
        """A request has been given its route."""
        item, price = live.item, live.price
        tokens = item.tokens + item.output_tokens
        if not price.station.disaggregated:
            tokens -= price.cached  # blocks of a shared prefix are held once for all
        self.live[item.request.id] = live
        if self._cached.exact.tiers:
            behind = self._cached.exact.behind(item.request)
            live.brought = self.bringing.brought(price.station.id, behind)
        guessed = live.provisional
        self._ledger.start(
            item.request, live.route, now_s, price.cached, 0 if guessed else tokens, guessed=guessed
        )
        if live.provisional:
            live.lane.unbound_tokens += tokens
        else:
            self._join(live)
        station = price.station
        station.start(item.request.id, unit, now_s, price.work_s, item.tokens, price.cached)
        if not station.disaggregated and not item.request.stream:
            heapq.heappush(self._unseen, (station.ends_s, item.request.id))
        if station.endpoint.facts.get("prefill_answers") == TRANSFERRED:
            heapq.heappush(self._polls, (station.poll_at_s, station.id, station))
        self._changed(live.route)

    def progress(self, event: LegEvent, now_s: float, out: list[Decision]) -> Lane | None:
        """Release what a leg is done with; the lane that has a place free now, if any."""
        live = self.live.get(event.request_id)
        if live is None:
            if event.request_id in self._ledger and event.leg is not LegKind.PREFILL:
                self._ledger.handed_over(event.request_id)
            return None
        if event.leg is LegKind.PREFILL:
            if event.what != "done":
                return None
            self._ledger.prefill_done(event.request_id)
            if live.price.station.endpoint.facts.get("prefill_answers") != TRANSFERRED:
                live.prefill_s = now_s - live.dispatched_s
            freed = self._computed(live, now_s)
            if not live.item.request.stream:
                # Its first token comes with its last; this is the last that is seen of it before.
                answered = live.prefill_s is None
                self._begun(live, now_s if answered else now_s + live.price.exposed_s, now_s)
            if live.provisional:
                self._bind(live, now_s, out)
        elif event.leg in (LegKind.DECODE, LegKind.UNIFIED):
            self._ledger.handed_over(event.request_id)
            freed = self._computed(live, now_s)
            if live.first_s is None and live.item.request.stream:
                self._begun(live, now_s, now_s)
        else:
            return None
        self._changed(live.route)
        # Nothing is free that was not, unless this is the first that is heard of its prefill's end.
        return live.lane if freed else None

    def unbind(self, request: RequestView, now_s: float, out: list[Decision]) -> None:
        """Its decode side could not be reached: name another for what prefill has computed, or hold it."""
        live = self.live.get(request.id)
        if live is None or live.provisional:
            return
        item, lane = live.item, live.lane
        item.request = request
        side = self._board.sides.get(live.route.decode)
        if side is not None:
            side.bounds.pop(request.id, None)
        live.provisional = True
        lane.unbound_tokens += item.tokens + item.output_tokens
        self._ledger.unbind(request.id)
        self._changed(live.route)
        self._bind(live, now_s, out)

    def finish(self, outcome: Outcome, now_s: float) -> tuple[float, bool] | None:
        """Release all that is left of a request; None if it was not in flight.

        When it started, and whether its endpoint was not known to be done with its prompt yet.
        """
        live = self.live.pop(outcome.request_id, None)
        self._held.pop(outcome.request_id, None)
        try:
            work = self._ledger.finish(outcome.request_id)
        except AccountingError as error:
            if outcome.route is not None:
                self._on_accounting_error(error)
            return None
        self._changed(work.route)
        if live is None:
            return work.started_s, False
        if live.provisional:
            live.lane.unbound_tokens -= live.item.tokens + live.item.output_tokens
        freed = live.price.station.done(outcome.request_id, now_s) is not None
        side = self._board.sides.get(live.route.decode)
        batch = 0
        if side is not None:
            side.bounds.pop(outcome.request_id, None)
            batch = side.batch
        if live.first_s is not None:
            decoded = live.decoded(outcome, now_s, batch, outcome.end is End.COMPLETED)
            if decoded is not None:
                self._predictor.decoded(decoded, now_s)
        return work.started_s, freed

    def observe(self, now_s: float, out: list[Decision]) -> None:
        """Prompts that engines say they have computed are done, though their legs have not answered yet."""
        for station in self._board.stations.values():
            load, running = station.endpoint.load, station.running
            if load is None or load.prefilling is None:
                continue
            if load.at_s > station.told_at_s:
                # An old report tells nothing of what was given since.
                station.told_at_s = load.at_s
                station.foreign_s = max(0, load.prefilling - len(running)) * station.mean_work_s
            if not running or load.at_s <= station.ends_s:
                continue
            for request_id in list(running)[: max(0, len(running) - load.prefilling)]:
                live = self.live.get(request_id)
                if live is None:
                    station.done(request_id, now_s)
                else:
                    # When it ended is known to a poll's width only: nothing to learn a curve from.
                    self._computed(live, now_s)

    def restarted(self, endpoint_id: str, out: list[Decision]) -> None:
        """A new process is behind an endpoint: whatever the old one computed is gone."""
        station = self._board.stations.get(endpoint_id)
        self.bringing.forget(endpoint_id)
        if station is not None:
            station.clear()
        for request_id, live in list(self._held.items()):
            if live.route.prefill == endpoint_id:
                del self._held[request_id]
                out.append(Spent(request_id, LOST))

    def to_new_lanes(self) -> None:
        """The lanes are others than before: whoever is on its way belongs to one of these."""
        for live in self.live.values():
            live.lane = self._board.lane(kind(live.item))
            if live.provisional:
                live.lane.unbound_tokens += live.item.tokens + live.item.output_tokens

    def bind_held(self, lanes: Sequence[Lane], now_s: float, out: list[Decision]) -> None:
        """Try again to find a decode side for these lanes' finished prefills, the oldest first."""
        if self._held:
            for live in [live for live in self._held.values() if live.lane in lanes]:
                self._bind(live, now_s, out)

    def due_s(self) -> float:
        """When a hand-off must be given up, or an endpoint asked whether it is done; inf: never."""
        polls = self._polls
        while polls and polls[0][2].poll_at_s != polls[0][0]:
            heapq.heappop(polls)
        give_up = self._give_up
        while give_up and give_up[0][1] not in self._held:
            heapq.heappop(give_up)
        return min(first[0][0] if first else inf for first in (polls, give_up, self._unseen))

    def tick(self, now_s: float, out: list[Decision]) -> None:
        """Give up hand-offs that were held too long; ask endpoints that should be done."""
        while self._give_up and self._give_up[0][0] <= now_s:
            _, request_id = heapq.heappop(self._give_up)
            if self._held.pop(request_id, None) is not None:
                out.append(Spent(request_id))
        while self._unseen and self._unseen[0][0] <= now_s:
            # One endpoint that answers it whole tells nothing before its last token: by prediction its prompt
            # is computed now.
            unseen = self.live.get(heapq.heappop(self._unseen)[1])
            if unseen is not None and unseen.first_s is None:
                unseen.first_s = now_s
                self._computed(unseen, now_s)
        while self._polls and self._polls[0][0] <= now_s:
            at_s, _, station = heapq.heappop(self._polls)
            if station.poll_at_s == at_s:
                station.polled(now_s)
                heapq.heappush(self._polls, (station.poll_at_s, station.id, station))
                out.append(Poll(station.id))

    def _begun(self, live: Live, first_s: float, now_s: float) -> None:
        """Its first token is there: what that teaches.

        Not at its end, when the engine tells what it had cached: what is learned late is learned of a machine
        that may have changed since.
        """
        live.first_s = first_s
        side = self._board.sides.get(live.route.decode)
        if side is not None:
            live.batch, live.context = side.batch, side.tokens
        self._predictor.served(live.served(), now_s)
        if live.brought is not None and live.alone:
            took_s = live.prefill_s
            if took_s is None:
                took_s = first_s - live.dispatched_s - live.price.exposed_s
            took_s -= live.item.encode_s
            station = live.price.station
            self.bringing.learn(station.id, live.brought, station.curve, live.item.tokens, took_s)

    def _computed(self, live: Live, now_s: float) -> bool:
        """Its prompt is computed: its station is free of it, and has it cached. False: that was known."""
        running = live.price.station.done(live.item.request.id, now_s)
        if running is not None:
            live.alone, live.shared_s = running.alone, running.wait_s
        self._cached.computed(live.item.request.id)
        return running is not None

    def _bind(self, live: Live, now_s: float, out: list[Decision]) -> None:
        """Name the decode side of a finished prefill, or hold it until one has room."""
        item, lane = live.item, live.lane
        tokens = item.tokens + item.output_tokens
        prefill = live.price.station.endpoint
        shuns = prefill.shuns
        said = None if self.policies is None else self.policies.decode(lane, item, now_s, prefill)
        added = None if said is None else Added(decode=said)
        side = lane.decodes.best(
            tokens, item.slo.gap, item.request.avoid, never=shuns, sequences=item.request.n,
            seconds=left_to(added),
        )  # fmt: skip
        if side is None:
            if live.hold_until_s is None:
                lease = live.price.station.endpoint.facts.get("lease_s")
                lease_s = float(lease) if isinstance(lease, int | float) else DEFAULT_LEASE_S
                live.hold_until_s = now_s + HOLD_SHARE * lease_s
                self._held[item.request.id] = live
                heapq.heappush(self._give_up, (live.hold_until_s, item.request.id))
            return
        self._held.pop(item.request.id, None)
        live.provisional = False
        lane.unbound_tokens -= tokens
        live.route = Route(side.id, live.route.prefill)
        self._ledger.rebind(item.request.id, live.route, tokens)
        self._join(live)
        self._changed(live.route)
        out.append(Bind(item.request.id, live.route, partial(explain_decode, lane, item, side, added)))

    def _join(self, live: Live) -> None:
        gap = live.item.slo.gap
        side = self._board.sides.get(live.route.decode)
        if side is None:
            return
        live.lane.decodes.use(side)
        if gap[0] < inf:
            side.bounds[live.item.request.id] = gap

    def _changed(self, route: Route) -> None:
        for lane in self._board.lanes.values():
            lane.changed(route.decode)
