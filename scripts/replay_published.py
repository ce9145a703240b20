"""Published scheduling results beside what the replay makes of them: a report in Markdown, and no test."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from statistics import fmean

from orchestrator.analysis.summary import quantile
from orchestrator.core.types import Role
from orchestrator.sim.replay.driver import Replay
from orchestrator.sim.replay.fleet import Fleet, Unit, published
from orchestrator.sim.replay.life import Run
from orchestrator.sim.replay.loading import load
from orchestrator.sim.replay.requests import Requests
from orchestrator.sim.replay.schedulers import Recipe
from orchestrator.sim.replay.trace import Trace
from orchestrator.sim.replay.workload import Prefixes, poisson
from orchestrator.sim.timing import QWEN3_32B_TP2

RAMP = (3, 10, 15, 20, 22, 25, 30, 35, 40, 43, 46, 49, 52, 55, 57, 60)
"""Requests a second of the precise-prefix study's stages, 30 s each here: their length is not published."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What the studies tell, in seconds (throughput: output tokens a second)."""

    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p95_s: float
    e2e_p50_s: float
    e2e_p95_s: float
    tpot_p99_s: float
    throughput: float


def figures(run: Run) -> Figures:
    """Of the requests that were answered."""
    done = [life for life in run.lives if life.last_s is not None]
    ttft = sorted(life.ttft_s or 0.0 for life in done)
    e2e = sorted((life.last_s or 0.0) - life.view.arrived_s for life in done)
    tpot = sorted(life.tpot_s or 0.0 for life in done)
    return Figures(
        fmean(ttft), quantile(ttft, 0.5), quantile(ttft, 0.95), quantile(e2e, 0.5), quantile(e2e, 0.95),
        quantile(tpot, 0.99), sum(life.output_tokens for life in done) / run.seconds,
    )  # fmt: skip


def run(profile: str, trace: Trace, fleet: Fleet, rate: float = 1.0) -> Figures:
    """One replay. Predictions are the router's own."""
    requests = Requests(trace)
    recipe = Recipe(profile, predictor={"use": "stages"})
    replayed = Replay(requests, fleet, recipe.make(requests.block_tokens), rate=rate, rng=Random(0))
    return figures(replayed.run())


def conversation(trace: Trace) -> None:
    """Mooncake (FAST '25): LLaMA3-70B on 16 nodes of 8 A800; how many prefill at what cost is assumed."""
    timing = replace(QWEN3_32B_TP2, prefill_token_s=112e-6, prefill_token2_s=1.05e-9)
    fleet = published(8, 8, timing=timing, kv_tokens={Role.PREFILL: 3_300_000, Role.DECODE: 1_000_000})
    print(f"\n## Mooncake FAST '25, mean TTFT by policy (here: {trace.name}, 8 P + 8 D)\n")
    print("| policy | published s | to best | profile | simulated s | to best |\n|---|---|---|---|---|---|")
    rows = (("random", 19.65, "random"), ("load balanced", 5.27, "least-requests"),
            ("local cache-aware", 3.58, "predicted"))  # fmt: skip
    mine = {profile: run(profile, trace, fleet).ttft_mean_s for _, _, profile in rows}
    for policy, theirs, profile in rows:
        print(f"| {policy} | {theirs} | {theirs / 3.58:.2f} | {profile} | {mine[profile]:.2f} | "
              f"{mine[profile] / mine['predicted']:.2f} |")  # fmt: skip
    print("\nGlobal cache-aware (3.07 s) fetches KV from other prefill instances; the replay cannot.")


def precise_prefix() -> None:
    """llm-d's study of precise prefix routing: 8 vLLM pods of 2 H100, Qwen-32B."""
    stages = [(30.0, float(rate)) for rate in RAMP]
    work = Prefixes(groups=150, users=5, prefix=6000, question=1200, output=240)
    trace = work.trace("precise prefix", stages, Random(1))
    timing = replace(QWEN3_32B_TP2, prefill_token_s=1 / 15_928, prefill_token2_s=0.0)
    fleet = published(
        0, 0, 8, dialect="vllm", timing=timing, block_tokens=128, kv_tokens={Role.UNIFIED: 307_328}
    )
    print("\n## llm-d precise-prefix study, 8 pods, 3 to 60 requests/s\n")
    print("Answers of 240 tokens: the published throughput by the mean rate; prefill of 15,928 tokens/s.\n")
    print("| policy | published tok/s | TTFT s | profile | simulated tok/s | TTFT s |\n" + "|---" * 6 + "|")
    rows = (("precise", 8730, 0.298, "predicted"), ("approximate", 6944, 13.3, "weighted"),
            ("load only", 4429, 47.0, "least-requests"), ("random", 4429, 45.0, "random"))  # fmt: skip
    for policy, rate, ttft_s, profile in rows:
        got = run(profile, trace, fleet)
        print(f"| {policy} | {rate} | {ttft_s} | {profile} | {got.throughput:.0f} | {got.ttft_mean_s:.2f} |")


def predicted_latency(trace: Trace) -> None:
    """llm-d's predicted latency: Qwen3-480B, 13 servers of 8 H200, 1 and 5 requests/s in turn."""
    rng = Random(2)
    stages = [(120.0, 1.0), (120.0, 5.0)] * 4
    moments = list(poisson(stages, rng))
    entries = [replace(e, at_s=at) for e, at in zip(trace.entries, moments, strict=False)]
    alternating = trace.noted(entries, "arrivals alternating 1 and 5 a second")

    def fleet(slowdown: float) -> Fleet:
        one = published(0, 0, 13, dialect="vllm", kv_tokens={Role.UNIFIED: 1_000_000})
        return replace(one, units=tuple(replace(u, slowdown=slowdown) for u in one.units))

    slow = _fit(lambda s: run("round-robin", alternating, fleet(s)).ttft_p50_s, 4.47, 0.2, 20.0)
    print("\n## llm-d predicted latency, 13 servers\n")
    print(f"Lengths of {trace.name}; steps take {slow:.2f}x those of Qwen3-32B TP2, so that round robin's "
          "median TTFT is as published.\n")  # fmt: skip
    print(
        "| policy | published E2E p50/p95, TTFT p50/p95, TPOT p99 | profile | simulated |\n|---|---|---|---|"
    )
    rows = (("round robin", "15.98/38.85, 4.47/24.04 s, 93 ms", "round-robin"),
            ("load + prefix, tuned", "13.42/26.55, 3.38/16.78 s, 63 ms", "weighted"),
            ("predicted", "9.06/22.57, 0.97/11.34 s, 53 ms", "predicted"))  # fmt: skip
    for policy, theirs, profile in rows:
        f = run(profile, alternating, fleet(slow))
        print(f"| {policy} | {theirs} | {profile} | {f.e2e_p50_s:.2f}/{f.e2e_p95_s:.2f}, {f.ttft_p50_s:.2f}/"
              f"{f.ttft_p95_s:.2f} s, {f.tpot_p99_s * 1e3:.0f} ms |")  # fmt: skip


def long_prefixes() -> None:
    """A fixed rule (disaggregate above 16 uncached tokens) on a coding load of long prefixes."""
    work = Prefixes(groups=8, users=1, prefix=30_000, question=1500, output=150, turns=15)
    trace = work.trace("coding", [(600.0, 0.8)], Random(3))
    size: Mapping[Role, int] = {Role.DECODE: 700_000, Role.UNIFIED: 700_000}
    apart = published(1, 3, dialect="vllm", block_tokens=128, kv_tokens=size)
    local = published(0, 0, 4, dialect="vllm", block_tokens=128, kv_tokens=size)
    either = replace(apart, units=tuple(_may_prefill(u) for u in apart.units))
    rows = (("always disaggregated (every turn has 1,500 uncached tokens)", "predicted", apart),
            ("always local", "predicted", local), ("priced, PD or local", "slo", either))  # fmt: skip
    print("\n## Long prefixes: 30k of prefix, 1,500 uncached tokens a turn, 15 turns, 4 instances\n")
    print("Published: the fixed rule made TTFT up to 20x worse than always local.\n")
    print("| rule | profile | TTFT mean s | p95 s | to always local |\n|---|---|---|---|---|")
    got = {rule: run(profile, trace, fleet) for rule, profile, fleet in rows}
    base = got["always local"].ttft_mean_s
    for rule, profile, _ in rows:
        f = got[rule]
        print(
            f"| {rule} | {profile} | {f.ttft_mean_s:.2f} | {f.ttft_p95_s:.2f} | {f.ttft_mean_s / base:.2f}x |"
        )


def _may_prefill(unit: Unit) -> Unit:
    if unit.endpoint.role is not Role.DECODE:
        return unit
    return replace(unit, endpoint=replace(unit.endpoint, facts={**unit.endpoint.facts, "may_prefill": True}))


def _fit(of: Callable[[float], float], target: float, low: float, high: float) -> float:
    """The argument that makes a growing function reach `target`, to 5 %."""
    while high > low * 1.05:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if of(middle) < target else (low, middle)
    return low


def main(argv: Sequence[str] | None = None) -> None:
    """Print the report."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    p.add_argument("--trace", type=Path, help="Mooncake's conversation trace (or another with hash_ids); "
                   "without it what needs one is left out")  # fmt: skip
    p.add_argument("--first", type=int, default=4000, help="how many of its requests")
    args = p.parse_args(argv)
    print("# Published scheduling results, simulated again\n\nAll figures of ours are simulated.")
    precise_prefix()
    long_prefixes()
    if args.trace is not None:
        trace = load(args.trace).first(args.first)
        conversation(trace)
        predicted_latency(trace)


if __name__ == "__main__":
    main()
