"""moore-hodgson: plans so that as many requests as possible are on time, the shortest of them first."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappush, heapreplace
from operator import itemgetter

from orchestrator.policy import Waiting


class MooreHodgson:
    """Moore and Hodgson's algorithm over the whole queue, before each dispatch: O(n log n).

    Requests are taken in by their due time. When one cannot start in time behind those taken in before it,
    the longest of all is put off: on one endpoint no plan has more on time. Work is taken to be spread over
    all endpoints, behind which a request starts at the latest as long as none of them is idle. What was
    taken in goes first, in the order given (the shortest first); the rest follows, and is sent when nothing
    else wants the machine.
    """

    def key(self, waiting: Waiting) -> float:
        """Seconds of prefill left."""
        return waiting.work_s

    def plan(self, queue: Sequence[Waiting], now_s: float, endpoints: int) -> Sequence[Waiting]:
        """The whole queue, those that can be on time together in front."""
        due = [(w.latest_start_s + w.work_s, w.latest_start_s, w.work_s, i) for i, w in enumerate(queue)]
        due.sort(key=itemgetter(0))
        each = 1.0 / max(1, endpoints)
        start_s = now_s
        longest: list[tuple[float, int]] = []
        put_off: set[int] = set()
        for _, latest_s, work_s, i in due:
            if start_s <= latest_s:
                heappush(longest, (-work_s, i))
                start_s += work_s * each
                continue
            longest_s = -longest[0][0] if longest else 0.0
            if longest_s > work_s and start_s - longest_s * each <= latest_s:
                _, other = heapreplace(longest, (-work_s, i))
                start_s += (work_s - longest_s) * each
                put_off.add(other)
            else:
                put_off.add(i)
        if not put_off:
            return queue
        last = [queue[i] for i in sorted(put_off)]
        return [w for i, w in enumerate(queue) if i not in put_off] + last
