"""What a request must meet to count as served well, and how many of those offered did."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil

from orchestrator.core.duration import parse_duration
from orchestrator.core.slo import SloClass, Target, Unattainable
from orchestrator.errors import ParamError, Problem
from orchestrator.sim.replay.life import Life
from orchestrator.sim.timing import QWEN3_32B_TP2, Timing

_TERM = re.compile(r"^(ttft|tpot|itl|e2e)=([0-9.]+[a-z]+)(?:\+([0-9.]+)x)?$")

SLO_HINT = "like ttft=1.5s+2x,tpot=40ms; Nx adds N times the request's own cold prefill"


def parse_slo(text: str, name: str = "replay", quantile: float = 0.99) -> SloClass:
    """An SLO class from `ttft=1.5s+2x,tpot=40ms`. Raises ParamError."""
    found: dict[str, Target] = {}
    for term in filter(None, (part.strip() for part in text.split(","))):
        match = _TERM.match(term)
        try:
            if match is None or match[1] in found:
                raise ValueError
            found[match[1]] = Target(parse_duration(match[2]), quantile, float(match[3] or 0.0))
        except ValueError:
            raise ParamError([(("slo",), Problem(f"{term!r} is no target", hint=SLO_HINT))]) from None
    if not found:
        raise ParamError([(("slo",), Problem("names no target", hint=SLO_HINT))])
    return SloClass(
        name,
        ttft=found.get("ttft"),
        itl=found.get("itl"),
        tpot=found.get("tpot"),
        e2e=found.get("e2e"),
        unattainable=Unattainable.REJECT,
    )


Targets = Mapping[str | None, SloClass]
"""What is promised by class name; None: to requests without one."""

NOTHING = SloClass("nothing")


def kept(life: Life, slo: SloClass, timing: Timing = QWEN3_32B_TP2) -> bool:
    """Whether a request got its whole answer within every target: one refused, failed or cut off did not.

    A bound that grows with the request's own cold prefill is by `timing`, the launch profile's: an engine
    that is slower than that does not loosen it.
    """
    ttft_s, tpot_s = life.ttft_s, life.tpot_s
    if ttft_s is None or tpot_s is None or life.last_s is None:
        return False
    cold_s = max(timing.step_floor_s, timing.prefill_s(0, life.view.prompt_tokens))
    if slo.ttft is not None and ttft_s > slo.ttft.bound_s(cold_s):
        return False
    if slo.tpot is not None and tpot_s > slo.tpot.seconds:
        return False
    if slo.itl is not None and life.worst_gap_s > slo.itl.seconds:
        return False
    return slo.e2e is None or life.last_s - life.view.arrived_s <= slo.e2e.bound_s(cold_s)


def attainment(
    lives: Iterable[Life], offered: int, targets: Targets, timing: Timing = QWEN3_32B_TP2
) -> float:
    """The share of the offered requests that was kept; 1 if none was offered."""
    good = sum(kept(life, targets.get(life.view.slo_class, NOTHING), timing) for life in lives)
    return good / offered if offered else 1.0


@dataclass(slots=True)
class Judge:
    """Ends a run as soon as it cannot reach `share` of `offered` requests any more.

    `missed` counts those that ended badly so far.
    """

    targets: Targets
    offered: int
    share: float
    timing: Timing = QWEN3_32B_TP2
    missed: int = 0

    def __call__(self, life: Life) -> bool:
        """Take note of a request that has ended; whether the run may end."""
        if not kept(life, self.targets.get(life.view.slo_class, NOTHING), self.timing):
            self.missed += 1
        return self.missed > self.offered - ceil(self.share * self.offered - 1e-9)
