"""The decode side of a route: who has the memory for a request and keeps every gap promise with it."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from math import inf

from orchestrator.core.decisions import Waiting
from orchestrator.core.frozen import record
from orchestrator.core.inflight import Ledger, Sums
from orchestrator.core.late.gaps import Gaps
from orchestrator.core.prediction import Step
from orchestrator.core.slo import Gap
from orchestrator.core.types import Endpoint

SAME, SAME_S = 0.02, 0.0005
"""Steps within 2 % and 0.5 ms of each other are the same: predictions are not better than that, and the side
that is never used is never measured again."""

NO_ROOM, GAPS, AVOIDED = "memory", "gap-promise", "failed-before"
"""Why a side is not taken: its KV memory, a gap promised to somebody there or to the request, or that an
attempt of the request has failed there."""


@record(slots=True, eq=False)
class DecodeSide:
    """An endpoint that decodes: its memory, its batch, and the strictest gap promised to those in it.

    `bounds` are the gaps promised to the requests there, by request id, of those with a promise;
    `strictest_s` is the least of them, `surest_s` the longest median step that keeps them all in the tail,
    each at its quantile, as `gaps` tells it.
    `tokens` estimates the KV its steps read, `batch` the sequences in them. `kept_tokens` of its room are for
    `kept_for`, whom too many have overtaken.
    """

    endpoint: Endpoint
    step: Step
    overcommit: float = 1.0
    gaps: Gaps | None = None
    bounds: dict[str, Gap] = field(default_factory=dict)
    batch: int = 0
    tokens: int = 0
    free_tokens: float = inf
    strictest_s: float = inf
    surest_s: float = inf
    used: int = 0
    """Which use of a decode side was the last of this one."""
    kept_for: Waiting | None = None
    kept_tokens: float = 0.0
    full: bool = False
    """It has as many requests as it may have for now, being new."""
    id: str = field(init=False)
    """The endpoint's."""

    def __post_init__(self) -> None:
        """Take the id."""
        self.id = self.endpoint.id

    def refresh(self, sums: Sums) -> None:
        """Work out memory and batch anew: what was reported, corrected by what was given and ended since."""
        load, seen = self.endpoint.load, self.endpoint.inflight_at_load
        requests, used = sums.requests, sums.kv_tokens
        if load is not None:
            requests = max(requests, load.running + load.waiting + requests - seen.requests)
            if load.kv_used_tokens is not None:
                used = max(used, load.kv_used_tokens + used - seen.kv_tokens)
        self.batch, self.tokens = requests, used
        cap = self.endpoint.cap
        self.full = cap is not None and requests >= cap
        total = self.endpoint.kv_total_tokens
        self.free_tokens = inf if total is None else total * self.overcommit - used
        if total is not None and not requests:
            # Whatever a lone request needs, the engine alone can say that it does not fit.
            self.free_tokens = inf
        self.strictest_s = self.surest_s = inf
        if self.bounds:
            gaps = set(self.bounds.values())
            self.strictest_s = min(gaps)[0]
            self.surest_s = min([self.sure_s(gap) for gap in gaps])

    def step_s(self, more: int, tokens: int) -> float:
        """Seconds of a step with `more` sequences of `tokens` KV tokens together."""
        return self.step.seconds(self.batch + more, self.tokens + tokens)

    def sure_s(self, gap: Gap) -> float:
        """The longest median step with which a promised gap is kept in the tail."""
        return gap[0] if self.gaps is None or gap[0] == inf else self.gaps.median_s(self.id, gap)

    def room(self, who: object) -> float:
        """KV tokens free for `who`: without those kept for another; None: with them."""
        if self.full:
            return -inf
        if who is None or self.kept_for is None or self.kept_for is who:
            return self.free_tokens
        # One that is kept empty until it can take a request larger than itself is free for nobody else.
        return -inf if self.free_tokens == inf else self.free_tokens - self.kept_tokens

    def breaks_gaps(self, tokens: int, gap: Gap, sequences: int = 1) -> bool:
        """Whether its steps with `sequences` of `tokens` in all would break `gap` or one promised here.

        A lone request is promised nothing by others, and nowhere could its gaps be shorter.
        """
        bound_s = gap[0] if gap[0] < self.strictest_s else self.strictest_s
        return bound_s < inf and self.batch > 0 and self.step_s(sequences, tokens) > bound_s

    def risks_gaps(self, tokens: int, gap: Gap, sequences: int = 1) -> bool:
        """The same of their tails: more of the steps than were promised might be too long."""
        bound_s = self.sure_s(gap)
        if self.surest_s < bound_s:
            bound_s = self.surest_s
        return bound_s < inf and self.batch > 0 and self.step_s(sequences, tokens) > bound_s


class Decodes:
    """The decode sides of one lane, brought up to date lazily."""

    def __init__(self, ledger: Ledger, sides: Iterable[DecodeSide]) -> None:
        self._ledger = ledger
        self.sides: Mapping[str, DecodeSide] = {side.id: side for side in sides}
        self._stale = set(self.sides)
        self._order: list[tuple[float, str]] = []
        self._places: dict[str, tuple[float, str]] = {}
        self._uses = 0

    def changed(self, endpoint_id: str) -> None:
        """What is in flight at an endpoint has changed."""
        if endpoint_id in self.sides:
            self._stale.add(endpoint_id)

    def all_changed(self) -> None:
        """So have the steps of all."""
        self._stale.update(self.sides)

    def best(
        self,
        tokens: int,
        gap: Gap,
        avoid: Iterable[str] = (),
        who: Waiting | None = None,
        never: frozenset[str] = frozenset(),
        sequences: int = 1,
        seconds: Mapping[str, float] | None = None,
    ) -> DecodeSide | None:
        """Who would decode a request of `tokens` KV tokens fastest, among those that have room; None: nobody.

        Of equals, the one with the smallest batch, then the one used longest ago. A side is passed over when
        its step would break a gap promise, `gap` or one to those it has; if every one with room would,
        the request has to wait. Those whose tail would break one are taken where there are no others: what
        waits for a tail misses its first token more often than a gap. `avoid` are taken only where there are
        no others at all, `never` never. `who` asks: room kept for others is none (None: it is). `sequences`
        are the answers it will decode. `seconds` are what policies add to a side's step, of those that they
        leave (None: they say nothing).
        """
        self._refresh()
        found: DecodeSide | None = None
        risky: DecodeSide | None = None
        enough_s = inf
        if avoid and self.sides.keys() <= set(avoid):
            avoid = ()
        order = self._order
        if seconds is not None:
            order = sorted([(s + seconds[name], name) for s, name in order if name in seconds])
        for step_s, name in order:
            if step_s > enough_s:
                break
            side = self.sides[name]
            if side.room(who) < tokens or name in avoid or side.breaks_gaps(tokens, gap, sequences):
                continue
            if name in never:
                continue
            if (gap[0] < inf or side.bounds) and side.risks_gaps(tokens, gap, sequences):
                risky = risky or side
                continue
            if found is None:
                found, enough_s = side, step_s * (1.0 + SAME) + SAME_S
            elif (side.batch, side.used) < (found.batch, found.used):
                found = side
        return found or risky

    def use(self, side: DecodeSide) -> None:
        """A request goes to `side`: among equals, the others are next."""
        self._uses += 1
        side.used = self._uses

    def room(self, who: object) -> float:
        """KV tokens free for `who` on all sides together."""
        self._refresh()
        return sum([max(0.0, side.room(who)) for side in self.sides.values()], 0.0)

    def most_room(self) -> float:
        """KV tokens that the emptiest side has when it is empty; inf where one does not tell."""
        return max((e.endpoint.kv_total_tokens or inf for e in self.sides.values()), default=0.0)

    def least_step_s(self) -> float:
        """Seconds of the shortest step with one request more; 0 without any side."""
        self._refresh()
        return self.sides[self._order[0][1]].step_s(1, 0) if self._order else 0.0

    def ruled_out(
        self, tokens: int, gap: Gap, avoid: Iterable[str], who: Waiting | None, sequences: int = 1
    ) -> Iterator[tuple[str, str]]:
        """Each side that a request could not be given, and why, as they were when last looked at."""
        for side in self.sides.values():
            if side.id in avoid:
                yield side.id, AVOIDED
            elif side.room(who) < tokens:
                yield side.id, NO_ROOM
            elif side.breaks_gaps(tokens, gap, sequences):
                yield side.id, GAPS

    def _refresh(self) -> None:
        for name in self._stale:
            side = self.sides[name]
            side.refresh(self._ledger.sums(name))
            was, place = self._places.get(name), (side.step_s(0, 0), name)
            if was == place:
                continue
            if was is not None:
                del self._order[bisect_left(self._order, was)]
            self._places[name] = place
            insort(self._order, place)
        self._stale.clear()
