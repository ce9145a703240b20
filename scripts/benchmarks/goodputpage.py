"""The page of `bench goodput`: attainment by rate, the rates at 90 and 99 %, and what overload leaves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks import charts
from benchmarks.figures import crossing
from benchmarks.machine import Machine
from benchmarks.report import Report, Table
from orchestrator.analysis.svg import Axis, Line
from orchestrator.core.slo import SloClass
from orchestrator.sim.replay.life import Life
from orchestrator.sim.timing import QWEN3_32B_TP2, Timing

LATE = "late"
"""Of requests that were answered whole, but not within their targets."""


@dataclass(frozen=True, slots=True)
class Rank:
    """The requests a second that an immediate profile keeps at 90 % in replay."""

    profile: str
    rate: float


@dataclass(frozen=True, slots=True)
class Point:
    """One live run. `rate` is in requests a second of the engines' time, `refused` counts what was missed by
    reason; how late the client was, and how long it took, are real seconds."""

    name: str
    engine: str
    own: bool
    rate: float
    offered: int
    attainment: float
    refused: Mapping[str, int]
    sent_late_p99_s: float
    woke_late_p99_s: float
    seconds: float

    def line(self) -> str:
        """As it is told while the benchmark runs."""
        missed = ", ".join(f"{count} {reason}" for reason, count in self.refused.items())
        return f"{self.name} at {self.rate:.2f}/s: {self.attainment:.1%} kept ({missed or 'none missed'})"


def judged(
    lives: Iterable[Life], offered: int, slo: SloClass, speed: float, timing: Timing = QWEN3_32B_TP2
) -> tuple[float, dict[str, int]]:
    """The share of the offered requests that met `slo`, and why the others did not.

    Times of the lives are real; engines were `speed` times as fast as `timing`.
    """
    missed: Counter[str] = Counter()
    good = 0
    for life in lives:
        if life.ttft_s is None or life.tpot_s is None or life.refused:
            missed[life.refused or "unanswered"] += 1
            continue
        bound_s = slo.ttft.bound_s(timing.cold_s(life.view.prompt_tokens)) if slo.ttft else float("inf")
        gap_s = slo.tpot.seconds if slo.tpot else float("inf")
        if life.ttft_s * speed <= bound_s and life.tpot_s * speed <= gap_s:
            good += 1
        else:
            missed[LATE] += 1
    return good / offered if offered else 1.0, dict(missed.most_common())


def curve(points: Sequence[Point], name: str) -> list[tuple[float, float]]:
    """Rate and attainment of one router's runs."""
    return sorted((point.rate, point.attainment) for point in points if point.name == name)


def _rate(found: float | None, points: Sequence[tuple[float, float]]) -> str:
    if found is None:
        return f"< {points[0][0]:.2f}"
    return f">= {found:.2f}" if found == points[-1][0] else f"{found:.2f}"


def tables(points: Sequence[Point], ranks: Sequence[Rank], twice: float | None) -> list[Table]:
    """The rates kept, the whole curve, and the replays that chose the policies."""
    names = list(dict.fromkeys(point.name for point in points))
    summary, whole = [], []
    rates = sorted({point.rate for point in points})
    for name in names:
        taken = curve(points, name)
        kept = dict(taken)
        at_twice = f"{kept[twice]:.1%}" if twice in kept else ""
        rates_kept = [_rate(crossing(taken, share), taken) for share in (0.9, 0.99)]
        summary.append([name, *rates_kept, at_twice])
        whole.append([name, *(f"{kept[rate]:.1%}" if rate in kept else "" for rate in rates)])
    overload = f"kept at {twice:.2f}/s" if twice else "kept at twice the best peer's"
    note = "On straight lines between the rates that were run; `<`, `>=`: beyond them."
    return [
        Table("Goodput, requests per second", ("router", "at 90 %", "at 99 %", overload), summary, note),
        Table("Kept, by rate", ("router", *(f"{rate:.2f}/s" for rate in rates)), whole),
        Table(
            "Immediate profiles in replay",
            ("profile", "at 90 %, requests per second"),
            [[one.profile, f"{one.rate:.2f}"] for one in ranks],
            "What chose the policies, and the rates: the peers' policies follow the rules of profiles here.",
        ),
    ]


def notes(about: Mapping[str, Any], failed: Iterable[str], points: Sequence[Point]) -> list[str]:
    """How it was run, and what is missing."""
    form = "compiled" if about["compiled"] else "interpreted"
    late = max((point.sent_late_p99_s for point in points), default=0.0)
    told = [
        f"{about['requests']} requests of {about['trace']}, played over HTTP at each rate to "
        f"{about['prefill']} prefill and {about['decode']} decode engines, simulated, {about['speed']:g} "
        "times as fast as real ones; rates and targets are in the engines' own time. Each router has engines "
        f"of the dialect it routes to, with the same timing, fresh for every run. pdctl is {form}.",
        f"A request is kept if the client measured {about['slo']} (`x`: its own cold prefill); the share is "
        "of all requests offered, refused ones included. The client sent requests up to "
        f"{late * 1000:.0f} ms late (P99, real time, of the worst run).",
    ]
    if about["short"]:
        told.append(
            "The short form: few requests, from cold caches, so that a request or two is a percent. The full "
            "matrix is `scripts/bench goodput --trace FILE --write`, over night."
        )
    missing = list(failed)
    if missing:
        told.append("Not run: " + "; ".join(missing) + ".")
    return told


def report(
    points: Sequence[Point],
    ranks: Sequence[Rank],
    twice: float | None,
    failed: Iterable[str],
    about: Mapping[str, Any],
    machine: Machine,
) -> Report:
    """The page."""
    names = list(dict.fromkeys(point.name for point in points))
    twice = None if twice is None else round(twice, 3)
    missing = list(failed)
    data = {
        "about": dict(about), "points": [asdict(p) for p in points], "replays": [asdict(r) for r in ranks],
        "twice_the_best_peer": twice, "failed": missing,
    }  # fmt: skip
    pictures = {}
    if points:
        lines = [Line(name, curve(points, name)) for name in names]
        x = Axis("requests per second, engines' time", 0.0, max(point.rate for point in points))
        y = Axis("kept, of the offered", 0.0, 1.0, form="{:.0%}".format)
        pictures["curve"] = charts.curves("Goodput", lines, x, y, (0.9, 0.99))
    short = " --short" if about["short"] else ""
    only = "".join(f" --router '{name}'" for name in about["routers"])
    command = f"scripts/bench goodput{short} --trace FILE --first {about['requests']}{only} --write"
    title = "Requests served within their targets, live"
    told, shown = notes(about, missing, points), tables(points, ranks, twice)
    return Report("goodput", title, command, machine, told, shown, data, pictures)
