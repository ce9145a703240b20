"""What a request must meet to count as served well, and how many of those offered did."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
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


def begun_in_time(life: Life, slo: SloClass, timing: Timing = QWEN3_32B_TP2) -> bool:
    """Whether a request's first token came in time.

    A bound that grows with the request's own cold prefill is by `timing`, the launch profile's: an engine
    that is slower than that does not loosen it.
    """
    ttft_s = life.ttft_s
    if ttft_s is None:
        return False
    return slo.ttft is None or ttft_s <= slo.ttft.bound_s(_cold_s(life, timing))


def kept(life: Life, slo: SloClass, timing: Timing = QWEN3_32B_TP2) -> bool:
    """Whether a request got its whole answer within every target: one refused, failed or cut off did not."""
    if not begun_in_time(life, slo, timing) or life.tpot_s is None or life.last_s is None:
        return False
    if slo.tpot is not None and life.tpot_s > slo.tpot.seconds:
        return False
    if slo.itl is not None and life.worst_gap_s > slo.itl.seconds:
        return False
    if slo.e2e is None:
        return True
    return life.last_s - life.view.arrived_s <= slo.e2e.bound_s(_cold_s(life, timing))


def _cold_s(life: Life, timing: Timing) -> float:
    return timing.cold_s(life.view.prompt_tokens)


def attainment(
    lives: Iterable[Life], offered: int, targets: Targets, timing: Timing = QWEN3_32B_TP2
) -> float:
    """The share of the offered requests that was kept; 1 if none was offered."""
    good = sum(kept(life, targets.get(life.view.slo_class, NOTHING), timing) for life in lives)
    return good / offered if offered else 1.0


class Judge:
    """Ends a run as soon as it cannot reach `share` of `offered` requests any more."""

    def __init__(self, targets: Targets, offered: int, share: float, timing: Timing = QWEN3_32B_TP2) -> None:
        self._targets = targets
        self._timing = timing
        self._left = offered - ceil(share * offered - 1e-9)
        self._late: set[str] = set()

    def begun(self, life: Life) -> bool:
        """Note a first token that came too late; whether the run may end."""
        if begun_in_time(life, self._slo(life), self._timing):
            return False
        self._late.add(life.view.id)
        return self._missed()

    def ended(self, life: Life) -> bool:
        """Note a request that was missed; whether the run may end."""
        if life.view.id in self._late or kept(life, self._slo(life), self._timing):
            return False
        return self._missed()

    def _slo(self, life: Life) -> SloClass:
        return self._targets.get(life.view.slo_class, NOTHING)

    def _missed(self) -> bool:
        self._left -= 1
        return self._left < 0
