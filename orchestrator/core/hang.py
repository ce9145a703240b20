"""When an engine hangs: what it was given is long overdue by prediction, and it shows no sign of life."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf
from typing import NamedTuple

from orchestrator.core.frozen import record

PATIENCE = 10.0
"""A leg is overdue after so many times the seconds it was predicted to take; predictions are off by less."""

COLD_PATIENCE = 8.0
"""An engine that has answered nothing yet in its life has so many times as long: first requests compile."""


@record(slots=True)
class Signs:
    """What an endpoint has shown in this life, on the router's clock; -inf: nothing.

    `heard_s` is when a leg last brought something that is noted (its answer, its first token), `newest_s`
    when the latest-sent of those legs was sent.
    """

    heard_s: float = -inf
    newest_s: float = -inf
    failing: bool = False
    """Something went wrong there since: whoever keeps count wants to know of the next that goes well."""

    def heard(self, sent_s: float, now_s: float) -> None:
        """A leg sent at `sent_s` has brought something."""
        self.heard_s = now_s
        if sent_s > self.newest_s:
            self.newest_s = sent_s

    def patience_s(self, hang_s: float, predicted_s: float) -> float:
        """Seconds of silence after which a leg predicted to take `predicted_s` is overdue; `hang_s` is the
        least."""
        if self.heard_s == -inf:
            hang_s *= COLD_PATIENCE
        return max(hang_s, PATIENCE * predicted_s)


class Overdue(NamedTuple):
    """A leg that has brought nothing since `since_s`, for longer than `limit_s`.

    `peer` is the endpoint of the other leg, if that is running and has brought nothing either; `feeds`: the
    other waits for this one, rather than this one for the other.
    """

    endpoint: str
    since_s: float
    limit_s: float
    peer: str | None = None
    feeds: bool = False


def hung(overdue: Iterable[Overdue], heard_s: Callable[[str], float], now_s: float) -> dict[str, float]:
    """The endpoints that hang, each with the seconds of its silence.

    `heard_s` tells when an endpoint last showed any sign of life, on any of its legs or in its counters: one
    that still does is slow with this leg, and does not hang. Of two legs that wait for each other, prefill is
    at fault as long as it has shown nothing since it was sent, and decode after that.
    """
    found: dict[str, float] = {}
    for leg in overdue:
        heard = heard_s(leg.endpoint)
        silent_s = now_s - max(heard, leg.since_s)
        if silent_s <= leg.limit_s:
            continue
        if leg.peer is not None:
            peer = heard_s(leg.peer)
            waits_for_peer = heard > leg.since_s and now_s - peer > leg.limit_s
            if waits_for_peer if leg.feeds else peer <= leg.since_s:
                continue
        found[leg.endpoint] = max(silent_s, found.get(leg.endpoint, 0.0))
    return found
