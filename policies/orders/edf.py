"""edf: the request whose first token is due first goes first."""

from __future__ import annotations

from orchestrator.policy import Waiting


class EarliestDeadline:
    """Earliest deadline first, whatever the work.

    Requests without a deadline come last, in order of arrival.
    """

    def key(self, waiting: Waiting) -> float:
        """When its first token is due."""
        return waiting.first_token_by_s
