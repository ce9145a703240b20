"""How a comparison of policies is shown in a terminal, while it is made and when it is done."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich import progress
from rich.console import Console
from rich.table import Table

from orchestrator.analysis.compare import Step
from orchestrator.analysis.report import GOALS, Report, goal_name
from orchestrator.analysis.summary import Summary

PARTS = 1000
"""A run's bar has so many parts."""


class Progress:
    """A bar for each run; nothing where nobody watches."""

    def __init__(self, console: Console) -> None:
        self._bar = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(bar_width=24),
            progress.TaskProgressColumn(),
            progress.TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("reading", total=PARTS)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def step(self, step: Step) -> None:
        """Show how far it is."""
        which = f"{step.policy} ({step.number} of {step.of}): {step.what}"
        self._bar.update(self._task, description=which, completed=int(PARTS * step.share))


def show(report: Report, out: Console) -> None:
    """Print the comparison: what was replayed, a line per policy, what was refused, the instances."""
    out.print(f"simulated: {report.trace}, {report.requests:,} requests at {report.rate:.2f}/s", markup=False)
    out.print(f"  {report.fleet}", markup=False)
    for line in (*report.promises, *report.notes):
        out.print(f"  {line}", markup=False)
    out.print(_policies(report))
    for policy in report.policies:
        if policy.refused:
            told = ", ".join(f"{n:,} {reason}" for reason, n in policy.refused.items())
            out.print(f"{policy.name} refused {told}", markup=False)
        if len(policy.by_class) > 1:
            told = ", ".join(f"{name} {share:.1%}" for name, share in policy.by_class.items())
            out.print(f"{policy.name} kept {told}", markup=False)
    out.print(_instances(report))


def _policies(report: Report) -> Table:
    searched = any(policy.goodput for policy in report.policies)
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("policy", no_wrap=True)
    names = ["kept", *(f"rate at\n{goal:.0%}" for goal in GOALS if searched), "TTFT s\np50", "\np90", "\np99"]
    for name in [*names, "TPOT ms\np50", "\np99", "gaps ms\np99", "hits, of\nceiling"]:
        table.add_column(name, justify="right", no_wrap=True)
    for policy in report.policies:
        table.add_row(policy.name, f"{policy.attainment:.1%}", *_cells(policy, searched))
    return table


def _cells(policy: Summary, searched: bool) -> list[str]:
    goals = [policy.goodput.get(goal_name(goal)) for goal in GOALS if searched]
    hits = policy.cached_tokens / policy.prompt_tokens if policy.prompt_tokens else 0.0
    share = "" if policy.hit_share is None else f" {policy.hit_share:.0%}"
    return [
        *("-" if rate is None else f"{rate:.2f}" for rate in goals),
        *(_figure(t, 1) for t in (policy.ttft.p50_s, policy.ttft.p90_s, policy.ttft.p99_s)),
        *(_figure(t, 1e3) for t in (policy.tpot.p50_s, policy.tpot.p99_s, policy.itl.p99_s)),
        f"{hits:.0%}{share}",
    ]


def _figure(seconds: float | None, unit: float) -> str:
    """Three digits that count, in units of which a second has so many."""
    if seconds is None:
        return "-"
    value = seconds * unit
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:,.0f}"


def _instances(report: Report) -> Table:
    """Busy share and mean queue of each instance, a column per policy."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("busy, waiting", no_wrap=True)
    for policy in report.policies:
        table.add_column(policy.name, justify="right", no_wrap=True)
    for row in zip(*(policy.instances for policy in report.policies), strict=True):
        table.add_row(row[0].name, *(f"{one.busy:.0%} {one.queued:.1f}" for one in row))
    return table
