"""least-slack: the request that must start soonest goes first."""

from __future__ import annotations

from orchestrator.policy import Waiting


class LeastSlack:
    """By the latest start: the deadline less the work that is left.

    The best where nearly all can be on time. In overload it spends the machine on requests that are about to
    be too late, and shorter ones behind them become late too.
    """

    def key(self, waiting: Waiting) -> float:
        """The latest start."""
        return waiting.latest_start_s
