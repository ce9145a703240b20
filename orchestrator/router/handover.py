"""From a route to the hand-offs that serve a request along it, and to the answer they fill."""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.core.types import Endpoint, Route
from orchestrator.engines import continuing
from orchestrator.engines.base import HandoffRequest
from orchestrator.errors import NoCapacity
from orchestrator.router.answer import Answer, Merged, Single
from orchestrator.router.continuing import Lasting
from orchestrator.router.intake import Ask
from orchestrator.router.legs import Item
from orchestrator.router.offers import Registry
from orchestrator.router.record import Record
from orchestrator.wire.exchange import Exchange


def plan(
    registry: Registry, take: Callable[[int], range], path: str, record: Record, ask: Ask, route: Route
) -> list[Item]:
    """The hand-offs of one attempt along `route`: one of the request as it came, or one for each single
    request that its engine needs in its place.

    `take` gives consecutive rooms for all of them. Raises RequestError when the engine cannot, or an end of
    the route is gone.
    """
    decode = _endpoint(registry, route.decode)
    prefill = None if route.prefill is None else _endpoint(registry, route.prefill)
    encode = None if route.encode is None else _endpoint(registry, route.encode)
    engine, apart, kind = registry.engine(decode.id), prefill is not None, record.kind
    if len(ask.offer.ways) > 1:
        engine.check(kind, ask.body, apart, decode.facts)
    parts = engine.split(kind, ask.body, apart)
    bodies = (ask.body,) if parts is None else parts
    merges = apart and engine.needs_merge(kind, ask.body)
    sizes = [engine.rooms(kind, body) if apart else 0 for body in bodies]
    room = take(sum(sizes)).start
    items = []
    for place, body in enumerate(bodies):
        request = HandoffRequest(
            request_id=record.id,
            path=path,
            kind=kind,
            body=body,
            stream=ask.view.stream,
            room=room,
            decode=decode,
            prefill=prefill,
            encode=encode,
            attempt=record.attempts - 1,
            item=None if parts is None else place,
            headers=ask.headers,
        )
        items.append(Item(engine.handoff(request), merges))
        room += sizes[place]
    return items


def answer(exchange: Exchange, record: Record, ask: Ask, items: int, continues: bool) -> Answer:
    """What the relayed legs of `items` hand-offs write to. `continues`: by another request, if they fail."""
    if items == 1:
        lasts = continues and continuing.sound(record.kind, ask.body.fields)
        return Lasting(exchange, record, ask.body) if lasts else Single(exchange, record)
    samples = max(1, ask.view.n // ask.prompt.number)
    return Merged(exchange, record, items, samples)


def _endpoint(registry: Registry, name: str) -> Endpoint:
    endpoint = registry.get(name)
    if endpoint is None:
        raise NoCapacity(f"the endpoint {name} has just been removed", reason="endpoint-removed")
    return endpoint
