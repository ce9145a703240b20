"""Slices of prompts on lean engines: plain requests for one token, whose KV is left to the prefix cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from orchestrator.core.decisions import Slice
from orchestrator.core.types import LegEvent, LegKind
from orchestrator.sim.replay.engine import LeanEngine
from orchestrator.sim.replay.job import LeanJob, Schedule
from orchestrator.sim.replay.life import Life

SLICE_S = 0.009
"""What a slice costs beside its tokens and the network: an engine's round trip, in which it computes nothing.
6 to 9 ms were measured on real ones."""


class Parts:
    """Sends slices to `engines`; `tell` gets the event that ends each, a network's latency later."""

    def __init__(
        self,
        engines: Mapping[str, LeanEngine],
        schedule: Schedule,
        latency_s: float,
        tell: Callable[[LegEvent], None],
    ) -> None:
        self.sent = 0
        self._engines = engines
        self._schedule = schedule
        self._latency_s = latency_s
        self._tell = tell

    def send(self, life: Life, piece: Slice, now_s: float) -> None:
        """It leaves the router now."""
        self.sent += 1
        self._schedule(now_s + self._latency_s + SLICE_S, self._arrive, (life, piece))

    def finished(self, job: LeanJob, at_s: float) -> None:
        """An engine has computed one."""
        self._schedule(at_s + self._latency_s, self._over, (*job.owner, "done"))

    def _arrive(self, now_s: float, sent: tuple[Life, Slice]) -> None:
        life, piece = sent
        where = piece.route.prefill or piece.route.decode
        engine = self._engines[where]
        hashes = life.hashes[: piece.tokens // engine.config.block_tokens] if engine.caches else ()
        job = LeanJob((life.view.id, where), piece.tokens, 1, hashes, part=True)
        if engine.fits(job):
            engine.submit(job, now_s)
        else:
            self._schedule(now_s + self._latency_s, self._over, (*job.owner, "failed"))

    def _over(self, now_s: float, over: Any) -> None:
        request_id, where, what = over
        self._tell(LegEvent(request_id, LegKind.PREFILL, where, what, now_s))
