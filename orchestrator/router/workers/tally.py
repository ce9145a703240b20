"""What a relay has counted since it last told, for the scheduler's process to add to its own."""

from __future__ import annotations

from typing import Any

import orjson

from orchestrator.metrics import RouterMetrics


class Tally:
    """Reads the growth of one RouterMetrics. Each `take` is told once, so that sums stay right over many."""

    def __init__(self, metrics: RouterMetrics) -> None:
        self._metrics = metrics
        self._told: dict[tuple[str, tuple[str, ...]], Any] = {}

    def take(self) -> bytes:
        """What came since the last time, as JSON; empty bytes if nothing did."""
        grown: list[tuple[Any, ...]] = []
        for name, labels, value in self._metrics.counts():
            key, before = (name, labels), self._told.get((name, labels))
            if value == before:
                continue
            self._told[key] = value
            if isinstance(value, float):
                grown.append((name, labels, value - (before or 0.0)))
            else:
                counts, total = value
                was, sum_before = before or ((0,) * len(counts), 0.0)
                new = [now - then for now, then in zip(counts, was, strict=True)]
                grown.append((name, labels, (new, total - sum_before)))
        return orjson.dumps(grown) if grown else b""


def add(metrics: RouterMetrics, told: bytes) -> None:
    """Add what a `take` said."""
    for name, labels, value in orjson.loads(told):
        metrics.add_counts(name, tuple(labels), value)
