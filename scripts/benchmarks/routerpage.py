"""The page of `bench router`: tables of what was measured, and pdctl's ratios to the best of the peers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks import charts
from benchmarks.figures import Spread, digits, ratios
from benchmarks.machine import Machine
from benchmarks.report import Report, Table

DIRECT = "(engine itself)"
OWN = "pdctl"
LIMIT = "nginx"
MODES = ("regular", "PD")
PER_CHUNK = "64 streams"
THROUGHPUT = "1 KB"
CPU_LOADS = ("1 KB", "32 KB", "1 MB", PER_CHUNK)
LATENCY_LOADS = ("one at a time", "50 a second")

DRAWN = (("1 KB", "request", "us per request of 1 KB"), (PER_CHUNK, "chunk", "us per chunk"))
"""Load, per what, and the picture's unit."""

TARGETS = (
    ("1 KB", "CPU per PD request", "peer", 0.5),
    ("32 KB", "CPU per PD request", "peer", 0.5),
    (PER_CHUNK, "CPU per chunk", "peer", 0.85),
    (PER_CHUNK, "CPU per chunk", LIMIT, 1.4),
)
"""Load, what, against whom, and the ratio that is aimed at."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One load on one router in one round: CPU microseconds per request or chunk, milliseconds of latency,
    requests per second, and how many failed."""

    mode: str
    round: int
    router: str
    load: str
    cpu_us: float
    p50_ms: float
    p99_ms: float
    per_s: float
    failed: int

    def line(self) -> str:
        """As it is told while the benchmark runs."""
        return (
            f"{self.mode} round {self.round + 1}: {self.router}, {self.load}: {self.cpu_us:.1f} us, "
            f"p50 {self.p50_ms:.3f} ms, {self.per_s:,.0f}/s, {self.failed} failed"
        )


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident MiB of a router's processes when all its loads were over."""

    mode: str
    router: str
    rss_mib: float


Values = Mapping[tuple[str, str, str], list[Sample]]


def grouped(samples: Sequence[Sample]) -> dict[tuple[str, str, str], list[Sample]]:
    """By mode, load and router, in the order of rounds."""
    found: dict[tuple[str, str, str], list[Sample]] = {}
    for sample in sorted(samples, key=lambda sample: sample.round):
        found.setdefault((sample.mode, sample.load, sample.router), []).append(sample)
    return found


def _routers(samples: Sequence[Sample], mode: str) -> list[str]:
    return list(dict.fromkeys(s.router for s in samples if s.mode == mode and s.router != DIRECT))


def _cells(
    values: Values, mode: str, router: str, loads: Sequence[str], of: Callable[[Sample], float]
) -> list[str]:
    found = []
    for load in loads:
        taken = values.get((mode, load, router))
        found.append(Spread.of(map(of, taken)).text() if taken else "")
    return found


def added_ms(values: Values, mode: str, load: str, router: str) -> Spread | None:
    """What a router adds to the median latency of the engine, round by round; None if it was not measured."""
    through, direct = (values.get((mode, load, name)) for name in (router, DIRECT))
    if not through or not direct:
        return None
    return Spread.of(a.p50_ms - b.p50_ms for a, b in zip(through, direct, strict=True))


def best_peer(values: Values, mode: str, load: str, of: Callable[[Sample], float]) -> str | None:
    """The peer with the least median, nginx left out: it knows no engines."""
    medians = {
        router: Spread.of(map(of, taken)).median
        for (m, name, router), taken in values.items()
        if m == mode and name == load and not router.startswith((OWN, DIRECT, LIMIT))
    }
    return min(medians, key=lambda router: medians[router]) if medians else None


def tables(samples: Sequence[Sample], memory: Sequence[Memory]) -> list[Table]:
    """CPU, latency, and throughput with memory, of each mode."""
    values = grouped(samples)
    made = []
    for mode in dict.fromkeys(sample.mode for sample in samples):
        routers = _routers(samples, mode)
        cpu = [[r, *_cells(values, mode, r, CPU_LOADS, lambda s: s.cpu_us)] for r in routers]
        title = f"{mode}: CPU, microseconds per request or chunk"
        made.append(Table(title, ("router", *CPU_LOADS[:-1], "chunk"), cpu))
        latency = []
        for router in routers:
            cells = []
            for load in LATENCY_LOADS:
                added = added_ms(values, mode, load, router)
                taken = values.get((mode, load, router))
                cells.append(added.text() if added else "")
                cells.append(Spread.of(s.p99_ms for s in taken).text() if taken else "")
            latency.append([router, *cells])
        head = ("router", "added p50, one at a time", "p99", "added p50, 50 a second", "p99")
        made.append(Table(f"{mode}: latency, milliseconds", head, latency))
        resident = {each.router: digits(each.rss_mib) for each in memory if each.mode == mode}
        rest = [
            [
                router,
                *_cells(values, mode, router, (THROUGHPUT,), lambda s: s.per_s),
                resident.get(router, ""),
            ]
            for router in routers
        ]
        title = f"{mode}: throughput and memory"
        made.append(Table(title, ("router", "requests per second", "RSS, MiB"), rest))
    return made


def against(samples: Sequence[Sample]) -> Table:
    """Each form of pdctl against the targets, in PD mode, as ratios within the same rounds."""
    values = grouped(samples)
    rows = []
    for own in (r for r in _routers(samples, "PD") if r.startswith(OWN)):
        for load, what, whom, aim in TARGETS:
            other = best_peer(values, "PD", load, lambda s: s.cpu_us) if whom == "peer" else LIMIT
            ours, theirs = values.get(("PD", load, own)), values.get(("PD", load, other or ""))
            if ours and theirs:
                ratio = ratios([s.cpu_us for s in ours], [s.cpu_us for s in theirs])
                met = "met" if ratio.median <= aim else "missed"
                rows.append([own, f"{what}, {load}", str(other), ratio.text(), f"{aim:g}", met])
        load = LATENCY_LOADS[0]
        other = best_peer(values, "PD", load, lambda s: s.p50_ms)
        mine, its = added_ms(values, "PD", load, own), added_ms(values, "PD", load, other or "")
        if mine and its:
            ratio = ratios(mine.values, its.values)
            met = "met" if mine.median <= its.median else "missed"
            rows.append([own, f"added p50, {load}", str(other), ratio.text(), "1", met])
    head = ("", "figure", "best other", "ratio", "aim", "")
    return Table("pdctl against its targets (PD)", head, rows, "Ratios of the same rounds; less is better.")


def pictures(samples: Sequence[Sample]) -> dict[str, str]:
    """Bars of CPU per request and per chunk, of each mode."""
    values, drawn = grouped(samples), {}
    for mode in dict.fromkeys(sample.mode for sample in samples):
        for load, what, unit in (
            ("1 KB", "request", "us per request of 1 KB"),
            (PER_CHUNK, "chunk", "us per chunk"),
        ):
            rows = {
                router: Spread.of(s.cpu_us for s in taken)
                for router in _routers(samples, mode)
                if (taken := values.get((mode, load, router)))
            }
            if rows:
                drawn[f"{mode.lower()}-{what}"] = charts.bars(f"{mode}: CPU per {what}", rows, unit)
    return drawn


def notes(missing: Sequence[str]) -> list[str]:
    """What the figures are, and what is missing."""
    told = [
        "Mock engines written in C (2 unified; 2 prefill and 2 decode) and a load generator in C, all on one "
        "machine with the router. CPU is that of all the router's threads, from schedstat, what it burns "
        "idle left out. Figures are the median of the rounds with the least and most; rounds go in turn, and "
        "absolute figures move with the machine: compare within one run.",
        "pdctl runs with everything on: the default (SLO) profile, predictor, queue, prefix index, "
        "histograms, full decision log, client keys. The peers run round robin, the cheapest policy they "
        "have, and log warnings only. nginx passes bytes to the decode engines and knows nothing of "
        "prefill: the floor.",
        "Loads: 1 KB and 32 KB with 16 at a time, 1 MB with 4, 64 streams of 500 chunks 10 ms apart; latency "
        "is what a router adds to the median of asking the engine itself.",
    ]
    if missing:
        told.append("Not measured: " + "; ".join(missing) + ".")
    return told


def report(
    samples: Sequence[Sample],
    memory: Sequence[Memory],
    missing: Sequence[str],
    machine: Machine,
    loads: Sequence[Mapping[str, Any]],
) -> Report:
    """The page."""
    data = {
        "loads": list(loads), "samples": [asdict(s) for s in samples], "memory": [asdict(m) for m in memory],
        "missing": list(missing),
    }  # fmt: skip
    title, command = "Routers side by side", "scripts/bench router --write"
    shown = [against(samples), *tables(samples, memory)]
    return Report("router", title, command, machine, notes(missing), shown, data, pictures(samples))
