"""What sending a waiting request to an endpoint would cost, in seconds, and which endpoint is cheapest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from math import inf

from orchestrator.core.frozen import record
from orchestrator.core.inflight import Ledger
from orchestrator.core.late import waits
from orchestrator.core.late.board import Board
from orchestrator.core.late.decodes import DecodeSide
from orchestrator.core.late.lanes import SHORTS_S, Lane
from orchestrator.core.late.policies import Added, left_to
from orchestrator.core.late.queue import Item, Wait
from orchestrator.core.late.station import Station
from orchestrator.core.late.waits import RECHECK_S
from orchestrator.core.lateprofile import LateSettings
from orchestrator.core.prediction import Predictor
from orchestrator.core.types import Prediction

TOO_LATE_S = 1e5
"""Added to the cost of an endpoint where the request would miss its first token's promise."""

FEW = 16
"""Fleets of up to so many stations are priced whole. Of larger ones, those that hold a prefix, and a few."""

HOLDERS = 8
"""Of many free stations that hold part of a prompt, so many of those that hold most are priced."""

SAMPLE = 4
"""Of many free stations that hold nothing of a prompt, so many of those longest idle are priced, and as many
of the fastest: the others are like them."""


SAME, SAME_S = 0.02, 0.002
"""Costs within 2 % and 2 ms of each other are the same: predictions are not better than that."""


@record(slots=True, eq=False)
class Price:
    """One request on one endpoint: seconds until it is free, of prefill, and from there to the first token.

    `work_s` has the encoding of its media in it.

    `cost_s` is what the choice goes by: the wait, the prefill once for the request and `others` times for
    those who wait for the machine, the hand-off, and what policies add. `late_s` is TOO_LATE_S where the
    promise would be missed, else 0, and part of it. `side`: who decodes, None alone.
    """

    station: Station
    cached: int
    wait_s: float
    work_s: float
    exposed_s: float
    cost_s: float
    side: DecodeSide | None = None
    late_s: float = 0.0


@record(slots=True, eq=False)
class Pick:
    """The cheapest free endpoint for a request, with every price it was compared with."""

    lane: Lane
    item: Item
    best: Price
    prices: Sequence[Price]
    added: Added | None = None


class Pricing:
    """Prices requests; reads everything and changes nothing."""

    def __init__(self, board: Board, ledger: Ledger, predictor: Predictor, settings: LateSettings) -> None:
        self.settings = settings
        self._own = 1.0 + settings.others
        """What a second of its prefill costs a request, and those who wait for the machine."""
        self._board = board
        self._ledger = ledger
        self._predictor = predictor

    def pick(
        self,
        lane: Lane,
        item: Item,
        free: Sequence[Station],
        now_s: float,
        claims: dict[str, float],
        added: Added | None = None,
        *,
        urgent: bool = False,
    ) -> Pick | None:
        """The cheapest of the `free` stations; None if there is none now, or a busy one is worth waiting for.

        `claims` are seconds of prefill that requests ahead of this one wait to put on busy stations; such a
        wait adds to them. `added` is what policies say. `urgent`: a request that is late already is sent
        wherever it costs least.
        """
        avoid: Sequence[str] = item.request.avoid
        if avoid:
            avoid = () if lane.only_to_avoid(avoid) else avoid
            free = [station for station in free if station.id not in avoid]
        side = self._decode_side(lane, item, added)
        prices = [
            price
            for station in self._worth_pricing(lane, item, free, avoid)
            if (price := self._price(lane, item, station, side, 0.0, now_s, added)) is not None
        ]
        if not prices:
            return None
        best = _first_of_cheapest(prices)
        if urgent:
            return Pick(lane, item, best, prices, added)
        if self.settings.wait_for_warm and now_s < item.settles_s and len(free) < len(lane.stations):
            better = self._busy(lane, item, free, avoid, side, now_s, claims, added, best.cost_s)
            if better:
                first = min(better, key=_cost)
                if first.cost_s < best.cost_s and not first.late_s:
                    rest_s = first.cost_s - first.wait_s
                    wait = Wait(
                        first.station, 0.0, rest_s, first.work_s, first.exposed_s, best.cost_s, lane.freed
                    )
                    waits.begin(lane, item, wait, now_s, claims, keep=added is None)
                    return None
                prices += better
        if best.late_s or not self._spares(lane, _at_once_s(item, best), now_s):
            return None
        return Pick(lane, item, best, prices, added)

    def _spares(self, lane: Lane, work_s: float, now_s: float) -> bool:
        """Whether a prefill of `work_s` leaves enough endpoints to shorter ones.

        Nothing takes a long prefill off an endpoint again: where all are on long ones at once, every short
        request that comes then is late. A static split by size avoids that too, at the price of the prefixes
        that endpoints of the wrong pool hold.
        """
        for over_s, share in self.settings.spare:
            if work_s <= over_s:
                continue
            short = lane.shorts.get(over_s)
            if short is None or short.slack_s >= work_s or now_s - short.came_s > SHORTS_S:
                continue
            keep = int(share * len(lane.stations))
            if keep and sum([s.longest_s > over_s for s in lane.stations]) >= len(lane.stations) - keep:
                lane.recheck_s = min(lane.recheck_s, short.came_s + SHORTS_S + RECHECK_S)
                return False
        return True

    def _worth_pricing(
        self, lane: Lane, item: Item, free: Sequence[Station], avoid: Sequence[str]
    ) -> Sequence[Station]:
        """Of many free stations those that hold most of a prompt, those longest idle, and the fastest."""
        if len(free) <= FEW:
            return free
        few = dict.fromkeys(free[:SAMPLE])
        holders = (s for name in item.hits if (s := lane.idle.get(name)) is not None)
        for station in (*islice(holders, HOLDERS), *lane.ranked[:SAMPLE]):
            if station.id in lane.idle and station.id not in avoid:
                few[station] = None
        return tuple(few)

    def admission(self, lane: Lane, item: Item, now_s: float) -> Prediction:
        """What is predicted for a request that has just been queued.

        The work ahead of it is taken to be shared evenly by all stations; those that will overtake it are not
        known, and are left to the tail.
        """
        first = next(iter(lane.idle.values()), None) or lane.stations[0]
        wait_s = 0.0 if lane.idle else max(0.0, min(lane.first_end_s(), first.ends_s) - now_s)
        wait_s += lane.queue.ahead_s(item.key) / len(lane.stations)
        exposed_s = self._board.least_exposed_s(lane, item.tokens)
        takes_s = wait_s + item.work_s + exposed_s
        tail_s = self._predictor.tail_s(first.id, takes_s, item.slo.quantile, queued_s=wait_s)
        return Prediction(
            at_s=now_s,
            waited_s=now_s - item.arrived_s,
            wait_s=wait_s,
            encode_s=item.encode_s,
            prefill_s=item.work_s - item.encode_s,
            handoff_s=exposed_s,
            tail_s=now_s - item.arrived_s + takes_s + tail_s,
            quantile=item.slo.quantile,
            itl_s=lane.step_s(),
            due_s=item.due_s,
        )

    def _busy(
        self,
        lane: Lane,
        item: Item,
        free: Sequence[Station],
        avoid: Sequence[str],
        side: DecodeSide | None,
        now_s: float,
        claims: Mapping[str, float],
        added: Added | None,
        most_s: float,
    ) -> list[Price]:
        """The prices of the busy stations that may cost less than `most_s`."""
        few: Iterable[Station] = lane.stations
        own = self._own
        if len(lane.stations) > FEW:
            few = dict.fromkeys((*lane.ranked[:SAMPLE], *self._holders(lane, item, most_s / own)))
        prices = []
        for station in few:
            if station in free or station.id in avoid:
                continue
            wait_s = station.wait_s(now_s) + claims.get(station.id, 0.0)
            # Its least possible cost: no need to price one that cannot be cheapest.
            if wait_s >= most_s:
                continue
            least_s = wait_s + own * station.curve.seconds(item.tokens, item.hits.get(station.id, 0))
            if least_s < most_s:
                price = self._price(lane, item, station, side, wait_s, now_s, added)
                if price is not None:
                    prices.append(price)
        return prices

    def _holders(self, lane: Lane, item: Item, most_s: float) -> Iterator[Station]:
        """Who holds so much of a prompt that the rest could be computed within `most_s`, by the fastest."""
        for name, hit in item.hits.items():
            if lane.fastest.seconds(item.tokens, hit) >= most_s:
                return
            station = lane.station(name)
            if station is not None:
                yield station

    def looked_at(self, lane: Lane, item: Item, now_s: float, added: Added | None) -> list[Price]:
        """The prices of those endpoints, free or not, that a request was compared for; for explanations."""
        side = self._decode_side(lane, item, added)
        few: Iterable[Station] = lane.stations
        if len(lane.stations) > FEW:
            few = dict.fromkeys((*islice(self._holders(lane, item, inf), HOLDERS), *lane.ranked[:SAMPLE]))
        prices = [
            self._price(lane, item, station, side, station.wait_s(now_s), now_s, added)
            for station in few
            if station.id not in item.request.avoid
        ]
        return [price for price in prices if price is not None]

    def still_waits(self, lane: Lane, item: Item, now_s: float, claims: dict[str, float]) -> bool:
        """Whether it is still worth waiting for the busy endpoint that the item waited for last."""
        return item.waits_for is not None and waits.goes_on(lane, item, now_s, claims, self._own)

    def _price(
        self,
        lane: Lane,
        item: Item,
        station: Station,
        side: DecodeSide | None,
        wait_s: float,
        now_s: float,
        added: Added | None,
    ) -> Price | None:
        """What `station` would cost; None if the request may not or cannot go there."""
        endpoint, tokens = station.endpoint, item.tokens
        added_s = 0.0
        if added is not None:
            if station.id in added.filtered:
                return None
            added_s = added.seconds.get(station.id, 0.0)
        others = self.settings.others
        hit = item.hits.get(station.id, 0)
        if station.disaggregated:
            if side is not None and side.id in endpoint.shuns:
                avoid = item.request.avoid
                side = lane.decodes.best(
                    tokens + item.output_tokens, item.slo.gap, avoid, item, endpoint.shuns,
                    item.request.n, left_to(added),
                )  # fmt: skip
            if side is None:
                return None
            decoder = side
        else:
            decoder, side = self.own_side(station), None
            if not self.fits(item, station, decoder):
                return None
            others *= 1 + decoder.batch
        work_s = item.encode_s + station.curve.seconds(tokens, hit)
        if wait_s == 0.0 and work_s > self.settings.hand_ahead_work_s and not station.idle:
            # Handed ahead it would share the chunk of the short prompts before it, whose first tokens then
            # wait for all of it.
            return None
        exposed_s = self._board.exposed(lane, endpoint, decoder.endpoint).seconds(tokens)
        cost_s = wait_s + (1.0 + others) * work_s + exposed_s + added_s
        late_s = 0.0
        if item.first_token_by_s < inf:
            takes_s = wait_s + work_s + exposed_s
            if now_s + takes_s + self.margin_s(station, takes_s) > item.first_token_by_s:
                late_s = TOO_LATE_S
        return Price(station, hit, wait_s, work_s, exposed_s, cost_s + late_s, side, late_s)

    def margin_s(self, station: Station, takes_s: float) -> float:
        """What is added to a median before it is held against a promise."""
        quantile = self.settings.on_time_quantile
        return 0.0 if quantile == 0.5 else self._predictor.tail_s(station.id, takes_s, quantile)

    def own_side(self, station: Station) -> DecodeSide:
        """The decode side that a station is itself, as it is now."""
        side = self._board.sides[station.id]
        side.refresh(self._ledger.sums(station.id))
        return side

    def fits(self, item: Item, station: Station, decoder: DecodeSide) -> bool:
        """Whether a station that decodes too has the memory, and nobody there waits too long for a token.

        Whoever decodes there waits for a chunk of the new prompt between two tokens.
        """
        new = item.tokens - item.hits.get(station.id, 0)  # blocks of a shared prefix are held once for all
        if decoder.room(item) < new + item.output_tokens:
            return False
        if decoder.breaks_gaps(item.tokens, item.slo.gap, item.request.n):
            return False
        bound_s = decoder.strictest_s
        if bound_s == inf or not decoder.batch:
            return True
        chunk = station.endpoint.facts.get("chunk_tokens")
        piece = min(new, chunk) if isinstance(chunk, int) else new
        return station.curve.seconds(piece) + decoder.step_s(item.request.n, item.tokens) <= bound_s

    def to_keep_room(self, lane: Lane, item: Item) -> DecodeSide | None:
        """The decode side that could soonest take a request that none has room for now; None: one has.

        One whose whole memory is less than it needs comes last: it would have to be empty.
        """
        if self._decode_side(lane, item) is not None:
            return None
        sides = list(lane.decodes.sides.values())
        for station in lane.stations:
            if not station.disaggregated:
                side = self.own_side(station)
                if self.fits(item, station, side):
                    return None
                sides.append(side)
        needs = item.tokens + item.output_tokens
        ours = [side for side in sides if side.kept_for is None and side.id not in item.request.avoid]
        return max(
            ours,
            key=lambda s: ((s.endpoint.kv_total_tokens or inf) >= needs, s.free_tokens, -s.batch),
            default=None,
        )

    def _decode_side(self, lane: Lane, item: Item, added: Added | None = None) -> DecodeSide | None:
        """Who would decode a pair's request now; None if nobody has the room."""
        decodes = lane.decodes
        if not decodes.sides:
            return None
        tokens = item.tokens + item.output_tokens
        unbound = self._board.unbound_tokens(lane)
        if unbound and decodes.room(item) - unbound < min(tokens, decodes.most_room()):
            return None
        request = item.request
        return decodes.best(
            tokens, item.slo.gap, request.avoid, item, sequences=request.n, seconds=left_to(added)
        )


def _at_once_s(item: Item, price: Price) -> float:
    """Seconds of prefill that nothing takes off the endpoint again: of a slice, where it goes in such."""
    return min(price.work_s, item.slice_s) if item.sliced_at(price.station) else price.work_s


def _cost(price: Price) -> float:
    return price.cost_s


def _first_of_cheapest(prices: Sequence[Price]) -> Price:
    """The first of the cheapest one's pool whose cost is as good as the least.

    Curves learned apart differ a little where the machines are the same: without a tie between them, one
    would get every new prefix.
    """
    best = min(prices, key=_cost)
    enough_s, pool = best.cost_s * (1.0 + SAME) + SAME_S, best.station.endpoint.pool
    for price in prices:
        if price.cost_s <= enough_s and price.station.endpoint.pool == pool:
            return price
    return best
