"""Looks at all units of legs now and then: whose stage is over its deadline, and which engine hangs."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from orchestrator.core.hang import Overdue, hung
from orchestrator.errors import LegFailed
from orchestrator.router.offers import Registry
from orchestrator.router.road import Road

if TYPE_CHECKING:
    from orchestrator.router.forward import Unit

log = logging.getLogger(__name__)

HUNG = "engine-hung"
"""The reason of legs that are cut because their engine hangs."""


def look(road: Road, registry: Registry, now_s: float) -> None:
    """Fail the units that are late, and every leg on an engine that hangs.

    A unit is asked again when something of it may be late: the cost of a look is a comparison for each.
    """
    overdue: list[Overdue] = []
    for unit in tuple(road.watch):
        overdue += unit.check(now_s)
    if not overdue:
        return
    streams = _last_events(road.watch)

    def heard_s(endpoint: str) -> float:
        signs = road.signs_of(endpoint)
        return max(signs.heard_s, registry.moved_s(endpoint), streams.get(endpoint, signs.heard_s))

    for endpoint, silent_s in hung(overdue, heard_s, now_s).items():
        road.signs_of(endpoint).failing = True
        registry.hangs(endpoint, silent_s)
        lost(road, endpoint, f"has shown no sign of life for {silent_s:.0f} s")


def lost(road: Road, endpoint: str, why: str) -> None:
    """End every leg on an endpoint that will not answer any more."""
    units = [unit for unit in road.watch if unit.uses(endpoint)]
    if units:
        log.warning("legs given up", extra={"endpoint": endpoint, "requests": len(units), "why": why})
    for unit in units:
        unit.lose(endpoint, LegFailed(f"{endpoint} {why}", reason=HUNG))


def _last_events(units: Iterable[Unit]) -> dict[str, float]:
    """When a stream of each endpoint last brought something."""
    newest: dict[str, float] = {}
    for unit in units:
        for endpoint, last_s in unit.last_events():
            if last_s > newest.get(endpoint, 0.0):
                newest[endpoint] = last_s
    return newest
