"""The queues of one lane: requests in the order of their keys or of arrival, and when each is too late."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import inf

from orchestrator.core.contracts import Waiting
from orchestrator.core.late.station import Station
from orchestrator.core.slo import NO_PROMISE, SloClass

Key = tuple[int, float, int]
"""Priority, the order's key, arrival: no two are equal."""


@dataclass(slots=True, eq=False)
class Wait:
    """A busy station that a request rather waits for than go elsewhere at `otherwise_s`.

    `rest_s` is what it costs beside the wait; `ends_s` when it was to be free as this was worked out.
    """

    station: Station
    ends_s: float
    rest_s: float
    work_s: float
    exposed_s: float
    otherwise_s: float


@dataclass(slots=True, eq=False)
class Item(Waiting):
    """A waiting request with what the scheduler works out for it once.

    `tokens` is the length of its prompt, `hits` the tokens of it that each endpoint is believed to hold
    (those that hold some), as the prefix index was at `hits_at`. `output_tokens` is what it is expected to
    produce, `expires_s` when it ends whatever was promised. `late`: it missed its latest start and was kept.
    """

    slo: SloClass = NO_PROMISE
    tokens: int = 0
    output_tokens: int = 0
    hits: Mapping[str, int] = field(default_factory=dict)
    hits_at: int = -1
    expires_s: float = inf
    cold_s: float = 0.0
    key: Key = (0, 0.0, 0)
    late: bool = False
    waits_for: Wait | None = None
    queued: bool = False

    @property
    def due_s(self) -> float | None:
        """How long after its arrival the first token is due; None: nothing is promised."""
        return self.first_token_by_s - self.arrived_s if self.first_token_by_s < inf else None


class Queue:
    """Items by key, with O(log n) comparisons to insert and remove (and a memory move that n decides).

    `ahead_s` tells how much work is in front of a key.
    """

    def __init__(self) -> None:
        self._keys: list[Key] = []
        self._items: list[Item] = []
        self._works: list[float] = []

    def __len__(self) -> int:
        """Items in the queue."""
        return len(self._items)

    def __iter__(self) -> Iterator[Item]:
        """In order of their keys."""
        return iter(self._items)

    @property
    def items(self) -> list[Item]:
        """In order of their keys; not to be changed."""
        return self._items

    def head(self, n: int) -> list[Item]:
        """The first `n`."""
        return self._items[:n]

    def add(self, item: Item) -> None:
        """Insert by `item.key`."""
        at = bisect_left(self._keys, item.key)
        self._keys.insert(at, item.key)
        self._items.insert(at, item)
        self._works.insert(at, item.work_s)
        item.queued = True

    def remove(self, item: Item) -> None:
        """Take an item out. Raises KeyError if it is not in."""
        self._take(item)
        item.queued = False

    def move(self, item: Item, key: Key) -> None:
        """Give an item another key; its `work_s` may have changed too."""
        self._take(item)
        item.key = key
        self.add(item)

    def ahead_s(self, key: Key) -> float:
        """Seconds of prefill in front of `key`."""
        return sum(self._works[: bisect_left(self._keys, key)])

    @property
    def work_s(self) -> float:
        """Seconds of prefill in all."""
        return sum(self._works)

    def _take(self, item: Item) -> None:
        at = bisect_left(self._keys, item.key)
        if at == len(self._keys) or self._keys[at] != item.key:
            raise KeyError(item.request.id)
        del self._keys[at], self._items[at], self._works[at]


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
        item.queued = True

    def remove(self, item: Item) -> None:
        """Take an item out. Raises KeyError if it is not in."""
        at = bisect_left(self._items, (item.arrived_s, item.key[2]))
        if at == len(self._items) or self._items[at][2] is not item:
            raise KeyError(item.request.id)
        del self._items[at]
        item.queued = False

    def head(self, n: int) -> list[Item]:
        """The `n` that came first."""
        return [item for _, _, item in self._items[:n]]


class Deadlines:
    """When each waiting item becomes too late to start, or has waited as long as it may."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Item]] = []

    def remind(self, item: Item) -> None:
        """`overdue` should give this item after its latest start or its end, whichever is first."""
        due_s = item.expires_s if item.late else min(item.latest_start_s, item.expires_s)
        if due_s < inf:
            heapq.heappush(self._heap, (due_s, item.key[2], item))

    def next_s(self) -> float:
        """When the next item is overdue; inf: never."""
        heap = self._heap
        while heap and not heap[0][2].queued:
            heapq.heappop(heap)
        return heap[0][0] if heap else inf

    def overdue(self, now_s: float) -> Item | None:
        """A waiting item past the moment it was to be reminded of, which is then forgotten; None: no more."""
        return heapq.heappop(self._heap)[2] if self.next_s() <= now_s else None
