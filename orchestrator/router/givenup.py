"""What becomes of the legs of a unit that is given up: closed, let end, or never sent and made good for."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from orchestrator.engines.base import Leg
from orchestrator.router.legs import Call, Item
from orchestrator.router.road import Counts, Road
from orchestrator.router.stream import Stream
from orchestrator.wire.client import WireError

log = logging.getLogger(__name__)

UNWANTED = "unwanted"
"""Result of a leg that was let end though nobody wanted its answer."""


class Orphans:
    """Legs that go on without their unit, each until it ends or its time is over."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self._until_s: dict[Call, float] = {}

    def __len__(self) -> int:
        """How many there are."""
        return len(self._until_s)

    def adopt(self, call: Call, until_s: float) -> None:
        """Hear the call in its unit's place, at most until then."""
        call.unit = self
        self._until_s[call] = until_s

    def check(self, now_s: float) -> None:
        """Close those whose time is over."""
        for call in [call for call, until_s in self._until_s.items() if now_s >= until_s]:
            self._over(call, "aborted")

    def close(self) -> None:
        """Close all of them."""
        self.check(float("inf"))

    def answered(self, call: Call, body: bytes) -> None:
        """It has done what its peer waited for."""
        self._over(call, UNWANTED)

    def streamed(self, call: Call, stream: Stream, events: bytes) -> None:
        """Nobody reads it."""

    def stream_ended(self, call: Call, stream: Stream) -> None:
        """As `answered`."""
        self._over(call, UNWANTED)

    def dropped(self, call: Call, error: Exception) -> None:
        """Its connection has failed."""
        self._over(call, error.reason if isinstance(error, WireError) else "bad-answer")

    def crashed(self, call: Call, error: Exception) -> None:
        """A bug, which costs nobody anything."""
        log.error("a leg nobody waits for failed on a bug", exc_info=error)
        self._over(call, "internal")

    def _over(self, call: Call, result: str) -> None:
        if self._until_s.pop(call, None) is not None:
            self._counts.leg_done(call.leg.kind, call.leg.endpoint, result)
            call.abort()


def end(road: Road, calls: Sequence[Call]) -> None:
    """End legs that run: closed, and the engine told where it has a call for that.

    One that is owed to its peer goes on while that peer ran until now, which would wait for it long after
    both were closed; at most as long as it might have taken in good order.
    """
    waiting = {call.item for call in calls if call.leg.relay}
    now_s = road.clock.now_s()
    for call in calls:
        until_s = call.sent_s + road.timeouts.prefill_s
        if call.leg.owed and call.item in waiting and until_s > now_s:
            road.orphans.adopt(call, until_s)
            continue
        road.counts.leg_done(call.leg.kind, call.leg.endpoint, "aborted")
        call.abort()
        hang_up = call.place.engine.abort(call.leg)
        if hang_up is not None:
            road.hang_up(call.place, hang_up)


def release(road: Road, items: Iterable[Item], unsent: Iterable[Leg]) -> None:
    """Free what earlier legs hold for those that will never be sent: `unsent`, and what answers would have
    led to for which nobody was named yet."""
    try:
        for leg in (*unsent, *_unnamed(items)):
            if leg.release is not None:
                road.hang_up(road.place(leg.endpoint), leg.release())
    except Exception:
        # A lease that nobody frees ends by itself.
        log.exception("a hand-off was not released")


def _unnamed(items: Iterable[Item]) -> list[Leg]:
    legs: list[Leg] = []
    for item in items:
        if item.held is not None:
            (call, body), item.held = item.held, None
            step = item.machine.on_response(call.leg.kind, call.status, body)
            if isinstance(step, tuple):
                legs += step
    return legs
