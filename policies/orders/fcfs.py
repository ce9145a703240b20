"""fcfs: requests go in the order of their arrival."""

from __future__ import annotations

from orchestrator.policy import Waiting


class FirstCome:
    """First come, first served."""

    def key(self, waiting: Waiting) -> float:
        """When it arrived."""
        return waiting.arrived_s
