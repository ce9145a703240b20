"""What the fleet can do for one model and kind of request, worked out once until the endpoints change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from orchestrator.clock import Clock
from orchestrator.core.frozen import frozen
from orchestrator.core.types import Endpoint, PathKind, Role, Snapshot
from orchestrator.engines.base import Engine
from orchestrator.engines.splice import JsonBody
from orchestrator.errors import BadRequest, NotServed


class Registry(Protocol):
    """The endpoints as the data path needs them; `router.endpoints.Registry` is one."""

    def snapshot(self, now_s: float) -> Snapshot:
        """Every endpoint as it is."""
        ...

    def get(self, endpoint_id: str) -> Endpoint | None:
        """One endpoint as it is."""
        ...

    def engine(self, endpoint_id: str) -> Engine:
        """The adapter of an endpoint. Raises KeyError."""
        ...

    def models(self) -> tuple[str, ...]:
        """The served model names, sorted."""
        ...

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call `callback` after every change of the snapshot."""
        ...

    def leg_failed(self, endpoint_id: str, error: BaseException) -> None:
        """A leg met trouble at the endpoint below HTTP."""
        ...

    def failed(self, endpoint_id: str) -> None:
        """An engine failed at a leg."""
        ...

    def well(self, endpoint_id: str) -> None:
        """A leg has been answered there, the first since something went wrong."""
        ...

    def moved_s(self, endpoint_id: str) -> float:
        """When its own counters last moved, or it had nothing to count; -inf if it tells of none."""
        ...

    def hangs(self, endpoint_id: str, silent_s: float) -> None:
        """It has work, and has shown no sign of life for so long."""
        ...

    def on_hung(self, callback: Callable[[str, str], None]) -> None:
        """Call `callback(endpoint_id, why)` when its counters have stood still for too long."""
        ...

    def on_incarnation(self, callback: Callable[[str], None]) -> None:
        """Call `callback(endpoint_id)` when another process is behind an endpoint."""
        ...


class Way(NamedTuple):
    """One way to serve a request: an engine, whether prefill and decode are apart there, and the facts of
    the first of its endpoints."""

    engine: Engine
    apart: bool
    facts: Mapping[str, Any]


@frozen(frozen=True, slots=True)
class Offer:
    """The ways a request may be served.

    Guarded names are those of every engine of the model: a request may end up at any.
    """

    ways: tuple[Way, ...]
    guarded_fields: frozenset[str]
    guarded_headers: frozenset[bytes]
    max_model_len: int | None

    def check(self, kind: PathKind, body: JsonBody) -> None:
        """Raise BadRequest for what no way could do, before the request waits for one."""
        refusal: BadRequest | None = None
        for way in self.ways:
            try:
                way.engine.check(kind, body, way.apart, way.facts)
            except BadRequest as error:
                refusal = refusal or error
            else:
                return
        if refusal is not None:
            raise refusal


class Offers:
    """The offers by model and kind."""

    def __init__(self, registry: Registry, clock: Clock) -> None:
        self._registry = registry
        self._clock = clock
        self._known: dict[tuple[str, PathKind], Offer] = {}
        registry.on_change(self._known.clear)

    def offer(self, model: str, kind: PathKind) -> Offer:
        """What there is for `kind` of a served `model`, ready or not.

        Raises NotServed when none of the model's endpoints ever answers that kind.
        """
        found = self._known.get((model, kind))
        if found is None:
            found = self._known[model, kind] = self._find(model, kind)
        return found

    def _find(self, model: str, kind: PathKind) -> Offer:
        ways: dict[tuple[int, bool], Way] = {}
        mine = [e for e in self._registry.snapshot(self._clock.now_s()).endpoints if e.model == model]
        lengths = [e.max_model_len for e in mine if e.max_model_len is not None]
        for endpoint in mine:
            engine, apart = self._registry.engine(endpoint.id), endpoint.role is not Role.UNIFIED
            if engine.serves(kind, endpoint.role, apart):
                ways.setdefault((id(engine), apart), Way(engine, apart, endpoint.facts))
        if not ways:
            alone = any(self._registry.engine(e.id).serves(kind, Role.UNIFIED, False) for e in mine)
            roles = ", ".join(sorted({e.role.value for e in mine}))
            why = (
                f"it needs a unified endpoint, and there is none ({roles})" if alone else "its engine cannot"
            )
            message = f"model {model!r} does not serve this path: {why}"
            raise NotServed(message, reason="path-not-served")
        all_engines = [self._registry.engine(e.id) for e in mine]
        return Offer(
            ways=tuple(ways.values()),
            guarded_fields=frozenset().union(*(e.guarded_fields for e in all_engines)),
            guarded_headers=frozenset(n.encode() for e in all_engines for n in e.guarded_headers),
            max_model_len=max(lengths, default=None),
        )
