"""What the prefix index, the predictor and the pairs of endpoints count of themselves, as metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from orchestrator.core.contracts import Accountable
from orchestrator.core.prediction import Predictor
from orchestrator.core.prefix import PrefixIndex
from orchestrator.core.prefixcheck import PrefixCheck
from orchestrator.metrics import RouterMetrics

Check = Callable[[], PrefixCheck]
Values = Mapping[tuple[str, ...], float]


def follow(metrics: RouterMetrics, check: Check, predictor: Predictor, pairs: Callable[[], Values]) -> None:
    """Have `metrics` read what the PrefixCheck in use has counted and its index holds, and how good the
    predictor was, if it keeps books of that; `pairs` is how many stand how."""
    if isinstance(predictor, Accountable):
        metrics.watch_predictions(predictor.report)
    for field in ("prompt", "hit", "ceiling"):
        metrics.follow(f"pdctl_prefix_{field}_tokens_total", partial(_hits, check, field))
    for field in ("predicted", "reported", "wrong"):
        metrics.follow(f"pdctl_prefix_{field}_tokens_total", partial(_checked, check, field))
    metrics.follow("pdctl_pairs", pairs)
    metrics.follow("pdctl_prefix_blocks", lambda: _held(check().index, PrefixIndex.blocks))
    metrics.follow("pdctl_prefix_capacity_blocks", lambda: _held(check().index, PrefixIndex.capacity))


def _held(index: PrefixIndex, read: Callable[[PrefixIndex, str], int]) -> Values:
    return {(endpoint,): read(index, endpoint) for endpoint in index.endpoints()}


def _hits(check: Check, field: str) -> Values:
    return {(model,): getattr(hits, field) for model, hits in check().hits.items()}


def _checked(check: Check, field: str) -> Values:
    return {(endpoint,): getattr(told, field) for endpoint, told in check().checked.items()}
