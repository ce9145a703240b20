"""The link of one engine as a queue: KV leaves in order, each piece behind what is there already."""

from __future__ import annotations

from orchestrator.sim.jobs import Counters
from orchestrator.sim.timing import Link, Timing


class Channel:
    """One engine's end of the transfer link; times are virtual seconds."""

    def __init__(self, timing: Timing, link: Link, counters: Counters) -> None:
        self._timing = timing
        self._link = link
        self._counters = counters
        self._free_s = 0.0
        self.slowdown = 1.0
        """Factor on what a transfer takes (a fault)."""

    @property
    def overlaps(self) -> bool:
        """Whether chunks may leave while later ones are computed."""
        return self._link.overlaps

    def put(self, tokens: int, now_s: float) -> None:
        """Queue the KV of some tokens."""
        if tokens > 0:
            self._free_s = max(self._free_s, now_s) + self._timing.wire_s(tokens, self._link) * self.slowdown

    def done_s(self, tokens: int, now_s: float) -> float:
        """When a hand-off of `tokens` in all, the last of them queued by now, is complete; counts it."""
        at_s = max(self._free_s, now_s) + self._link.fixed_s * self.slowdown
        self._counters.transfers += 1
        self._counters.transfer_tokens += tokens
        self._counters.last_transfer_s = at_s - now_s
        return at_s
