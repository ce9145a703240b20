"""What the router knows by KV events, in one piece: who is read, the index of it, and prompts' tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.core.kvindex import EXACT
from orchestrator.core.late.scheduler import LateScheduler
from orchestrator.metrics import RouterMetrics
from orchestrator.router.endpoints import Registry
from orchestrator.router.kvwatch import KvWatch
from orchestrator.router.tokens import Tokens
from orchestrator.topology.plan import Plan, RouterPlan
from orchestrator.topology.scheduler import AnyScheduler
from orchestrator.wire.client import Pool

Values = Mapping[tuple[str, ...], float]


class KvSide:
    """Reads the events of a plan's endpoints into a scheduler's index. Made within a running loop."""

    def __init__(
        self, plan: Plan, registry: Registry, scheduler: AnyScheduler, pool: Pool, metrics: RouterMetrics
    ) -> None:
        self.index = index = scheduler.cached.exact
        index.seed = plan.seed
        self.watch = KvWatch(registry, index)
        self.tokens = Tokens(registry, index, pool, lambda: self.watch.models)
        if isinstance(scheduler, LateScheduler):
            self.tokens.sliced = scheduler.slices
        self._follow(metrics)
        if plan.router is not None:
            self.apply(plan.router)

    def apply(self, router: RouterPlan) -> None:
        """The settings of a router's plan."""
        self.index.max_error = router.kv_index.max_error
        self.tokens.within_s = router.kv_index.tokens_within_s
        self.tokens.key = router.credentials.engine_key

    def show(self, endpoint: str) -> dict[str, Any] | None:
        """What `endpoints` tells of one; None where no events are wanted."""
        return self.watch.show(endpoint)

    def close(self) -> None:
        """Stop reading and asking."""
        self.tokens.close()
        self.watch.close()

    def _follow(self, metrics: RouterMetrics) -> None:
        watch, holders = self.watch, self.index.holders
        metrics.follow("pdctl_kv_blocks", lambda: {(n,): len(h.blocks) for n, h in holders.items()})
        metrics.follow("pdctl_kv_exact", lambda: {(n,): h.state == EXACT for n, h in holders.items()})
        metrics.follow("pdctl_kv_drops_total", lambda: {(n,): h.drops for n, h in holders.items()})
        metrics.follow("pdctl_kv_error_ratio", self._errors)
        metrics.follow("pdctl_kv_batches_total", lambda: {(n,): watch.batches(n) for n in watch.readers})
        metrics.follow("pdctl_kv_gaps_total", lambda: {(n,): watch.gaps(n) for n in watch.readers})
        metrics.follow("pdctl_kv_resets_total", self._resets)
        metrics.follow("pdctl_tokens_total", lambda: {(how,): n for how, n in self.tokens.counts.items()})

    def _errors(self) -> Values:
        errors = {name: holder.error for name, holder in self.index.holders.items()}
        return {(name,): error for name, error in errors.items() if error is not None}

    def _resets(self) -> Values:
        readers = self.watch.readers.items()
        return {(name, why): count for name, reader in readers for why, count in reader.resets.items()}
