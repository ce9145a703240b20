"""A live run beside its replay: the same figures of both, and how far they are apart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

from orchestrator.analysis.records import Record
from orchestrator.analysis.summary import Spread, Summary

QUANTILES = ("mean", "p50", "p90", "p99")


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of both runs; None where nothing was measured. A `share` is told in per cent."""

    name: str
    unit: str
    live: float | None
    replay: float | None

    @property
    def difference(self) -> float | None:
        """Live less replay; of a share, in points."""
        if self.live is None or self.replay is None:
            return None
        return (self.live - self.replay) * (100.0 if self.unit == "share" else 1.0)

    @property
    def percent(self) -> float | None:
        """The difference as a percentage of the replay's figure."""
        if self.live is None or not self.replay:
            return None
        return 100.0 * (self.live - self.replay) / self.replay


@dataclass(frozen=True, slots=True)
class Machine:
    """What the run cost: cores used on average by the client, the router and all engines together; the load
    average before it began; 99 % of the client's requests, its wake-ups and the router's came no later."""

    cores: int
    load_before: float
    client_cores: float
    router_cores: float | None
    engine_cores: float | None
    sent_late_p99_s: float
    client_lag_p99_s: float
    router_lag_p99_s: float | None


def figures(live: Summary, replay: Summary) -> list[Figure]:
    """What the two are compared by: attainment of the offered requests first."""
    found = [
        Figure("attainment", "share", live.attainment, replay.attainment),
        Figure("answered", "requests", live.served, replay.served),
        Figure("refused", "requests", sum(live.refused.values()), sum(replay.refused.values())),
    ]
    for name in ("ttft", "tpot"):
        for quantile in QUANTILES:
            one, other = (getattr(getattr(run, name), f"{quantile}_s") for run in (live, replay))
            found.append(Figure(f"{name.upper()} {quantile}", "s", one, other))
    found.append(Figure("gap p99", "s", live.itl.p99_s, replay.itl.p99_s))
    found.append(Figure("tokens found cached", "tokens", live.cached_tokens, replay.cached_tokens))
    return found


def slowed(summary: Summary, factor: float) -> Summary:
    """A run of engines that are `factor` times as fast, told in the time of the engines themselves."""
    scaled: dict[str, Any] = {
        f.name: Spread(*(None if s is None else s * factor for s in _values(getattr(summary, f.name))))
        for f in fields(Summary)
        if isinstance(getattr(summary, f.name), Spread)
    }
    scaled |= {
        "rate": summary.rate / factor,
        "seconds": summary.seconds * factor,
        "output_tokens_per_s": summary.output_tokens_per_s / factor,
        "ttft_cdf": [(s * factor, share) for s, share in summary.ttft_cdf],
    }
    return replace(summary, **scaled)


def _values(spread: Spread) -> Iterator[float | None]:
    return (getattr(spread, f.name) for f in fields(Spread))


@dataclass(frozen=True, slots=True)
class Cached:
    """Tokens that the router predicted to be cached when it decided, and what engines reported of them.

    `exact` requests had just what was predicted, out of `requests` that were answered and recorded.
    """

    requests: int = 0
    exact: int = 0
    predicted_tokens: int = 0
    reported_tokens: int = 0


def cached(records: Iterable[Record]) -> Cached:
    """How well the router knew its engines' caches, from its decision log."""
    told = [
        (record["predicted"]["cached_tokens"], record["cached_tokens"])
        for record in records
        if record.get("predicted") and record.get("cached_tokens") is not None
    ]
    return Cached(
        requests=len(told),
        exact=sum(predicted == reported for predicted, reported in told),
        predicted_tokens=sum(predicted for predicted, _ in told),
        reported_tokens=sum(reported for _, reported in told),
    )


def row(figure: Figure) -> str:
    """One line of the table."""
    apart, percent = figure.difference, figure.percent
    unit = " points" if figure.unit == "share" else ""
    decimals = 0 if figure.unit in ("requests", "tokens") else 1 if figure.unit == "share" else 4
    if figure.unit == "s" and figure.name.startswith("TTFT"):
        decimals = 3

    def cell(value: float | None) -> str:
        if value is None:
            return "-"
        return f"{value:.1%}" if figure.unit == "share" else f"{value:,.{decimals}f}"

    told = "-" if apart is None else f"{apart:+,.{decimals}f}{unit}"
    name = f"{figure.name}, s" if figure.unit == "s" else figure.name
    share = "" if percent is None else f"{percent:+.1f} %"
    return f"{name:22}{cell(figure.live):>12}{cell(figure.replay):>12}{told:>14}{share:>9}"


def machine_lines(m: Machine) -> Iterator[str]:
    """How loaded the machine was, and by whom."""
    parts = [("client", m.client_cores), ("router", m.router_cores), ("engines", m.engine_cores)]
    used = ", ".join(f"{name} {cores:.2f}" for name, cores in parts if cores is not None)
    yield f"{m.cores} cores, load average {m.load_before:.1f} before; cores used: {used}"
    lag = "" if m.router_lag_p99_s is None else f", the router's loop {m.router_lag_p99_s * 1e3:g} ms"
    yield (
        f"late at P99, in real time: requests sent {m.sent_late_p99_s * 1e3:.1f} ms, the client's loop "
        f"{m.client_lag_p99_s * 1e3:.1f} ms{lag}"
    )
