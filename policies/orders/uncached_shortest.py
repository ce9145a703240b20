"""uncached-shortest: the request with the least prefill left goes first, what is cached left out."""

from __future__ import annotations

from orchestrator.policy import Waiting


class UncachedShortest:
    """Shortest job first, by the work that a prompt still is once its cached prefix is taken off.

    Most requests are on time by it when not all can be. What can no longer be on time never reaches the
    head of the queue, so that no request starves behind shorter ones without being told.
    """

    def key(self, waiting: Waiting) -> float:
        """Seconds of prefill left."""
        return waiting.work_s
