"""A station: one endpoint where prompts are computed, what it computes now, and when it will be free."""

from __future__ import annotations

from dataclasses import field
from math import inf
from typing import Protocol

from orchestrator.core.frozen import record
from orchestrator.core.prediction import Curve
from orchestrator.core.types import Endpoint, Role

OVERDUE_S = 0.05
OVERDUE_SHARE = 0.3
"""An endpoint past its predicted end is taken to need 50 ms and 0.3 of the time it is late: as in the
simulations the algorithm comes from, where one that merely looked idle was stuffed."""

ROUNDING_S = 1e-6
"""A tick that comes just when a moment was said to be, may find itself a rounding error before it."""

POLL_FIRST_S = 0.02
POLL_MOST_S = 1.0
"""An endpoint that should be done is asked after 20 ms, then twice as late each time, up to a second."""


POLLS = 10
"""More than that are not counted: one that hangs is asked for hours."""


@record(slots=True, eq=False)
class Running:
    """One prompt being computed: in which unit, since when, for how long by prediction.

    `alone`: nothing else was computed beside it, so that its time is its own.
    """

    request_id: str
    unit: int
    started_s: float
    work_s: float
    tokens: int
    cached: int
    alone: bool
    wait_s: float
    """Work that it shares the engine with: what was left there when it came, and its unit's own."""


class Watcher(Protocol):
    """Whoever keeps a list of stations that are free; a lane."""

    def moved(self, station: Station) -> None:
        """What it runs, or when that ends, has changed."""
        ...


@record(slots=True, eq=False)
class Station:
    """One endpoint that computes prompts.

    `slots` is how many units it computes at once (one per data-parallel rank or pipeline stage). `ends_s` is
    when all that it runs should be done. `disaggregated`: another endpoint decodes what it computed.
    """

    endpoint: Endpoint
    curve: Curve
    disaggregated: bool
    slots: int = 1
    unit_tokens: int = 0
    watchers: list[Watcher] = field(default_factory=list)
    running: dict[str, Running] = field(default_factory=dict)
    units: dict[int, int] = field(default_factory=dict)
    """Prompts left of each unit that runs."""
    last_unit: int = 0
    ends_s: float = 0.0
    foreign_s: float = 0.0
    told_at_s: float = -inf
    """When the report was made that `foreign_s` comes from."""
    mean_work_s: float = 0.0
    """Of the prompts given to it lately."""
    longest_s: float = 0.0
    """The longest prefill that it runs; 0: none."""
    polls: int = 0
    poll_at_s: float = inf
    id: str = field(init=False)
    """The endpoint's; what is read of it most."""

    def __post_init__(self) -> None:
        """Take the id."""
        self.id = self.endpoint.id

    def wait_s(self, now_s: float) -> float:
        """Seconds until it should be free; what others gave it counts."""
        if len(self.units) < self.slots:
            return self.foreign_s
        left_s = self.ends_s - now_s
        if left_s <= 0.0:
            left_s = OVERDUE_S - OVERDUE_SHARE * left_s
        return left_s + self.foreign_s

    @property
    def idle(self) -> bool:
        """Whether a slot is free."""
        return len(self.units) < self.slots

    def nearly_free(self, now_s: float, ahead_s: float, ahead_work_s: float) -> bool:
        """Whether it may be given a unit ahead: its one short unit ends within `ahead_s`.

        One that is overdue is never taken to be about to end: it would be stuffed just when it is slow.
        """
        if len(self.units) != self.slots:
            return False
        left_s = self.ends_s - now_s
        return 0.0 <= left_s <= ahead_s + ROUNDING_S and self.short(ahead_work_s)

    def short(self, work_s: float) -> bool:
        """Whether all that it runs takes at most `work_s`."""
        return sum([r.work_s for r in self.running.values()], 0.0) <= work_s

    def unit(self) -> int:
        """A number for a unit about to be sent."""
        self.last_unit += 1
        return self.last_unit

    def start(
        self, request_id: str, unit: int, now_s: float, work_s: float, tokens: int, cached: int
    ) -> None:
        """A prompt goes to it as part of `unit`."""
        alone = not self.running
        if not alone:
            for other in self.running.values():
                other.alone = False
                if other.unit == unit:
                    other.wait_s += work_s
        wait_s = max(0.0, self.ends_s - now_s)
        self.running[request_id] = Running(request_id, unit, now_s, work_s, tokens, cached, alone, wait_s)
        self.units[unit] = self.units.get(unit, 0) + 1
        self.longest_s = max(self.longest_s, work_s)
        self.ends_s = max(now_s, self.ends_s) + work_s / self.slots
        self.polls, self.poll_at_s = 0, self.ends_s + POLL_FIRST_S
        self.mean_work_s += 0.1 * (work_s - self.mean_work_s)
        self._tell()

    def clear(self) -> None:
        """Whatever it ran is lost."""
        self.running.clear()
        self.units.clear()
        self.ends_s, self.poll_at_s, self.foreign_s, self.longest_s = 0.0, inf, 0.0, 0.0
        self._tell()

    def done(self, request_id: str, now_s: float) -> Running | None:
        """A prompt is computed, or will not be any more; None if it was not here."""
        running = self.running.pop(request_id, None)
        if running is None:
            return None
        left = self.units[running.unit] - 1
        if left:
            self.units[running.unit] = left
        else:
            del self.units[running.unit]
        self.longest_s = max((r.work_s for r in self.running.values()), default=0.0)
        if not self.running:
            self.ends_s, self.poll_at_s = now_s, inf
        else:
            left_s = sum([r.work_s for r in self.running.values()], 0.0) / self.slots
            self.ends_s = min(self.ends_s, now_s + left_s)
        self._tell()
        return running

    def _tell(self) -> None:
        for watcher in self.watchers:
            watcher.moved(self)

    def polled(self, now_s: float) -> None:
        """It has just been asked whether it is done: when to ask again."""
        self.polls = min(self.polls + 1, POLLS)
        self.poll_at_s = now_s + min(POLL_MOST_S, POLL_FIRST_S * 2**self.polls)


def slots_of(endpoint: Endpoint) -> int:
    """How many units an endpoint computes at once: its data-parallel ranks times its pipeline stages."""
    dp, pp = endpoint.facts.get("dp_size"), endpoint.facts.get("pp_size")
    return (dp if isinstance(dp, int) else 1) * (pp if isinstance(pp, int) else 1)


def computes_alone(endpoint: Endpoint) -> bool:
    """Whether it may answer a request by itself: a unified one, or a decode one that may prefill."""
    return endpoint.role is Role.UNIFIED or bool(endpoint.facts.get("may_prefill"))
