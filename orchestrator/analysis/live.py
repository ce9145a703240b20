"""A live run beside its replays: the same figures of both, and how far they are apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

from orchestrator.analysis.records import Record
from orchestrator.analysis.summary import Spread, Summary

QUANTILES = ("mean", "p50", "p90", "p99")


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of both; None where nothing was measured. A `share` is told in per cent.

    `replays` are those of several replays that differ by chance alone: what happens to one request changes
    what happens to all after it, so that a single run says less than their mean and how far they lie apart.
    """

    name: str
    unit: str
    live: float | None
    replays: tuple[float, ...]

    @property
    def replay(self) -> float | None:
        """The mean of the replays."""
        return sum(self.replays) / len(self.replays) if self.replays else None

    @property
    def difference(self) -> float | None:
        """Live less replay; of a share, in points."""
        replay = self.replay
        if self.live is None or replay is None:
            return None
        return (self.live - replay) * (100.0 if self.unit == "share" else 1.0)

    @property
    def percent(self) -> float | None:
        """The difference as a percentage of the replay's figure."""
        replay = self.replay
        if self.live is None or not replay:
            return None
        return 100.0 * (self.live - replay) / replay


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


def figures(live: Summary, replays: Sequence[Summary]) -> list[Figure]:
    """What they are compared by: attainment of the offered requests first."""

    def figure(name: str, unit: str, of: Callable[[Summary], float | None]) -> Figure:
        others = tuple(value for run in replays if (value := of(run)) is not None)
        return Figure(name, unit, of(live), others)

    return [
        figure("attainment", "share", lambda run: run.attainment),
        figure("answered", "requests", lambda run: run.served),
        figure("refused", "requests", lambda run: sum(run.refused.values())),
        *(
            figure(f"{name.upper()} {which}", "s", partial(_time_s, name=name, which=which))
            for name in ("ttft", "tpot")
            for which in QUANTILES
        ),
        figure("gap p99", "s", lambda run: run.itl.p99_s),
        figure("tokens found cached", "tokens", lambda run: run.cached_tokens),
    ]


def _time_s(run: Summary, name: str, which: str) -> float | None:
    told: Spread = getattr(run, name)
    seconds: float | None = getattr(told, f"{which}_s")
    return seconds


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
    spread = ""
    if len(figure.replays) > 1:
        spread = f"{cell(min(figure.replays))} to {cell(max(figure.replays))}"
    return (
        f"{name:20}{cell(figure.live):>10}{cell(figure.replay):>10}{spread:>20}{told:>14}{share:>10}".rstrip()
    )


HEAD = f"{'':20}{'live':>10}{'replay':>10}{'its spread':>20}{'live - replay':>14}"


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
