"""Whom an order puts off, where not all that wait can be on time; asked when the queue has changed enough."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from orchestrator.core.contracts import DeferringOrder
from orchestrator.core.late.lanes import Lane
from orchestrator.core.late.queue import Item

CHANGED = 8
"""An order is asked again when a queue of n requests has had n / 8 come or go: it looks at all of them, which
is then a few steps for each of those."""

LOOK = 2_000
"""So many of a queue are shown to an order, from its front, and as many of those put off: of 10,000 it would
take longer than a policy may. Whoever is further back can wait to be looked at."""


class Deferring:
    """Asks an order whom to put off, and moves those and whoever need wait no longer.

    `moved` is told of each whose place is another now.
    """

    def __init__(self, order: DeferringOrder, moved: Callable[[Lane, Item], None]) -> None:
        self._order = order
        self._moved = moved
        self._asked_at: dict[str, int] = {}
        """By model, how often its queues had changed."""

    def ask(self, lanes: Sequence[Lane], now_s: float) -> None:
        """Look at the queues of one model's lanes anew, if that is due. Raises what the order raises."""
        waiting = changes = 0
        for lane in lanes:
            waiting += len(lane.queue)
            changes += lane.queue.changes
        if not waiting:
            return
        model = lanes[0].model
        # Lanes that were made anew have counted nothing yet.
        passed = abs(changes - self._asked_at.get(model, -CHANGED))
        if not passed or passed * CHANGED < waiting:
            return
        try:
            self._look(lanes, now_s)
        finally:
            self._asked_at[model] = sum([lane.queue.changes for lane in lanes])

    def _look(self, lanes: Sequence[Lane], now_s: float) -> None:
        levels: dict[int, dict[Item, Lane]] = {}
        for lane in lanes:
            left, left_deferred = LOOK, LOOK
            for item in lane.queue:
                if item.deferred:
                    left_deferred -= 1
                    if left_deferred < 0:
                        continue
                else:
                    left -= 1
                    if left < 0:
                        continue
                levels.setdefault(item.key[0], {})[item] = lane
        capacity = _capacity(lanes)
        # Each level of priority has the machine when the ones above are through.
        begins_s = now_s
        for level in sorted(levels):
            queued = levels[level]
            deferred = set(self._order.defer(tuple(queued), begins_s, capacity))
            if not deferred <= queued.keys():
                raise ValueError("put off what was not in the queue")
            for item, lane in queued.items():
                put_off = item in deferred
                if not put_off:
                    begins_s += item.work_s / capacity
                if item.deferred is not put_off:
                    item.deferred = put_off
                    self._moved(lane, item)


def _capacity(lanes: Sequence[Lane]) -> float:
    """Seconds of the fastest endpoint's prefill that all of these lanes' stations do in a second."""
    if len(lanes) == 1:
        return lanes[0].capacity
    return sum({station.id: speed for lane in lanes for station, speed in lane.speeds()}.values(), 0.0) or 1.0
