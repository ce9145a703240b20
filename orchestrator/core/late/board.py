"""The board: every station, decode side and lane, kept in step with the endpoints last observed."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from orchestrator.core.inflight import Ledger
from orchestrator.core.late.decodes import Decodes, DecodeSide
from orchestrator.core.late.gaps import Gaps
from orchestrator.core.late.lanes import Lane, Signature
from orchestrator.core.late.queue import Item
from orchestrator.core.late.station import Station, computes_alone, slots_of
from orchestrator.core.lateprofile import LateSettings
from orchestrator.core.prediction import Exposed, Predictor
from orchestrator.core.types import Endpoint, PathKind, Role

Serves = Callable[[PathKind, Endpoint], bool]
"""Whether an endpoint answers this kind of request in its role; asked anew after each `observe` only."""

UNIT_OVERHEAD = 0.05
"""A unit is large enough when what it costs whatever is in it is at most this share of its time."""

Kind = tuple[str, PathKind, frozenset[str] | None]
"""Who may serve a request depends on its model, what it asks for, and the pools of its class (None: any)."""


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
        self._lane_of: dict[Kind, Lane] = {}
        self._beside: dict[str, tuple[Lane, ...]] = {}
        self._version = -1
        self._gaps = Gaps(predictor)

    def lane(self, kind: Kind, *, keep: bool = False) -> Lane:
        """Where a kind of request waits; perhaps one that is not usable, which is kept only if `keep`.

        A client may invent any number of models that nobody serves.
        """
        lane = self._lane_of.get(kind)
        if lane is None:
            lane = self._make(kind, keep)
            if lane.usable or keep:
                self._lane_of[kind] = lane
        return lane

    def beside(self, lane: Lane) -> tuple[Lane, ...]:
        """All lanes of its model: what one is done with, another may be waiting for."""
        return self._beside.get(lane.signature[0], ())

    def models(self) -> Iterable[tuple[Lane, ...]]:
        """The lanes of each model."""
        return tuple(self._beside.values())

    def unbound_tokens(self, lane: Lane) -> int:
        """The KV of prefills whose decode side is not bound yet and may be one of this lane."""
        lanes = self.beside(lane)
        if len(lanes) == 1:
            return lane.unbound_tokens
        mine = lane.decodes.sides.keys()
        return sum(
            other.unbound_tokens
            for other in lanes
            if other.unbound_tokens and not mine.isdisjoint(other.decodes.sides)
        )

    def observe(self, endpoints: tuple[Endpoint, ...]) -> bool:
        """Take the endpoints as they are now. True: all lanes are others than before.

        Whoever waits or is on its way in a lane that is no more then has to be given another.
        """
        before, self.endpoints = self.endpoints, endpoints
        for endpoint in endpoints:
            self._update(endpoint)
        self.refresh()
        if len(before) == len(endpoints) and all(map(_alike, before, endpoints)):
            return False
        ids = {e.id for e in endpoints}
        for gone in self.sides.keys() - ids:
            del self.sides[gone]
            self.stations.pop(gone, None)
        for lane in self.lanes.values():
            lane.leave()
        self.lanes.clear()
        self._lane_of.clear()
        self._beside.clear()
        return True

    def adopt(self, settings: LateSettings) -> None:
        """Go by other settings from now on."""
        self.settings = settings
        for station in self.stations.values():
            station.unit_tokens = self._unit_tokens(station)
        for side in self.sides.values():
            side.overcommit = settings.overcommit
        for lane in self.lanes.values():
            lane.ahead_s, lane.ahead_work_s = settings.hand_ahead_s, settings.hand_ahead_work_s
            lane.decodes.all_changed()
            for station in lane.stations:
                lane.moved(station)

    def refresh(self) -> None:
        """Take the predictor's curves anew, if it has learned."""
        self._gaps.forget()
        if self._version == self._predictor.version:
            return
        self._version = self._predictor.version
        for station in self.stations.values():
            station.curve = self._predictor.prefill(station.endpoint)
            station.unit_tokens = self._unit_tokens(station)
        for side in self.sides.values():
            side.step = self._predictor.step(side.endpoint)
        for lane in self.lanes.values():
            lane.price()
            lane.decodes.all_changed()

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
            self.sides[endpoint.id] = DecodeSide(endpoint, step, self.settings.overcommit, self._gaps)
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

    def _make(self, kind: Kind, keep: bool) -> Lane:
        model, path, pools = kind
        mine = [
            e
            for e in self.endpoints
            if e.ready and e.model == model and (pools is None or e.pool in pools) and self._serves(path, e)
        ]
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
            if stations or keep:
                self.lanes[signature] = lane
                self._beside[model] = (*self._beside.get(model, ()), lane)
                lane.price()
        return lane


def kind(item: Item) -> Kind:
    """Of which kind a waiting request is."""
    return item.request.model, item.request.path, item.slo.pools


def _alike(one: Endpoint, other: Endpoint) -> bool:
    """Whether two views of the endpoints are as good as one for who may go where."""
    return one is other or _place(one) == _place(other)


def _place(e: Endpoint) -> tuple[object, ...]:
    return e.id, e.role, e.model, e.ready, e.incarnation, e.pool, slots_of(e), computes_alone(e)
