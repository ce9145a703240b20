"""The queues of one lane: requests in the order of their keys or of arrival, and when each is too late."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from dataclasses import field
from itertools import count
from math import inf

from orchestrator.core.contracts import Waiting
from orchestrator.core.frozen import record
from orchestrator.core.late.station import Station
from orchestrator.core.slo import NO_PROMISE, SloClass

Key = tuple[int, float, int]
"""Priority, the order's key, arrival: no two are equal."""

CHUNK = 512
"""Items of a queue that are kept side by side; more are split in two."""

PATIENCE_S = 1.0
"""A request that others have overtaken for so long, as no decode side had room for it, has room kept for it.
It waits for a busy endpoint that holds its prefix no longer than that, or than its whole prefill takes."""

SWEEP = 256
"""So many reminders are kept without asking whether their items still wait."""


@record(slots=True, eq=False)
class Wait:
    """A busy station that a request rather waits for than go elsewhere at `otherwise_s`.

    `rest_s` is what it costs beside the wait; `ends_s` when it was to be free as this was worked out, and
    `freed` how often any had become free by then.
    """

    station: Station
    ends_s: float
    rest_s: float
    work_s: float
    exposed_s: float
    otherwise_s: float
    freed: int


@record(slots=True, eq=False)
class Item(Waiting):
    """A waiting request with what the scheduler works out for it once.

    `tokens` is the length of its prompt, `hits` the tokens of it that each endpoint is believed to hold
    (those that hold some, who holds most first), as the prefix index was at `hits_at`. `output_tokens` is
    what it is expected to produce, `expires_s` when it ends whatever was promised. `late`: it missed its
    latest start and was kept. `passed_s` is when a request behind it first went though it could not, or it
    first waited for an endpoint that holds its prefix though another was free; inf: neither. `queued`: it
    waits in a lane.
    """

    slo: SloClass = NO_PROMISE
    tokens: int = 0
    output_tokens: int = 0
    hits: Mapping[str, int] = field(default_factory=dict)
    hits_at: int = -1
    expires_s: float = inf
    cold_s: float = 0.0
    encode_s: float = 0.0
    """Part of its work, wherever it goes: its media are encoded first."""
    key: Key = (0, 0.0, 0)
    late: bool = False
    waits_for: Wait | None = None
    queued: bool = False
    passed_s: float = inf
    deferred: bool = False
    """The order has put it off: it goes behind all that can be on time together."""
    slice_s: float = 0.0
    """Seconds of prefill after which others may go in between; 0: it goes whole."""
    slices: int = 0
    """How many of its slices were sent."""
    sliced: tuple[str, int] = ("", 0)
    """Where the last of them was computed, and up to which token."""

    def sliced_at(self, station: Station) -> bool:
        """Whether it may be sent there a slice at a time."""
        return self.slice_s > 0.0 and bool(station.endpoint.facts.get("slices"))

    @property
    def settles_s(self) -> float:
        """From when on it waits for no busy endpoint; inf: it does not yet."""
        return self.passed_s + max(PATIENCE_S, self.cold_s)

    @property
    def due_s(self) -> float | None:
        """How long after its arrival the first token is due; None: nothing is promised."""
        return self.first_token_by_s - self.arrived_s if self.first_token_by_s < inf else None


class Chunk:
    """A stretch of a queue: keys, items and the work that each was counted with, side by side."""

    __slots__ = ("items", "keys", "work_s", "works")

    def __init__(self, keys: list[Key], items: list[Item], works: list[float]) -> None:
        self.keys = keys
        self.items = items
        self.works = works
        self.work_s = sum(works, 0.0)


class Queue:
    """Items by key, in chunks of at most `CHUNK`: nothing done to one of n items touches more than a chunk
    and n / CHUNK sums.

    `ahead_s` tells how much work is in front of a key.
    """

    def __init__(self) -> None:
        self._chunks: list[Chunk] = []
        self._last: list[Key] = []
        """The last key of each chunk."""
        self._size = 0
        self.changes = 0
        """How often any has come or gone."""

    def __len__(self) -> int:
        """Items in the queue."""
        return self._size

    def __iter__(self) -> Iterator[Item]:
        """In order of their keys."""
        for chunk in self._chunks:
            yield from chunk.items

    def __contains__(self, item: Item) -> bool:
        """Whether it is in the queue, under the key it has now."""
        return self._find(item) is not None

    def head(self, n: int) -> list[Item]:
        """The first `n`."""
        found: list[Item] = []
        for chunk in self._chunks:
            found += chunk.items[: n - len(found)]
            if len(found) == n:
                break
        return found

    @property
    def first(self) -> Item | None:
        """Who goes first; None if nobody waits."""
        return self._chunks[0].items[0] if self._chunks else None

    def add(self, item: Item) -> None:
        """Insert by `item.key`."""
        key, work_s = item.key, item.work_s
        self._size += 1
        self.changes += 1
        if not self._chunks:
            self._chunks.append(Chunk([key], [item], [work_s]))
            self._last.append(key)
            return
        number = min(bisect_left(self._last, key), len(self._chunks) - 1)
        chunk = self._chunks[number]
        at = bisect_left(chunk.keys, key)
        chunk.keys.insert(at, key)
        chunk.items.insert(at, item)
        chunk.works.insert(at, work_s)
        chunk.work_s += work_s
        if len(chunk.keys) > CHUNK:
            self._split(number)
        elif at == len(chunk.keys) - 1:
            self._last[number] = key

    def remove(self, item: Item) -> None:
        """Take an item out. Raises KeyError if it is not in."""
        found = self._find(item)
        if found is None:
            raise KeyError(item.request.id)
        number, at = found
        chunk = self._chunks[number]
        self._size -= 1
        self.changes += 1
        chunk.work_s -= chunk.works[at]
        del chunk.keys[at], chunk.items[at], chunk.works[at]
        if not chunk.keys:
            del self._chunks[number], self._last[number]
        elif at == len(chunk.keys):
            self._last[number] = chunk.keys[-1]

    def ahead_s(self, key: Key) -> float:
        """Seconds of prefill in front of `key`."""
        number = bisect_left(self._last, key)
        ahead_s = 0.0
        for chunk in self._chunks[:number]:
            ahead_s += chunk.work_s
        if number < len(self._chunks):
            chunk = self._chunks[number]
            ahead_s += sum(chunk.works[: bisect_left(chunk.keys, key)], 0.0)
        return ahead_s

    @property
    def work_s(self) -> float:
        """Seconds of prefill in all."""
        return sum([chunk.work_s for chunk in self._chunks], 0.0)

    def _find(self, item: Item) -> tuple[int, int] | None:
        number = bisect_left(self._last, item.key)
        if number == len(self._chunks):
            return None
        chunk = self._chunks[number]
        at = bisect_left(chunk.keys, item.key)
        return (number, at) if at < len(chunk.items) and chunk.items[at] is item else None

    def _split(self, number: int) -> None:
        chunk, half = self._chunks[number], CHUNK // 2
        upper = Chunk(chunk.keys[half:], chunk.items[half:], chunk.works[half:])
        lower = Chunk(chunk.keys[:half], chunk.items[:half], chunk.works[:half])
        self._chunks[number : number + 1] = [lower, upper]
        self._last[number : number + 1] = [lower.keys[-1], upper.keys[-1]]


class Backlog:
    """Items in order of arrival: batch, and those that were too late and stay all the same."""

    def __init__(self) -> None:
        self._items: list[tuple[float, int, Item]] = []

    def __len__(self) -> int:
        """Items that wait."""
        return len(self._items)

    def add(self, item: Item) -> None:
        """Insert by arrival."""
        insort(self._items, (item.arrived_s, item.key[2], item))

    def remove(self, item: Item) -> None:
        """Take an item out. Raises KeyError if it is not in."""
        at = bisect_left(self._items, (item.arrived_s, item.key[2]))
        if at == len(self._items) or self._items[at][2] is not item:
            raise KeyError(item.request.id)
        del self._items[at]

    def head(self, n: int) -> list[Item]:
        """The `n` that came first."""
        return [item for _, _, item in self._items[:n]]


class Deadlines:
    """When each waiting item becomes too late to start, or has waited as long as it may."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Item]] = []
        self._sweep_at = SWEEP
        self._number = count()

    def __len__(self) -> int:
        """Reminders kept, with those of items that wait no more."""
        return len(self._heap)

    def remind(self, item: Item) -> None:
        """`overdue` should give this item after its latest start or its end, whichever is first."""
        due_s = item.expires_s if item.late else min(item.latest_start_s, item.expires_s)
        if due_s < inf:
            if len(self._heap) >= self._sweep_at:
                self._sweep()
            heapq.heappush(self._heap, (due_s, next(self._number), item))

    def next_s(self) -> float:
        """When the next item is overdue; inf: never."""
        heap = self._heap
        while heap and not heap[0][2].queued:
            heapq.heappop(heap)
        return heap[0][0] if heap else inf

    def overdue(self, now_s: float) -> Item | None:
        """A waiting item past the moment it was to be reminded of, which is then forgotten; None: no more."""
        return heapq.heappop(self._heap)[2] if self.next_s() <= now_s else None

    def _sweep(self) -> None:
        """Forget those who wait no more: most go long before they are too late."""
        self._heap = [entry for entry in self._heap if entry[2].queued]
        heapq.heapify(self._heap)
        self._sweep_at = max(SWEEP, 2 * len(self._heap))
