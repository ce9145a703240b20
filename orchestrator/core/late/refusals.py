"""What a request that gets no endpoint is told: why, and when to come back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from orchestrator.core.admission import MAX_RETRY_S, MIN_RETRY_S, Drain
from orchestrator.core.contracts import Reject
from orchestrator.core.late.lanes import Lane
from orchestrator.core.late.queue import Item
from orchestrator.core.types import Endpoint, Prediction, RequestView
from orchestrator.errors import NoCapacity, Overloaded

UNREACHABLE = "slo-unreachable"
QUEUE_FULL = "queue-full"
QUEUE_TIMEOUT = "queue-timeout"


class Refusals:
    """Makes Rejects. Retry-After comes from the predicted drain of what waits."""

    def __init__(self, drain: Drain) -> None:
        self._drain = drain

    def no_capacity(self, request: RequestView, endpoints: Iterable[Endpoint]) -> Reject:
        """503: nothing is ready that could answer it."""
        mine = [e for e in endpoints if e.model == request.model]
        ready = Counter(e.role.value for e in mine if e.ready)
        counts = [f"{role} {ready[role]} of {n}" for role, n in Counter(e.role.value for e in mine).items()]
        known = f"ready: {', '.join(counts)}" if counts else "no endpoint has this model"
        message = f"nothing is ready that could answer {request.path} for model {request.model!r} ({known})"
        return Reject(request.id, NoCapacity.default_reason, message, NoCapacity.http_status)

    def queue_full(
        self, request: RequestView, waiting: int, lane: Lane, now_s: float, in_flight: int
    ) -> Reject:
        """429: too many wait already."""
        message = f"{waiting} requests are waiting for an endpoint, the most there may be"
        return self._overloaded(request, QUEUE_FULL, message, lane, now_s, in_flight)

    def unreachable(
        self, item: Item, lane: Lane, now_s: float, in_flight: int, predicted: Prediction | None
    ) -> Reject:
        """429: its first token cannot come in time any more."""
        due_s = max(0.0, item.first_token_by_s - item.arrived_s)
        waited_s = now_s - item.arrived_s
        message = (
            f"class {item.slo.name!r} promises the first token within {due_s:.2f} s; after {waited_s:.2f} s "
            f"of waiting no endpoint could give it in time (its prefill takes {item.work_s:.2f} s; "
            f"{lane.waiting} requests with {lane.queue.work_s:.1f} s of prefill wait for "
            f"{len(lane.stations)} endpoints)"
        )
        return self._overloaded(item.request, UNREACHABLE, message, lane, now_s, in_flight, predicted)

    def timeout(self, item: Item, lane: Lane, now_s: float, in_flight: int) -> Reject:
        """429: it has waited as long as it may."""
        message = f"no endpoint was free for it in {now_s - item.arrived_s:.0f} s, the longest it may wait"
        return self._overloaded(item.request, QUEUE_TIMEOUT, message, lane, now_s, in_flight)

    def _overloaded(
        self,
        request: RequestView,
        reason: str,
        message: str,
        lane: Lane,
        now_s: float,
        in_flight: int,
        predicted: Prediction | None = None,
    ) -> Reject:
        drain_s = lane.queue.work_s / max(1, len(lane.stations))
        after_s = max(self._drain.retry_after_s(now_s, in_flight), drain_s)
        after_s = min(MAX_RETRY_S, max(MIN_RETRY_S, after_s))
        return Reject(request.id, reason, message, Overloaded.http_status, after_s, predicted)
