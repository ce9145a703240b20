"""What the shipped profiles keep beside each other, on slices of two public traces (trials, goodput)."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from orchestrator.analysis.targets import parse_slo
from orchestrator.analysis.trials import Trials
from orchestrator.policy.profiles import PROFILES
from orchestrator.sim.replay.fleet import published
from orchestrator.sim.replay.loading import load
from orchestrator.sim.replay.requests import Requests
from orchestrator.sim.replay.schedulers import Recipe, bare_router

FOLDER = Path(__file__).parents[1] / "data" / "traces"
TRACES = ("mooncake_synthetic_400.jsonl", "azure_2023_code_400.csv")

IMMEDIATE = ("predicted-shed", "predicted", "weighted")
"""The best three of those that decide on arrival (docs/benchmarks/scheduling.md has all)."""


def trials(name: str, trace: str, error: float = 0.0) -> Trials:
    """8 prefill, 2 decode instances; TTFT within 1.5 s and twice the own cold prefill, TPOT within 40 ms."""
    slo = parse_slo("ttft=1.5s+2x,tpot=40ms")
    requests = Requests(load(FOLDER / trace), default_class=slo.name)
    fleet = published(8, 2, block_tokens=requests.block_tokens)
    recipe = Recipe(PROFILES[name], bare_router([slo]), {"use": "told"}, error=error)
    return Trials(name, recipe, requests, fleet, {slo.name: slo})


@cache
def best_immediate(trace: str) -> tuple[float, float]:
    """The highest rates at which any of them keeps 90 and 99 % of what is offered."""
    all_of = [trials(name, trace) for name in IMMEDIATE]
    return max(one.goodput(0.90, 1.5) for one in all_of), max(one.goodput(0.99, 1.0) for one in all_of)


@pytest.mark.parametrize("trace", TRACES)
def test_the_default_keeps_half_as_much_again_as_any_that_decides_on_arrival(trace: str) -> None:
    c90, c99 = best_immediate(trace)
    slo = trials("slo", trace)
    assert slo.attains(1.5 * c90, 0.90)
    assert slo.attains(1.25 * c99, 0.99)
    assert slo.attainment(2.0 * c90) >= 0.80


@pytest.mark.parametrize("trace", TRACES)
def test_so_it_does_when_each_prediction_is_off_by_a_fifth(trace: str) -> None:
    c90, c99 = best_immediate(trace)
    slo = trials("slo", trace, error=0.2)
    assert slo.attains(1.4 * c90, 0.90)
    assert slo.attains(1.2 * c99, 0.99)
