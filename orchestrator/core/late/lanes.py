"""Lanes: which endpoints a kind of request may use, each lane with a queue of its own."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import inf

from orchestrator.core.inflight import Ledger
from orchestrator.core.late.decodes import Decodes, DecodeSide
from orchestrator.core.late.queue import Backlog, Deadlines, Item, Queue
from orchestrator.core.late.station import Station, computes_alone, slots_of
from orchestrator.core.lateprofile import LateSettings
from orchestrator.core.prediction import Curve, Exposed, Predictor
from orchestrator.core.types import Endpoint, PathKind, Role

Serves = Callable[[PathKind, Endpoint], bool]
"""Whether an endpoint answers this kind of request in its role; asked anew after each `observe` only."""

UNIT_OVERHEAD = 0.05
"""A unit is large enough when what it costs whatever is in it is at most this share of its time."""

TYPICAL_TOKENS = 2048
"""The prompt by which stations are ranked."""

Signature = tuple[str, frozenset[str], frozenset[str], frozenset[str]]
"""Model, and who prefills, decodes and serves alone."""


@dataclass(slots=True, eq=False)
class Lane:
    """Requests that may use the same endpoints, and these.

    `queue` holds those that can be on time, in order; `kept` those that cannot and stay; `batch` those that
    fill gaps. `unbound_tokens` is the KV of prefills whose decode side is not bound yet.
    """

    signature: Signature
    stations: list[Station]
    decodes: Decodes
    ahead_s: float = 0.0
    ahead_work_s: float = 0.0
    queue: Queue = field(default_factory=Queue)
    kept: Backlog = field(default_factory=Backlog)
    batch: Backlog = field(default_factory=Backlog)
    deadlines: Deadlines = field(default_factory=Deadlines)
    unbound_tokens: int = 0
    credits: dict[str, float] = field(default_factory=dict)
    credited_s: float = 0.0
    fastest: Curve = field(default_factory=lambda: Curve(0.0))
    ranked: list[Station] = field(default_factory=list)
    """The fastest first."""
    pairs: dict[tuple[str, str], Exposed] = field(default_factory=dict)
    idle: dict[str, Station] = field(init=False, default_factory=dict)
    """Those with a free slot, who has been idle longest first."""
    _ends: list[tuple[float, str, Station]] = field(init=False, default_factory=list)
    _aheads: list[tuple[float, str, Station]] = field(init=False, default_factory=list)
    _by_id: dict[str, Station] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Watch the stations."""
        self._by_id = {s.id: s for s in self.stations}
        for station in self.stations:
            station.watchers.append(self)
            self.moved(station)

    def leave(self) -> None:
        """Watch the stations no more."""
        for station in self.stations:
            station.watchers.remove(self)

    def moved(self, station: Station) -> None:
        """A station has been given a prompt, or is done with one."""
        if station.idle:
            # Who has been idle longest is first: among equals, prompts that nobody holds go round.
            self.idle.setdefault(station.id, station)
        else:
            self.idle.pop(station.id, None)
        if station.units:
            heapq.heappush(self._ends, (station.ends_s, station.id, station))
            if self.ahead_s > 0.0 and not station.idle and station.short(self.ahead_work_s):
                heapq.heappush(self._aheads, (station.ends_s - self.ahead_s, station.id, station))

    def first_end_s(self) -> float:
        """When the first of its busy stations should be free; inf: none is busy."""
        ends = self._ends
        while ends and (not ends[0][2].units or ends[0][2].ends_s != ends[0][0]):
            heapq.heappop(ends)
        return ends[0][0] if ends else inf

    def nearly_free(self, now_s: float, ahead_s: float, ahead_work_s: float) -> list[Station]:
        """The busy stations that may be handed a unit ahead."""
        found: dict[Station, None] = {}
        while self.first_end_s() <= now_s + ahead_s:
            _, _, station = heapq.heappop(self._ends)
            if station.ends_s >= now_s:  # one that is overdue tells nothing of when it will be free
                found[station] = None
        for station in found:
            heapq.heappush(self._ends, (station.ends_s, station.id, station))
        return [s for s in found if s.nearly_free(now_s, ahead_s, ahead_work_s)]

    def next_ahead_s(self, after_s: float) -> float:
        """When the first of its busy stations may be handed a unit ahead, after `after_s`; inf: none."""
        aheads = self._aheads
        while aheads:
            at_s, _, station = aheads[0]
            if at_s > after_s and station.units and station.ends_s - self.ahead_s == at_s:
                return at_s
            heapq.heappop(aheads)
        return inf

    @property
    def usable(self) -> bool:
        """Whether there is any route at all."""
        return any(not s.disaggregated or self.decodes.sides for s in self.stations)

    @property
    def waiting(self) -> int:
        """Requests that wait."""
        return len(self.queue) + len(self.kept) + len(self.batch)

    def items(self) -> Iterable[Item]:
        """All that wait, the queue first."""
        yield from list(self.queue)
        yield from self.kept.head(len(self.kept))
        yield from self.batch.head(len(self.batch))

    def station(self, endpoint_id: str) -> Station | None:
        """The lane's station of that endpoint."""
        return self._by_id.get(endpoint_id)

    def step_s(self) -> float:
        """Seconds of a decode step now, where it is shortest; 0 where it is not known."""
        return min((side.step_s(1, 0) for side in self.decodes.sides.values()), default=0.0)

    def changed(self, endpoint_id: str) -> None:
        """What is in flight at an endpoint has changed."""
        self.decodes.changed(endpoint_id)


class Board:
    """Every station, decode side and lane, kept in step with the endpoints last observed."""

    def __init__(self, ledger: Ledger, predictor: Predictor, serves: Serves, settings: LateSettings) -> None:
        self.stations: dict[str, Station] = {}
        self.sides: dict[str, DecodeSide] = {}
        self.lanes: dict[Signature, Lane] = {}
        self.settings = settings
        self._ledger = ledger
        self._predictor = predictor
        self._serves = serves
        self.endpoints: tuple[Endpoint, ...] = ()
        self._lane_of: dict[tuple[str, PathKind], Lane] = {}
        self._version = -1

    def lane(self, model: str, path: PathKind) -> Lane:
        """Where a kind of request waits; perhaps one that is not usable."""
        lane = self._lane_of.get((model, path))
        if lane is None:
            lane = self._make(model, path)
            if lane.stations:  # a client may invent any number of models that nobody serves
                self._lane_of[model, path] = lane
        return lane

    def observe(self, endpoints: tuple[Endpoint, ...]) -> list[Item]:
        """Take the endpoints as they are now; who waited in a lane that is no more, to be queued anew."""
        who = [(e.id, e.role, e.model, e.ready, e.incarnation, e.pool) for e in endpoints]
        same = who == [(e.id, e.role, e.model, e.ready, e.incarnation, e.pool) for e in self.endpoints]
        self.endpoints = endpoints
        for endpoint in endpoints:
            self._update(endpoint)
        self.refresh()
        if same:
            return []
        for gone in self.stations.keys() - {e.id for e in endpoints}:
            del self.stations[gone]
        waiting = [item for lane in self.lanes.values() for item in lane.items()]
        for lane in self.lanes.values():
            lane.leave()
        self.lanes.clear()
        self._lane_of.clear()
        return waiting

    def refresh(self) -> None:
        """Take the predictor's curves anew, if it has learned."""
        if self._version == self._predictor.version:
            return
        self._version = self._predictor.version
        for station in self.stations.values():
            station.curve = self._predictor.prefill(station.endpoint)
            station.unit_tokens = self._unit_tokens(station)
        for side in self.sides.values():
            side.step = self._predictor.step(side.endpoint)
        for lane in self.lanes.values():
            self._price(lane)

    def exposed(self, lane: Lane, prefill: Endpoint, decode: Endpoint) -> Exposed:
        """The predictor's, kept until it has learned."""
        pair = (prefill.id, decode.id)
        exposed = lane.pairs.get(pair)
        if exposed is None:
            exposed = lane.pairs[pair] = self._predictor.exposed(prefill, decode)
        return exposed

    def least_exposed_s(self, lane: Lane, tokens: int) -> float:
        """Seconds from prefill to first token, by the first pair or endpoint there is."""
        station = lane.stations[0]
        decode = station.endpoint
        if station.disaggregated:
            decode = next(iter(lane.decodes.sides.values())).endpoint
        return self.exposed(lane, station.endpoint, decode).seconds(tokens)

    def _update(self, endpoint: Endpoint) -> None:
        side = self.sides.get(endpoint.id)
        if side is None:
            step = self._predictor.step(endpoint)
            self.sides[endpoint.id] = DecodeSide(endpoint, step, self.settings.overcommit)
        else:
            if side.endpoint.incarnation != endpoint.incarnation:
                side.step = self._predictor.step(endpoint)
            side.endpoint = endpoint
        for lane in self.lanes.values():
            lane.changed(endpoint.id)
        if endpoint.role is not Role.PREFILL and not computes_alone(endpoint):
            return
        station = self.stations.get(endpoint.id)
        if station is None or station.endpoint.role is not endpoint.role:
            apart = endpoint.role is Role.PREFILL
            station = Station(endpoint, self._predictor.prefill(endpoint), apart, slots_of(endpoint))
            station.unit_tokens = self._unit_tokens(station)
            self.stations[endpoint.id] = station
        elif station.endpoint.incarnation != endpoint.incarnation:
            station.curve = self._predictor.prefill(endpoint)
        station.endpoint = endpoint
        station.slots = slots_of(endpoint)

    def _unit_tokens(self, station: Station) -> int:
        """Uncached tokens of short prompts that go together, so that what each unit costs does not show."""
        curve, prior = station.curve, station.endpoint.facts.get("prior")
        told = prior.get("unit_tokens") if isinstance(prior, dict) else None
        least = told if isinstance(told, int) else self.settings.unit_tokens
        if curve.token_s <= 0.0:
            return least
        enough = max(curve.fixed_s, curve.floor_s) / (UNIT_OVERHEAD * curve.token_s)
        most = self.settings.hand_ahead_work_s / curve.token_s
        return max(least, int(min(enough, most)))

    def _make(self, model: str, path: PathKind) -> Lane:
        mine = [e for e in self.endpoints if e.ready and e.model == model and self._serves(path, e)]
        prefill = [e for e in mine if e.role is Role.PREFILL]
        decode = [e for e in mine if e.role is Role.DECODE]
        alone = [e for e in mine if computes_alone(e)]
        if not decode:
            prefill = []
        signature = (
            model,
            frozenset(e.id for e in prefill),
            frozenset(e.id for e in decode),
            frozenset(e.id for e in alone),
        )
        lane = self.lanes.get(signature)
        if lane is None:
            # A decode endpoint that may prefill is a side of pairs and a station.
            stations = [self.stations[e.id] for e in (*prefill, *alone)]
            sides = Decodes(self._ledger, [self.sides[e.id] for e in decode])
            ahead_s, ahead_work_s = self.settings.hand_ahead_s, self.settings.hand_ahead_work_s
            lane = Lane(signature, stations, sides, ahead_s, ahead_work_s)
            if stations:
                self.lanes[signature] = lane
                self._price(lane)
            else:
                lane.leave()
        return lane

    def _price(self, lane: Lane) -> None:
        lane.pairs.clear()
        lane.ranked = sorted(lane.stations, key=lambda station: station.curve.seconds(TYPICAL_TOKENS))
        lane.fastest = lane.ranked[0].curve
