"""One attempt at a request: its legs as they stand, and what others are told of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence

from orchestrator.core.types import LegEvent
from orchestrator.engines.base import Leg
from orchestrator.errors import RequestError
from orchestrator.router.answer import Answer
from orchestrator.router.connects import Due
from orchestrator.router.legs import Call, Item
from orchestrator.router.record import Record
from orchestrator.router.road import Road
from orchestrator.router.stream import Usage
from orchestrator.wire.exchange import Exchange


class Attempt:
    """The state of one attempt's legs, of all its items; `forward.Unit` runs them."""

    __slots__ = (
        "_another",
        "_answer",
        "_broke",
        "_calls",
        "_connecting",
        "_due",
        "_failure",
        "_items",
        "_late",
        "_look_s",
        "_named",
        "_over",
        "_over_s",
        "_record",
        "_road",
        "_unreached",
        "_waiting",
        "closed",
        "exchange",
        "failed_at",
    )  # fmt: skip

    def __init__(
        self,
        road: Road,
        record: Record,
        answer: Answer,
        items: Sequence[Item],
        over: Callable[[], None],
        broke: Callable[[RequestError], None],
        late: bool = False,
        another: Callable[[str], None] | None = None,
    ) -> None:
        self._road = road
        self._record = record
        self._answer = answer
        self._items = items
        self._over = over
        self._broke = broke
        self._late = late
        self._another = another
        self._unreached: tuple[RequestError, str] | None = None
        self._named = 1 if late else 0  # decode sides that were asked for
        self._calls: dict[Call, None] = {}
        self._due: Due = []
        self._waiting: Due = []  # for a connection
        self._failure: RequestError | None = None
        self._over_s: float | None = None
        self._look_s = 0.0  # nothing can be late before
        self._connecting: asyncio.Task[None] | None = None
        self.exchange: Exchange = answer.exchange
        self.closed = False
        self.failed_at: tuple[str, ...] = ()
        """The endpoint whose leg failed the unit, if it was one's."""

    def usage(self) -> Usage:
        """The tokens of the whole request."""
        items = self._items
        return items[0].usage() if len(items) == 1 else self._answer.usage([item.usage() for item in items])

    def uses(self, endpoint: str) -> bool:
        """Whether a leg runs there that the client still needs."""
        return self._over_s is None and any(call.leg.endpoint == endpoint for call in self._calls)

    def last_events(self) -> Iterator[tuple[str, float]]:
        """For each of its streams, where it runs and when it last brought something."""
        for call in self._calls:
            if call.last_s is not None:
                yield call.leg.endpoint, call.last_s

    def _drop(self, call: Call, result: str) -> None:
        """The call is over, well or badly."""
        if call in self._calls:
            del self._calls[call]
            self._road.counts.leg_done(call.leg.kind, call.leg.endpoint, result)
            if result != "ok":
                call.abort()

    # -- telling others

    def _tell_begun(self, leg: Leg, now_s: float) -> None:
        if len(self._items) == 1 or all(one.begun for one in self._items):
            self._tell(leg, "first_token", now_s)

    def _tell(self, leg: Leg, what: str, at_s: float) -> None:
        if what in self._road.heeds:
            self._road.progress(LegEvent(self._record.id, leg.kind, leg.endpoint, what, at_s))
