"""SLO classes: what a kind of request is promised, and the moments that follow from it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum, StrEnum
from math import inf

from orchestrator.core.frozen import frozen


class Priority(IntEnum):
    """Who goes first where both could still be on time; the lower first."""

    REALTIME = 0
    INTERACTIVE = 1
    BATCH = 2
    """Fills the gaps that the others leave."""


class Unattainable(StrEnum):
    """What becomes of a request whose promise cannot be kept any more."""

    REJECT = "reject"
    """429 with Retry-After, at its latest start."""
    QUEUE = "queue"
    """It waits behind all that can be on time, for as long as `SloClass.max_wait_s`."""
    BEST_EFFORT = "best_effort"
    """It goes on in its turn as if it had no promise."""


@frozen(frozen=True, slots=True)
class Target:
    """A bound on a time, held by at least `quantile` of the requests.

    `per_cold_prefill` times the request's own prefill on an idle endpoint without cache is added, so that
    one promise fits short and long prompts.
    """

    seconds: float
    quantile: float = 0.99
    per_cold_prefill: float = 0.0

    def bound_s(self, cold_prefill_s: float) -> float:
        """The bound for a request whose cold prefill takes `cold_prefill_s`."""
        return self.seconds + self.per_cold_prefill * cold_prefill_s


Gap = tuple[float, float]
"""A bound on the gaps between tokens in seconds, and the share of requests that keep it."""

NO_GAP: Gap = (inf, 0.5)


@frozen(frozen=True, slots=True)
class SloClass:
    """A promise by name; None: nothing promised of that time.

    `ttft` is the time to first token, `itl` each gap between two tokens, `tpot` a request's mean gap, `e2e`
    the time to the last token. `pools` are the only ones its requests may use (None: any). `reserve` is the
    share of prefill time kept for it while it has requests waiting. `max_wait_s` bounds the wait of
    whatever is not rejected at its latest start. `continuation`: its streams go on elsewhere if their engine
    fails in the middle. `slices_s`: prompts are computed in pieces of so many seconds, between which others
    may go (0: whole; None: as the scheduling profile has it).
    """

    name: str
    ttft: Target | None = None
    itl: Target | None = None
    tpot: Target | None = None
    e2e: Target | None = None
    priority: Priority = Priority.INTERACTIVE
    unattainable: Unattainable = Unattainable.REJECT
    pools: frozenset[str] | None = None
    reserve: float = 0.0
    max_wait_s: float = 600.0
    continuation: bool = False
    slices_s: float | None = None

    @property
    def quantile(self) -> float:
        """The share of requests that the first token's promise is for; without one, of the last's."""
        target = self.ttft or self.e2e
        return 0.99 if target is None else target.quantile

    @property
    def step_s(self) -> float:
        """The longest decode step that keeps both gap promises; infinite without one."""
        return self.gap[0]

    @property
    def gap(self) -> Gap:
        """The stricter of both gap promises: its bound, and the share of requests that it is for."""
        itl, tpot = self.itl, self.tpot
        if itl is None or tpot is None:
            one = itl or tpot
            return NO_GAP if one is None else (one.seconds, one.quantile)
        if itl.seconds == tpot.seconds:
            return itl.seconds, max(itl.quantile, tpot.quantile)
        return (itl.seconds, itl.quantile) if itl.seconds < tpot.seconds else (tpot.seconds, tpot.quantile)

    def first_token_by_s(self, arrived_s: float, cold_prefill_s: float, decode_s: float) -> float:
        """When the first token is due, for a request that will then decode for `decode_s`; inf: never.

        Of a bound on the last token, what decoding takes is left out.
        """
        by_s = inf
        if self.ttft is not None:
            by_s = arrived_s + self.ttft.bound_s(cold_prefill_s)
        if self.e2e is not None:
            by_s = min(by_s, arrived_s + self.e2e.bound_s(cold_prefill_s) - decode_s)
        return by_s


NO_PROMISE = SloClass("none", unattainable=Unattainable.BEST_EFFORT)
"""The class of a request that names none where there is no default: nothing is hopeless for it."""

Classes = Mapping[str, SloClass]
