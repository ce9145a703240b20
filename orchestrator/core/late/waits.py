"""Waits: a request that rather waits for a busy endpoint, which holds its prefix, than goes to a free one."""

from __future__ import annotations

from orchestrator.core.late.lanes import Lane
from orchestrator.core.late.queue import Item, Wait
from orchestrator.core.late.station import OVERDUE_S, OVERDUE_SHARE

RECHECK_S = 0.001
"""Whether a wait is still worth it is asked by the clock no more often than that."""


def begin(lane: Lane, item: Item, wait: Wait, now_s: float, claims: dict[str, float], *, keep: bool) -> None:
    """A busy endpoint is worth waiting for; remembered if `keep`, so as not to be worked out at each pump.

    `claims` are the seconds of those ahead that wait for stations too; this one's are added.
    """
    item.passed_s = min(item.passed_s, now_s)
    wait.ends_s = wait.station.ends_s
    _claim(lane, item, wait, now_s, claims)
    if keep:
        item.waits_for = wait


def goes_on(lane: Lane, item: Item, now_s: float, claims: dict[str, float], own: float) -> bool:
    """Whether what the item waits for is still worth it; if not, it is forgotten.

    It is while that station has not changed, and nobody has become free since who could be cheaper; `own` is
    what a second of prefill costs.
    """
    wait = item.waits_for
    assert wait is not None
    station = wait.station
    wait_s = station.wait_s(now_s) + claims.get(station.id, 0.0)
    if (
        station.idle
        or station.ends_s != wait.ends_s
        or now_s >= item.settles_s
        or wait_s + wait.rest_s >= wait.otherwise_s
        or now_s + wait_s + wait.work_s + wait.exposed_s > item.first_token_by_s
        or (lane.freed != wait.freed and _better_freed(lane, item, wait, (wait_s + wait.rest_s) / own))
    ):
        item.waits_for = None
        return False
    _claim(lane, item, wait, now_s, claims)
    return True


def _claim(lane: Lane, item: Item, wait: Wait, now_s: float, claims: dict[str, float]) -> None:
    """Add to the claims, and be asked again when the wait will be worth it no more."""
    station = wait.station
    claimed_s = claims.get(station.id, 0.0)
    claims[station.id] = claimed_s + wait.work_s
    # From its end on, what is still to wait grows with the time that it is late.
    spare_s = wait.otherwise_s - wait.rest_s - claimed_s - station.foreign_s - OVERDUE_S
    until_s = min(item.settles_s, station.ends_s + max(0.0, spare_s / OVERDUE_SHARE))
    lane.recheck_s = min(lane.recheck_s, max(until_s, now_s + RECHECK_S))


def _better_freed(lane: Lane, item: Item, wait: Wait, most_s: float) -> bool:
    """Whether a station that has become free since might compute the prompt within `most_s`."""
    for station in lane.freed_since(wait.freed):
        if station.curve.seconds(item.tokens, item.hits.get(station.id, 0)) < most_s:
            return True
    wait.freed = lane.freed
    return False
