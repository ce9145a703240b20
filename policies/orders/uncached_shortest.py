"""uncached-shortest: the request with the least prefill left goes first, what is cached left out."""

from __future__ import annotations

from math import inf

from orchestrator.policy import Waiting

BEHIND_S = 1e9
"""Added to the key of a request that is promised nothing: more than any prefill takes."""


class UncachedShortest:
    """Shortest job first, by the work that a prompt still is once its cached prefix is taken off.

    Most requests are on time by it when not all can be. What can no longer be on time never reaches the
    head of the queue, so that no request starves behind shorter ones without being told. One that is promised
    nothing is never too late, and would: those go by arrival, behind all that are promised something.
    """

    def key(self, waiting: Waiting) -> float:
        """Seconds of prefill left; for one without a promise when it came, behind the others."""
        return waiting.work_s if waiting.first_token_by_s < inf else BEHIND_S + waiting.arrived_s
