"""`pdctl replay`: what scheduling policies would have made of recorded traffic, on simulated engines."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.app import DEFAULT_TOPOLOGY, Overrides, TopologyFile, app, err, load_plan, out
from orchestrator.core.duration import parse_duration
from orchestrator.errors import ParamError, Problem, TopologyError
from orchestrator.topology.plan import Plan, RouterPlan
from orchestrator.topology.planner import plan_file

if TYPE_CHECKING:
    from orchestrator.analysis.report import Report
    from orchestrator.analysis.trials import Trials
    from orchestrator.core.slo import SloClass
    from orchestrator.sim.replay.trace import Trace

OWN = "topology"
"""The name of the topology's own scheduling profile among those compared."""

INTERRUPTED = 130


TraceFile = Annotated[
    Path, typer.Option("--trace", metavar="FILE", help="JSONL or CSV of a public format, or a decision log.")
]
Rate = Annotated[
    str, typer.Option("--rate", metavar="xN|N", help="x2: twice as fast; 3.5: at 3.5 requests/s.")
]
Policy = Annotated[
    str, typer.Option("--policy", metavar="A,B", help="Scheduling profiles; `topology` is its own.")
]
First = Annotated[int | None, typer.Option("--first", min=1, help="Only the first N requests.")]
Targets = Annotated[
    str | None,
    typer.Option("--slo", metavar="TARGETS", help="For requests without a class: ttft=1.5s+2x,tpot=40ms."),
]
Mix = Annotated[str | None, typer.Option("--mix", metavar="CLASS=SHARE,..", help="Draw classes: batch=0.4.")]
Quantum = Annotated[
    str | None, typer.Option("--spread", metavar="QUANTUM", help="Spread arrivals of rounded times: 3s.")
]
Goodput = Annotated[
    bool, typer.Option("--goodput/--no-goodput", help="Search the rates kept at 90 and 99 %.")
]
Page = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a page with plots.")]
Figures = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Write all figures; `-`: to stdout.")
]
Seed = Annotated[int, typer.Option("--seed", help="Of everything that is drawn.")]
Latency = Annotated[
    str, typer.Option("--latency", metavar="DURATION", help="One way between router and engines.")
]
Sigma = Annotated[
    float, typer.Option("--noise", min=0.0, max=1.0, help="Sigma of the log-normal factor on each step.")
]


@app.command()
def replay(
    trace: TraceFile,
    topology: TopologyFile = DEFAULT_TOPOLOGY,
    overrides: Overrides = None,
    rate: Rate = "x1",
    policy: Policy = OWN,
    first: First = None,
    slo: Targets = None,
    mix: Mix = None,
    spread: Quantum = None,
    goodput: Goodput = True,
    html: Page = None,
    as_json: Figures = None,
    seed: Seed = 0,
    latency: Latency = "5ms",
    noise: Sigma = 0.0,
) -> None:
    """Replay a trace against the topology's engines, simulated, once for each scheduling policy.

    The scheduler is the router's own; time is virtual. Tells how many of the offered requests would have
    been served within their targets, how long they would have taken, and what each instance would have done.
    """
    # Here and not above: no other command needs any of it.
    from orchestrator.analysis.compare import compare
    from orchestrator.analysis.html import page
    from orchestrator.cli.comparison import Progress, show

    for file in (html, as_json):
        _writable(file)
    plan = load_plan(topology, overrides, ask_versions=False, shown_only=True)
    router = _router(plan)
    offered = _trace(trace, first, spread, mix, router, seed)
    factor = _factor(rate, offered)
    own = _own_profiles(topology, overrides)
    trials = trials_of(plan, router, offered, policy, slo, _seconds("--latency", latency), noise, seed, own)
    with Progress(err) as progress:
        report = compare(trials, factor, goodput=goodput, seed=seed, on_step=progress.step)
    report.notes = (*report.notes, *_notes(trials[0], slo))
    _write(report, page(report) if html is not None else "", html, as_json)
    if str(as_json) != "-":
        show(report, out)
    if report.interrupted:
        raise typer.Exit(INTERRUPTED)


def _trace(
    path: Path, first: int | None, spread: str | None, mix: str | None, router: RouterPlan, seed: int
) -> Trace:
    from orchestrator.sim.replay.loading import load

    trace = load(path)
    if first is not None:
        trace = trace.first(first)
    if spread is not None:
        trace = trace.spread(_seconds("--spread", spread))
    elif (quantum := trace.quantum_s()) is not None:
        hint = f"--spread {quantum:g}s would spread arrivals in between"
        err.print(f"{path}: times are rounded to {quantum:g} s; {hint}", markup=False, style="yellow")
    if mix is not None:
        shares = dict(_shares(mix, router.slo_classes))
        try:
            trace = trace.mixed(shares, Random(seed))
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--mix") from None
    strangers = {e.slo_class for e in trace.entries} - {None, *router.slo_classes}
    if strangers:
        told = ", ".join(sorted(map(str, strangers)))
        entries = [replace(e, slo_class=None) if e.slo_class in strangers else e for e in trace.entries]
        trace = trace.noted(
            entries, f"requests of classes the topology does not have get the default: {told}"
        )
    return trace


def trials_of(
    plan: Plan,
    router: RouterPlan,
    trace: Trace,
    policy: str,
    slo: str | None,
    latency_s: float,
    noise: float,
    seed: int,
    own: Callable[[str], Mapping[str, Any] | None] = lambda name: None,
) -> list[Trials]:
    """One for each of `policy`, on the plan's own engines; `own` finds profiles of the topology's.

    Raises TopologyError.
    """
    from orchestrator.analysis.targets import parse_slo
    from orchestrator.analysis.trials import Trials
    from orchestrator.sim.replay.planned import fleet_of
    from orchestrator.sim.replay.requests import Requests
    from orchestrator.sim.replay.schedulers import Recipe, class_data
    from orchestrator.topology.slo import slo_classes

    default = router.default_class
    if slo is not None:
        asked = parse_slo(slo)
        default = asked.name
        router = replace(router, slo_classes={**router.slo_classes, asked.name: class_data(asked)})
    requests = Requests(trace, seed=plan.seed, default_class=default)
    fleet = fleet_of(plan, requests.engine_block_tokens, latency_s=latency_s, noise=noise)
    requests.model = fleet.models[0]
    used = {e.slo_class or default for e in trace.entries}
    targets: Mapping[str | None, SloClass] = {
        name: c for name, c in slo_classes(router).items() if name in used
    }
    timing = min((u.config.timing for u in fleet.units), key=lambda timing: timing.cold_s(2048))
    names = list(dict.fromkeys(name.strip() for name in policy.split(",") if name.strip())) or [OWN]
    trials = []
    for name in names:
        profile: str | Mapping[str, Any] = router.scheduling if name == OWN else own(name) or name
        recipe = Recipe(profile, router, router.predictor, seed=seed, base_dir=plan.base_dir)
        try:
            recipe.make(requests.block_tokens)
        except ParamError as error:
            raise _said_of(error, f"--policy {name}") from None
        trials.append(Trials(name, recipe, requests, fleet, targets, timing=timing, seed=seed))
    return trials


def _own_profiles(topology: Path, overrides: list[str] | None) -> Callable[[str], Mapping[str, Any] | None]:
    """Finds what a plan of the topology would make of a profile's name: one of its own, or a shipped one."""

    def find(name: str) -> Mapping[str, Any] | None:
        try:
            chosen = [*(overrides or ()), f"scheduling.profile={name}"]
            plan = plan_file(topology, chosen, environ=os.environ, shown_only=True)
        except TopologyError:
            return None  # whoever builds it says what is wrong, and which names there are
        return None if plan.router is None else plan.router.scheduling

    return find


def _said_of(error: ParamError, what: str) -> TopologyError:
    return TopologyError([replace(p, field=what) if not p.file else p for p in error.problems])


def _notes(one: Trials, slo: str | None) -> Iterable[str]:
    if not one.targets:
        yield (
            "nothing is promised, so that a request is kept if it is answered: give --slo, or the topology "
            "scheduling.default_class"
        )
    longest = {u.endpoint.max_model_len for u in one.fleet.units} - {None}
    most = max(e.prompt_tokens + e.output_tokens for e in one.requests.trace.entries)
    if longest and most > min(n for n in longest if n is not None):
        yield f"the longest request has {most:,} tokens, more than max_model_len of some instance"


def _router(plan: Plan) -> RouterPlan:
    if plan.router is None or plan.router.kind != "pdctl":
        kind = "none" if plan.router is None else plan.router.kind
        hint = "a replay runs pdctl's own scheduler: --set router.kind=pdctl"
        raise TopologyError([Problem(f"is {kind!r}", file=plan.file, field="router.kind", hint=hint)])
    return plan.router


def _factor(rate: str, trace: Trace) -> float:
    match = re.fullmatch(r"(x?)([0-9]+(?:\.[0-9]+)?|\.[0-9]+)", rate.strip())
    value = float(match[2]) if match else 0.0
    if match is None or value <= 0:
        message = f"{rate!r} is neither a factor such as x2 nor requests a second such as 3.5"
        raise typer.BadParameter(message, param_hint="--rate")
    return value if match[1] or trace.seconds == 0 else value / trace.rate


def _seconds(option: str, text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def _shares(mix: str, classes: Mapping[str, Any]) -> Iterable[tuple[str, float]]:
    for part in mix.split(","):
        name, _, share = part.partition("=")
        if name.strip() not in classes:
            known = ", ".join(classes) or "none"
            message = f"there is no SLO class {name.strip()!r}; known: {known}"
            raise typer.BadParameter(message, param_hint="--mix")
        try:
            yield name.strip(), float(share)
        except ValueError:
            raise typer.BadParameter(f"{part!r} is not CLASS=SHARE", param_hint="--mix") from None


def _writable(file: Path | None) -> None:
    """Found out before the work is done."""
    if file is not None and str(file) != "-" and not file.absolute().parent.is_dir():
        raise typer.BadParameter(f"there is no folder {str(file.absolute().parent)!r}")


def _write(report: Report, page: str, html: Path | None, as_json: Path | None) -> None:
    written: Sequence[tuple[Path | None, str]] = ((html, page), (as_json, report.as_json()))
    for file, text in written:
        if file is None:
            continue
        if str(file) == "-":
            typer.echo(text, nl=False)
            continue
        try:
            file.write_text(text, encoding="utf-8")
        except OSError as error:
            raise TopologyError([Problem(f"cannot be written: {error.strerror}", file=str(file))]) from error
        err.print(f"wrote {file}", markup=False)
