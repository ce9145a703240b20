"""The figures of one replay: how many requests were kept, how long they took, what each instance did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator.analysis.targets import NOTHING, Targets, kept
from orchestrator.sim.replay.life import Life, Run
from orchestrator.sim.replay.steps import Histogram
from orchestrator.sim.timing import Timing

SHARES = (0.5, 0.9, 0.99)
"""Quantiles that are told of every time."""

POINTS = 60
"""Points of a distribution that a plot is drawn from."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A distribution of seconds: mean and quantiles; None where nothing was measured."""

    mean_s: float | None = None
    p50_s: float | None = None
    p90_s: float | None = None
    p99_s: float | None = None


@dataclass(frozen=True, slots=True)
class Instance:
    """What one instance did: the share of the time it computed, requests waiting there (mean of the polls),
    prompts it had, prompt tokens found in its cache, requests thrown out for want of memory."""

    name: str
    role: str
    busy: float
    queued: float
    requests: int
    cached_tokens: int
    preemptions: int


@dataclass(slots=True)
class Summary:
    """One policy's replay. `attainment` is of the `offered` requests; a refusal is a miss.

    `rate` is in requests a second. `hit_share` is the prompt tokens found in caches as a share of what an
    infinite cache shared by all would have found (None: nothing in the trace repeats). `itl` is of all gaps
    of all requests, `worst_gap` of each request's longest. Times are the client's, network included, of
    requests that got an answer. `policy_errors` is how often each policy failed and was passed over.
    `ttft_cdf` holds points (seconds, share of the offered). `goodput` (rate by goal) and `curve` (rate,
    attainment) are filled in where more rates were tried.
    """

    name: str
    rate: float
    offered: int
    attainment: float
    served: int
    refused: dict[str, int]
    by_class: dict[str, float]
    ttft: Spread
    tpot: Spread
    itl: Spread
    worst_gap: Spread
    e2e: Spread
    cached_tokens: int
    prompt_tokens: int
    hit_share: float | None
    output_tokens_per_s: float
    seconds: float
    attempts: int
    interrupted: bool
    instances: list[Instance]
    ttft_cdf: list[tuple[float, float]]
    policy_errors: dict[str, int] = field(default_factory=dict)
    goodput: dict[str, float] = field(default_factory=dict)
    curve: list[tuple[float, float]] = field(default_factory=list)


def summarize(
    name: str, run: Run, targets: Targets, timing: Timing, roles: Mapping[str, str], ceiling_tokens: int
) -> Summary:
    """The figures of a run. `roles` are the instances' by name, in the order to tell them."""
    lives = run.lives
    ttfts = sorted(life.ttft_s for life in lives if life.ttft_s is not None)
    done = [life for life in lives if life.last_s is not None]
    good: Counter[str] = Counter()
    of_class: Counter[str] = Counter()
    for life in lives:
        slo_class = life.view.slo_class or "none"
        of_class[slo_class] += 1
        good[slo_class] += kept(life, targets.get(life.view.slo_class, NOTHING), timing)
    cached = sum(life.cached_tokens for life in lives)
    gaps = Histogram().merge(run.gaps.values())
    return Summary(
        name=name,
        rate=run.rate,
        offered=run.offered,
        attainment=sum(good.values()) / run.offered if run.offered else 1.0,
        served=len(done),
        refused=dict(Counter(life.refused for life in lives if life.refused).most_common()),
        by_class={name: good[name] / count for name, count in sorted(of_class.items())},
        ttft=spread(ttfts),
        tpot=spread(sorted(d.tpot_s for d in done if d.tpot_s is not None and d.output_tokens > 1)),
        itl=Spread(None, *(gaps.quantile(share) for share in SHARES)),
        worst_gap=spread(sorted(life.worst_gap_s for life in done if life.output_tokens > 1)),
        e2e=spread(sorted(d.last_s - d.view.arrived_s for d in done if d.last_s is not None)),
        cached_tokens=cached,
        prompt_tokens=sum(life.view.prompt_tokens for life in lives),
        hit_share=cached / ceiling_tokens if ceiling_tokens else None,
        output_tokens_per_s=sum(life.output_tokens for life in done) / run.seconds if run.seconds else 0.0,
        seconds=run.seconds,
        attempts=sum(life.attempts for life in lives),
        interrupted=run.interrupted,
        instances=_instances(run, lives, roles),
        ttft_cdf=_cdf(ttfts, run.offered),
        policy_errors={name: times for name, (times, _) in run.policy_errors.items()},
    )


def _instances(run: Run, lives: Sequence[Life], roles: Mapping[str, str]) -> list[Instance]:
    routes = [life.route for life in lives if life.route is not None]
    sent = Counter(end for route in routes for end in (route.prefill, route.decode) if end is not None)
    polls = max(1, run.polls)
    return [
        Instance(
            name=name,
            role=role,
            busy=run.busy_s[name] / run.seconds if run.seconds else 0.0,
            queued=run.queue_s[name] / polls,
            requests=sent[name],
            cached_tokens=run.counters[name].cached_tokens,
            preemptions=run.counters[name].preemptions,
        )
        for name, role in roles.items()
    ]


def spread(ordered: Sequence[float]) -> Spread:
    """Mean and quantiles of figures in order."""
    if not ordered:
        return Spread()
    return Spread(sum(ordered) / len(ordered), *(quantile(ordered, share) for share in SHARES))


def quantile(ordered: Sequence[float], share: float) -> float:
    """The least of some figures (in order, at least one) that `share` of them are not above."""
    at = int(share * len(ordered) - 1e-9)
    return ordered[min(at, len(ordered) - 1)]


def _cdf(ordered: Sequence[float], offered: int) -> list[tuple[float, float]]:
    """Points of a distribution in which those that are missing count as never."""
    n = len(ordered)
    places = sorted({round(i * (n - 1) / (POINTS - 1)) for i in range(POINTS)}) if n else []
    return [(ordered[i], (i + 1) / max(1, offered)) for i in places]
