"""A comparison of policies on one trace: what was replayed, how, and each policy's figures, as plain data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from orchestrator.analysis.summary import Summary
from orchestrator.core.slo import SloClass

FORMAT = 1
"""Grows when a field of the JSON changes its meaning."""

GOALS = (0.90, 0.99)
"""Attainments whose highest rate is searched."""


@dataclass(slots=True)
class Report:
    """Everything of a comparison, in the order the policies were asked for.

    `fleet` and `promises` are told in words. All figures are simulated.
    """

    trace: str
    requests: int
    rate: float
    fleet: str
    promises: tuple[str, ...]
    notes: tuple[str, ...]
    seed: int
    interrupted: bool = False
    policies: list[Summary] = field(default_factory=list)

    def as_json(self) -> str:
        """The report as JSON."""
        told: dict[str, Any] = {"v": FORMAT, "simulated": True, **asdict(self)}
        return json.dumps(told, indent=1) + "\n"

    def best(self, goal: str) -> Summary | None:
        """The policy with the highest goodput at a goal (`p90`, `p99`); None if none was searched."""
        with_it = [policy for policy in self.policies if goal in policy.goodput]
        return max(with_it, key=lambda policy: policy.goodput[goal], default=None)


def goal_name(share: float) -> str:
    """`p90` for 0.9."""
    return f"p{share * 100:g}"


def in_words(targets: Mapping[str | None, SloClass]) -> tuple[str, ...]:
    """What is promised to each class."""
    return tuple(f"{name or 'no class'}: {_promise(slo)}" for name, slo in targets.items())


def _promise(slo: SloClass) -> str:
    told = []
    for name in ("ttft", "tpot", "itl", "e2e"):
        target = getattr(slo, name)
        if target is not None:
            grows = f" + {target.per_cold_prefill:g} x own cold prefill" if target.per_cold_prefill else ""
            told.append(f"{name.upper()} <= {time(target.seconds)}{grows}")
    return ", ".join(told) or "a whole answer"


def time(seconds: float | None) -> str:
    """Seconds as a person reads them; `-` for None."""
    if seconds is None:
        return "-"
    if seconds < 0.0995:
        return f"{seconds * 1e3:.1f} ms"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.0f} ms"
    return f"{seconds:.2f} s" if seconds < 99.5 else f"{seconds:,.0f} s"
