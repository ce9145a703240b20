"""Lanes: which endpoints a kind of request may use, each lane with a queue of its own."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import field
from math import inf

from orchestrator.core.frozen import frozen, record
from orchestrator.core.late.decodes import Decodes, DecodeSide
from orchestrator.core.late.queue import Backlog, Deadlines, Item, Key, Queue
from orchestrator.core.late.station import ROUNDING_S, Station
from orchestrator.core.prediction import Curve, Exposed
from orchestrator.core.slo import Priority

TYPICAL_TOKENS = 2048
"""The prompt by which stations are ranked."""

FORGET = 8
"""So many notes of when it ends are kept for each station on average, most of them true no more."""

Signature = tuple[str, frozenset[str], frozenset[str], frozenset[str]]
"""Model, and who prefills, decodes and serves alone."""


SHORTS_S = 30.0
"""Endpoints are left to shorter requests for so long after the last of them came."""


@frozen(frozen=True, slots=True)
class Short:
    """A short request: when it came, and how long it could wait for a prefill that was begun before."""

    came_s: float
    slack_s: float


@record(slots=True, eq=False)
class Lane:
    """Requests that may use the same endpoints, and these.

    `queue` holds those that can be on time, in order; `kept` those that cannot and stay; `batch` those that
    fill gaps; `aside` those whom policies leave nowhere to go, so that they hold up nobody; `reserved` all of
    them again whose class has a reserved share, by class. `unbound_tokens` is the KV of prefills whose decode
    side is not bound yet. `keeps` is who has room kept for it, on which side. `blocked`: somebody was free,
    and a request that waits for nobody in particular could not go, as a decode side lacked room, perhaps.
    `recheck_s` is when waiting for a busy endpoint may be worth it no more.
    """

    signature: Signature
    stations: list[Station]
    decodes: Decodes
    ahead_s: float = 0.0
    ahead_work_s: float = 0.0
    queue: Queue = field(default_factory=Queue)
    kept: Backlog = field(default_factory=Backlog)
    batch: Backlog = field(default_factory=Backlog)
    aside: dict[str, Item] = field(default_factory=dict)
    reserved: dict[str, Queue] = field(default_factory=dict)
    deadlines: Deadlines = field(default_factory=Deadlines)
    unbound_tokens: int = 0
    prompted_s: float = -inf
    """When the last request came that is not batch."""
    shorts: dict[float, Short] = field(default_factory=dict)
    """By a length of prefill: of those of at most that, with a promise, who could wait least lately."""
    keeps: tuple[Item, DecodeSide] | None = None
    blocked: bool = False
    recheck_s: float = inf
    freed: int = 0
    """How often a station has become free."""
    fastest: Curve = field(default_factory=lambda: Curve(0.0))
    ranked: list[Station] = field(default_factory=list)
    """The fastest first."""
    capacity: float = 1.0
    """Seconds of the fastest one's prefill that all of them do in a second."""
    pairs: dict[tuple[str, str], Exposed] = field(default_factory=dict)
    idle: dict[str, Station] = field(init=False, default_factory=dict)
    """Those with a free slot, who has been idle longest first."""
    _freed_at: dict[str, int] = field(init=False, default_factory=dict)
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
        self.keep_no_room()

    # -- who waits

    def add(self, item: Item) -> None:
        """Let an item wait where it belongs, and be reminded of it when it will be too late."""
        item.queued = True
        if item.slo.priority is not Priority.BATCH:
            self.prompted_s = max(self.prompted_s, item.arrived_s)
        self.deadlines.remind(item)
        self._line(item).add(item)
        if item.slo.reserve > 0.0:
            self.reserved.setdefault(item.slo.name, Queue()).add(item)

    def remove(self, item: Item) -> None:
        """It waits no more. Raises KeyError if it did not wait here."""
        if self.aside.pop(item.request.id, None) is None:
            self._line(item).remove(item)
        if item.slo.reserve > 0.0:
            self.reserved[item.slo.name].remove(item)
        item.queued = False
        if self.keeps is not None and self.keeps[0] is item:
            self.keep_no_room()

    def put_aside(self, item: Item) -> None:
        """Policies leave it nowhere to go: it holds up nobody until they say otherwise, and is asked last."""
        if self.aside.pop(item.request.id, None) is None:
            self._line(item).remove(item)
        self.aside[item.request.id] = item

    def take_back(self, item: Item) -> None:
        """It may go somewhere again: back to where it belongs."""
        del self.aside[item.request.id]
        self._line(item).add(item)

    def _line(self, item: Item) -> Queue | Backlog:
        if item.late:
            return self.kept
        return self.batch if item.slo.priority is Priority.BATCH else self.queue

    def move(self, item: Item, key: Key) -> None:
        """Give an item that waits another key; its `work_s` may have changed too."""
        queues = [self.queue] if item in self.queue else []
        if item.slo.reserve > 0.0:
            queues.append(self.reserved[item.slo.name])
        for queue in queues:
            queue.remove(item)
        item.key = key
        for queue in queues:
            queue.add(item)

    @property
    def waiting(self) -> int:
        """Requests that wait."""
        return len(self.queue) + len(self.kept) + len(self.batch) + len(self.aside)

    def keep_room(self, item: Item, side: DecodeSide) -> None:
        """What becomes free at `side` is for this item, until it goes or waits no more.

        Where memory is not what it lacks, all there is: nobody joins those whose steps are too long for it.
        """
        self.keep_no_room()
        needs = item.tokens + item.output_tokens
        side.kept_for, side.kept_tokens = item, needs if side.free_tokens < needs else inf
        self.keeps = (item, side)

    def keep_no_room(self) -> None:
        """No room is kept for anybody."""
        if self.keeps is not None:
            side = self.keeps[1]
            side.kept_for, side.kept_tokens = None, 0.0
            self.keeps = None

    def note_short(self, over_s: float, came_s: float, slack_s: float) -> None:
        """A request of at most `over_s` of prefill came that can wait for `slack_s`.

        Remembered for a while is the one that could wait least: a longer prefill is in nobody's way who can
        wait until it is over.
        """
        last = self.shorts.get(over_s)
        if last is None or slack_s <= last.slack_s or came_s - last.came_s > SHORTS_S:
            self.shorts[over_s] = Short(came_s, slack_s)

    # -- who is free

    def moved(self, station: Station) -> None:
        """A station has been given a prompt, or is done with one."""
        if station.idle:
            if station.id not in self.idle:
                # Who has been idle longest is first: among equals, prompts that nobody holds go round.
                self.idle[station.id] = station
                self.freed += 1
                self._freed_at[station.id] = self.freed
        else:
            self.idle.pop(station.id, None)
        if station.units:
            heapq.heappush(self._ends, (station.ends_s, station.id, station))
            if self.ahead_s > 0.0 and not station.idle and station.short(self.ahead_work_s):
                heapq.heappush(self._aheads, (station.ends_s - self.ahead_s, station.id, station))
            if len(self._ends) > FORGET * len(self.stations):
                self._forget()

    def freed_since(self, number: int) -> Iterator[Station]:
        """The free stations that were not yet when `freed` was `number`."""
        for name in reversed(self.idle):
            if self._freed_at[name] <= number:
                return
            yield self.idle[name]

    def first_end_s(self) -> float:
        """When the first of its busy stations should be free; inf: none that is not overdue."""
        ends = self._ends
        while ends and (not ends[0][2].units or ends[0][2].ends_s != ends[0][0]):
            heapq.heappop(ends)
        return ends[0][0] if ends else inf

    def nearly_free(self, now_s: float, ahead_s: float, ahead_work_s: float) -> list[Station]:
        """The busy stations that may be handed a unit ahead."""
        found: dict[Station, None] = {}
        while self.first_end_s() <= now_s + ahead_s + ROUNDING_S:
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

    def _forget(self) -> None:
        """Drop what was noted of stations and is true no more: nobody asks a lane that nobody waits in."""
        busy = [s for s in self.stations if s.units]
        self._ends = [(s.ends_s, s.id, s) for s in busy]
        heapq.heapify(self._ends)
        aheads = {
            (at_s, s.id): s for at_s, _, s in self._aheads if s.units and s.ends_s - self.ahead_s == at_s
        }
        self._aheads = [(at_s, name, s) for (at_s, name), s in aheads.items()]
        heapq.heapify(self._aheads)

    @property
    def model(self) -> str:
        """Whose requests wait here."""
        return self.signature[0]

    @property
    def alone(self) -> bool:
        """Whether any of its endpoints serves requests by itself."""
        return bool(self.signature[3])

    @property
    def usable(self) -> bool:
        """Whether there is any route at all."""
        return bool(self.stations)

    def station(self, endpoint_id: str) -> Station | None:
        """The lane's station of that endpoint."""
        return self._by_id.get(endpoint_id)

    def only_to_avoid(self, avoid: Iterable[str]) -> bool:
        """Whether these are all the stations there are."""
        return self._by_id.keys() <= set(avoid)

    def price(self) -> None:
        """Curves are others than before: who is fastest, and how fast are the others."""
        self.pairs.clear()
        self.ranked = sorted(self.stations, key=lambda station: station.curve.seconds(TYPICAL_TOKENS))
        if self.ranked:
            self.fastest = self.ranked[0].curve
            self.capacity = sum([speed for _, speed in self.speeds()], 0.0)

    def speeds(self) -> Iterator[tuple[Station, float]]:
        """Each station, and how many seconds of the fastest one's prefill it does in a second."""
        least_s = self.fastest.seconds(TYPICAL_TOKENS)
        for station in self.stations:
            takes_s = station.curve.seconds(TYPICAL_TOKENS)
            yield station, station.slots * (least_s / takes_s if takes_s > 0.0 else 1.0)

    def step_s(self) -> float:
        """Seconds of a decode step now, where it is shortest; 0 where it is not known."""
        return self.decodes.least_step_s()

    def changed(self, endpoint_id: str) -> None:
        """What is in flight at an endpoint has changed."""
        self.decodes.changed(endpoint_id)
