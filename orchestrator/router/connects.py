"""Connections for the legs of a unit: idle ones at once, the missing ones made before anything is sent."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from orchestrator.engines.base import Leg
from orchestrator.errors import LegFailed, RequestError
from orchestrator.router.legs import leg_name
from orchestrator.router.road import Place, Road
from orchestrator.wire.client import ConnectError, Connection

log = logging.getLogger(__name__)

Due = list[tuple[int, Leg]]
"""Legs to start, each with the place of its item."""

Ready = list[tuple[Place, Connection]]
"""Where the legs go, in their order."""

Done = Callable[[Due, Ready, RequestError | None, str | None], None]
"""Told of the outcome: all are `Ready`, or why not and at which endpoint, if it is one's fault."""


def idle(road: Road, due: Due) -> Ready:
    """Idle connections for the legs, up to the first that there is none for. Raises NoCapacity."""
    ready: Ready = []
    places = [road.place(leg.endpoint) for _, leg in due]
    for place in places:
        connection = road.pool.take(place.host, place.port)
        if connection is None:
            break
        ready.append((place, connection))
    return ready


def unused(ready: Sequence[tuple[Place, Connection]]) -> None:
    """Give the connections back."""
    for _, connection in ready:
        connection.unused()


def make(road: Road, due: Due, ready: Ready, done: Done) -> asyncio.Task[None]:
    """Make the connections that are not `ready`, then call `done`; cancelling gives all of them back."""

    def over(task: asyncio.Task[None]) -> None:
        road.connects.discard(task)
        if task.cancelled():  # perhaps before its first step
            unused(ready)

    task = asyncio.get_running_loop().create_task(_make(road, due, ready, done))
    road.connects.add(task)
    task.add_done_callback(over)
    return task


async def _make(road: Road, due: Due, ready: Ready, done: Done) -> None:
    failure: RequestError | None = None
    endpoint: str | None = None
    try:
        for _, leg in due[len(ready) :]:
            place = road.place(leg.endpoint)
            ready.append((place, await road.pool.acquire(place.host, place.port, place.idle_s)))
    except ConnectError as error:
        endpoint = leg.endpoint
        road.trouble(endpoint, error)
        road.counts.leg_done(leg.kind, endpoint, error.reason)
        failure = LegFailed(f"{leg_name(leg)}: {error}", reason=error.reason)
    except RequestError as error:
        failure = error
    except Exception:
        log.exception("connecting failed on a bug")
        failure = RequestError("internal error", reason="internal")
    if failure is not None:
        unused(ready)
    done(due, ready, failure, endpoint)
