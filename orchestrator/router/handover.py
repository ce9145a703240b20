"""From a route to the hand-offs that serve a request along it, and to the answer they fill."""

from __future__ import annotations

from typing import NamedTuple

from orchestrator.core.types import Endpoint, Route
from orchestrator.engines.base import Engine, HandoffRequest
from orchestrator.engines.splice import JsonBody
from orchestrator.errors import NoCapacity
from orchestrator.router import replies
from orchestrator.router.answer import Answer, Merged, Single
from orchestrator.router.intake import Ask
from orchestrator.router.legs import Item
from orchestrator.router.offers import Registry
from orchestrator.router.record import Record
from orchestrator.wire.exchange import Exchange


class Handover(NamedTuple):
    """One attempt: the ends of its route, the bodies to hand off there, and how many rooms they take.

    `bodies` is the request as it came, or, when `split`, the single requests that its engine needs.
    """

    engine: Engine
    decode: Endpoint
    prefill: Endpoint | None
    encode: Endpoint | None
    bodies: tuple[JsonBody, ...]
    split: bool
    rooms: tuple[int, ...]
    merges: bool

    def items(self, path: str, record: Record, ask: Ask, room: int) -> list[Item]:
        """The hand-offs of the attempt; `room` is the first of `sum(rooms)` consecutive ones."""
        items = []
        for place, body in enumerate(self.bodies):
            request = HandoffRequest(
                request_id=record.id,
                path=path,
                kind=record.kind,
                body=body,
                stream=ask.view.stream,
                room=room,
                decode=self.decode,
                prefill=self.prefill,
                encode=self.encode,
                attempt=record.attempts - 1,
                item=place if self.split else None,
                headers=ask.headers,
            )
            room += self.rooms[place]
            items.append(Item(self.engine.handoff(request), self.merges))
        return items


def plan(registry: Registry, ask: Ask, route: Route) -> Handover:
    """What to hand off along `route`. Raises RequestError when its engine cannot, or an end of it is gone."""
    decode = _endpoint(registry, route.decode)
    engine, apart, kind = registry.engine(decode.id), route.disaggregated, ask.view.path
    if len(ask.offer.ways) > 1:
        engine.check(kind, ask.body, apart, decode.facts)
    parts = engine.split(kind, ask.body, apart)
    bodies = (ask.body,) if parts is None else tuple(parts)
    return Handover(
        engine=engine,
        decode=decode,
        prefill=None if route.prefill is None else _endpoint(registry, route.prefill),
        encode=None if route.encode is None else _endpoint(registry, route.encode),
        bodies=bodies,
        split=parts is not None,
        rooms=tuple([engine.rooms(kind, body) for body in bodies]) if apart else (0,) * len(bodies),
        merges=apart and engine.needs_merge(kind, ask.body),
    )


def answer(exchange: Exchange, record: Record, ask: Ask, items: int) -> Answer:
    """What the relayed legs of `items` hand-offs write to."""
    identity = replies.identity(record.id, record.client_id)
    if items == 1:
        return Single(exchange, identity)
    samples = max(1, ask.view.n // ask.prompt.number)
    return Merged(exchange, identity, record.kind, items, samples)


def _endpoint(registry: Registry, name: str) -> Endpoint:
    endpoint = registry.get(name)
    if endpoint is None:
        raise NoCapacity(f"the endpoint {name} has just been removed", reason="endpoint-removed")
    return endpoint
