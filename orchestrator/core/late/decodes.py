"""The decode side of a route: who has the memory for a request and keeps every gap promise with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf

from orchestrator.core.inflight import Ledger, Sums
from orchestrator.core.prediction import Step
from orchestrator.core.types import Endpoint

SAME = 0.02
"""Steps within 2 % of each other are the same: predictions are not better than that."""


@dataclass(slots=True, eq=False)
class DecodeSide:
    """An endpoint that decodes: its memory, its batch, and the strictest gap promised to those in it.

    `bounds` are the gaps promised to the requests there (request id to seconds), of those with a promise.
    `tokens` estimates the KV its steps read, `batch` the sequences in them.
    """

    endpoint: Endpoint
    step: Step
    overcommit: float = 1.0
    bounds: dict[str, float] = field(default_factory=dict)
    batch: int = 0
    tokens: int = 0
    free_tokens: float = inf
    strictest_s: float = inf
    used: int = 0
    """Which use of a decode side was the last of this one."""

    @property
    def id(self) -> str:
        """The endpoint's id."""
        return self.endpoint.id

    def refresh(self, sums: Sums) -> None:
        """Work out memory and batch anew: what was reported, corrected by what was given and ended since."""
        load, seen = self.endpoint.load, self.endpoint.inflight_at_load
        requests, used = sums.requests, sums.kv_tokens
        if load is not None:
            requests = max(requests, load.running + load.waiting + requests - seen.requests)
            if load.kv_used_tokens is not None:
                used = max(used, load.kv_used_tokens + used - seen.kv_tokens)
        self.batch, self.tokens = requests, used
        total = self.endpoint.kv_total_tokens
        self.free_tokens = inf if total is None else total * self.overcommit - used
        if total is not None and not requests:
            # Whatever a lone request needs, the engine alone can say that it does not fit.
            self.free_tokens = inf
        self.strictest_s = min(self.bounds.values(), default=inf)

    def step_s(self, more: int, tokens: int) -> float:
        """Seconds of a step with `more` sequences of `tokens` KV tokens together."""
        return self.step.seconds(self.batch + more, self.tokens + tokens)


class Decodes:
    """The decode sides of one lane, brought up to date lazily."""

    def __init__(self, ledger: Ledger, sides: Iterable[DecodeSide]) -> None:
        self._ledger = ledger
        self.sides: Mapping[str, DecodeSide] = {side.id: side for side in sides}
        self._stale = set(self.sides)
        self._order: list[tuple[float, str, DecodeSide]] = []
        self._uses = 0

    def changed(self, endpoint_id: str) -> None:
        """What is in flight at an endpoint has changed."""
        if endpoint_id in self.sides:
            self._stale.add(endpoint_id)

    def best(
        self, tokens: int, bound_s: float, pools: frozenset[str] | None, avoid: Iterable[str] = ()
    ) -> DecodeSide | None:
        """Who would decode a request of `tokens` KV tokens fastest, among those that have room; None: nobody.

        A side is passed over when its step would break a gap promise, `bound_s` or one to those it has;
        if every one with room would, the request has to wait.
        """
        self._refresh()
        found: DecodeSide | None = None
        enough_s = inf
        for step_s, _, side in self._order:
            if step_s > enough_s:
                break
            if side.free_tokens < tokens or side.id in avoid:
                continue
            if pools is not None and side.endpoint.pool not in pools:
                continue
            bound = bound_s if bound_s < side.strictest_s else side.strictest_s
            if bound < inf and side.batch and side.step_s(1, tokens) > bound:
                continue
            if found is None:
                found, enough_s = side, step_s * (1.0 + SAME)
            elif side.used < found.used:
                found = side
        return found

    def use(self, side: DecodeSide) -> None:
        """A request goes to `side`: among equals, the others are next."""
        self._uses += 1
        side.used = self._uses

    def room(self) -> float:
        """KV tokens free on all sides together."""
        self._refresh()
        return sum(side.free_tokens for side in self.sides.values() if side.free_tokens > 0)

    def most_room(self) -> float:
        """KV tokens that the emptiest side has when it is empty; inf where one does not tell."""
        return max((e.endpoint.kv_total_tokens or inf for e in self.sides.values()), default=0.0)

    def _refresh(self) -> None:
        if not self._stale:
            return
        for endpoint_id in self._stale:
            side = self.sides[endpoint_id]
            side.refresh(self._ledger.sums(endpoint_id))
        self._stale.clear()
        self._order = sorted((side.step_s(0, 0), side.id, side) for side in self.sides.values())
