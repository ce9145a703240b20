"""A comparison as one HTML page that needs nothing else: tables, and plots drawn in SVG."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from orchestrator.analysis.report import GOALS, Report, goal_name, time
from orchestrator.analysis.summary import Spread, Summary
from orchestrator.analysis.svg import Axis, Line, bar, colour, plot

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1b; --dim: #666; --rule: #ddd; --page: #fff; --row: #f6f6f6 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e8e8; --dim: #9a9a9a; --rule: #3a3a3a; --page: #161616; --row: #202020 } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); margin: 2rem auto;
  max-width: 72rem; padding: 0 1rem }
h1 { font-size: 1.4rem } h2 { font-size: 1.1rem; margin-top: 2.2rem }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
th, td { padding: .25rem .6rem; text-align: right; border-bottom: 1px solid var(--rule); white-space: nowrap }
th:first-child, td:first-child, td.words { text-align: left } td.words { white-space: normal }
tbody tr:nth-child(even) { background: var(--row) } .scroll { overflow-x: auto }
.dim { color: var(--dim) } .dot { display: inline-block; width: .7em; height: .7em; border-radius: 50%;
  margin-right: .5em }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(26rem, 1fr)); gap: 1.5rem }
svg { width: 100%; height: auto } svg text { fill: var(--dim); font-size: 12px } .grid { stroke: var(--rule) }
.line { fill: none; stroke-width: 2 } .mark { stroke: var(--dim); stroke-dasharray: 4 4 }
.bar { width: 7rem; height: .7rem } .back { fill: var(--rule) }
"""


def page(report: Report) -> str:
    """The whole page."""
    title = f"Replay of {report.trace}"
    notes = "".join(f"<li>{escape(note)}</li>" for note in report.notes)
    promises = "".join(f"<li>{escape(promise)}</li>" for promise in report.promises)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<style>{_STYLE}</style></head><body>"
        f"<h1>{escape(title)}</h1>"
        f"<p><strong>All figures are simulated</strong>: {report.requests:,} requests at {report.rate:.2f} a "
        f"second, {escape(report.fleet)}; seed {report.seed}. Shares are of the requests that were offered: "
        "one that was refused is one that was missed.</p>"
        f"<ul>{promises}{notes}</ul>"
        f"<h2>Policies</h2>{_policies(report.policies)}{_plots(report)}"
        f"<h2>Instances</h2>{_instances(report.policies)}</body></html>\n"
    )


def _policies(policies: Sequence[Summary]) -> str:
    searched = any(policy.goodput for policy in policies)
    head = [
        "policy", "attainment", *(f"goodput at {goal:.0%}" for goal in GOALS if searched),
        "TTFT p50", "p90", "p99", "TPOT p50", "p99", "gaps p50", "p99", "hits", "of ceiling", "refused",
    ]  # fmt: skip
    rows = []
    for index, policy in enumerate(policies):
        refused = ", ".join(f"{n:,} {reason}" for reason, n in policy.refused.items()) or "-"
        hits = policy.cached_tokens / policy.prompt_tokens if policy.prompt_tokens else 0.0
        cells = [
            _name(index, policy),
            f"{policy.attainment:.1%}",
            *(_rate(policy.goodput.get(goal_name(goal))) for goal in GOALS if searched),
            *_times(policy.ttft, 3),
            *(time(policy.tpot.p50_s), time(policy.tpot.p99_s)),
            *(time(policy.itl.p50_s), time(policy.itl.p99_s)),
            f"{hits:.1%}",
            "-" if policy.hit_share is None else f"{policy.hit_share:.0%}",
            escape(refused),
        ]
        rows.append(cells)
    return _table(head, rows)


def _plots(report: Report) -> str:
    plots = []
    curves = [Line(p.name, p.curve) for p in report.policies]
    if any(len(line.points) > 1 for line in curves):
        most = max(rate for line in curves for rate, _ in line.points)
        least = min(rate for line in curves for rate, _ in line.points)
        x = Axis("requests a second", max(least, most / 1000), most, log=most > 8 * least)
        y = Axis("share of offered requests kept", 0.0, 1.0, form="{:.0%}".format)
        plots.append(_figure("Goodput: attainment by rate", plot("Attainment by rate", curves, x, y, GOALS)))
    cdfs = [Line(p.name, p.ttft_cdf) for p in report.policies]
    every = [seconds for line in cdfs for seconds, _ in line.points]
    if every and max(every) > 0:
        low, high = max(min(every), max(every) / 1e5), max(every)
        x = Axis("time to first token", low, high, log=high > 3 * low, form=time)
        y = Axis("share of offered requests", 0.0, 1.0, form="{:.0%}".format)
        plots.append(_figure("Time to first token", plot("Time to first token", cdfs, x, y)))
    return f'<div class="plots">{"".join(plots)}</div>' if plots else ""


def _figure(title: str, drawn: str) -> str:
    return f"<figure><h2>{escape(title)}</h2>{drawn}</figure>"


def _instances(policies: Sequence[Summary]) -> str:
    rows = []
    for index, policy in enumerate(policies):
        for one in policy.instances:
            rows.append(
                [
                    _name(index, policy),
                    f"{escape(one.name)}",
                    bar(one.busy, index, f"{one.name} computes {one.busy:.0%} of the time"),
                    f"{one.busy:.0%}",
                    f"{one.queued:.1f}",
                    f"{one.requests:,}",
                    f"{one.cached_tokens:,}",
                    f"{one.preemptions:,}",
                ]
            )
    head = ["policy", "instance", "busy", "", "waiting (mean)", "requests", "cached tokens", "preemptions"]
    return _table(head, rows)


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    names = "".join(f"<th>{escape(name)}</th>" for name in head)
    return f'<div class="scroll"><table><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table></div>'


def _name(index: int, policy: Summary) -> str:
    dim = ' <span class="dim">(interrupted)</span>' if policy.interrupted else ""
    return f'<span class="dot" style="background:{colour(index)}"></span>{escape(policy.name)}{dim}'


def _times(spread: Spread, count: int) -> list[str]:
    return [time(t) for t in (spread.p50_s, spread.p90_s, spread.p99_s)][:count]


def _rate(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.2f}/s"
