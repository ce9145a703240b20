"""Runs a comparison: each policy at the rate asked for, then at as many rates as its goodput needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from orchestrator.analysis.report import GOALS, Report, goal_name, in_words
from orchestrator.analysis.summary import summarize
from orchestrator.analysis.trials import Trials
from orchestrator.core.types import Role
from orchestrator.sim.replay.fleet import Fleet
from orchestrator.sim.replay.trace import ceiling

CURVE = (0.5, 0.75, 1.0, 1.5, 2.0)
"""Rates that a goodput curve has points at, as multiples of the policy's own goodput at the first goal."""


@dataclass(frozen=True, slots=True)
class Step:
    """Where a comparison is: the policy, what is being found out, and the share of that run that is done."""

    policy: str
    number: int
    of: int
    what: str
    share: float


def compare(
    trials: Sequence[Trials],
    factor: float,
    *,
    goodput: bool = True,
    seed: int = 0,
    on_step: Callable[[Step], None] | None = None,
    on_done: Callable[[Report], None] | None = None,
) -> Report:
    """Each of `trials` at `factor` times the trace's rate; with `goodput` at others too.

    A KeyboardInterrupt ends it with what there is: the policy that was being replayed is told as far as it
    got, the others are left out. `on_done` is told each time a policy has more figures.
    """
    one = trials[0]
    trace = one.requests.trace
    report = Report(
        trace=trace.name,
        requests=len(trace.entries),
        rate=trace.rate * factor,
        fleet=fleet_in_words(one.fleet),
        promises=in_words(one.targets),
        notes=(*trace.notes, *([f"time divided by {factor:g}"] if factor != 1.0 else [])),
        seed=seed,
    )
    most, _ = ceiling(trace.entries, trace.block_tokens) if trace.block_tokens else (0, 0)
    try:
        for number, each in enumerate(trials, 1):
            _policy(report, each, factor, most, _Teller(on_step, each.name, number, len(trials)))
            if on_done is not None:
                on_done(report)
            if report.policies[-1].interrupted:
                raise KeyboardInterrupt
        if goodput:
            for number, each in enumerate(trials, 1):
                _goodput(report, each, number - 1, _Teller(on_step, each.name, number, len(trials)))
                if on_done is not None:
                    on_done(report)
    except KeyboardInterrupt:
        report.interrupted = True
        report.notes = (*report.notes, "interrupted: not every policy has all its figures")
    return report


class _Teller:
    """Tells how far a policy is."""

    def __init__(self, on_step: Callable[[Step], None] | None, policy: str, number: int, of: int) -> None:
        self._on_step = on_step
        self._where = (policy, number, of)

    def __call__(self, what: str, share: float) -> None:
        if self._on_step is not None:
            self._on_step(Step(*self._where, what, share))


def _policy(report: Report, one: Trials, factor: float, most: int, tell: _Teller) -> None:
    count = max(1, len(one.requests.trace.entries))
    run = one.run(factor, progress=lambda arrived, _: tell(f"{report.rate:.2f} requests/s", arrived / count))
    roles = {unit.name: str(unit.endpoint.role) for unit in one.fleet.units}
    summary = summarize(one.name, run, one.targets, one.timing, roles, most if not run.interrupted else 0)
    report.policies.append(summary)
    for times, said in run.policy_errors.values():
        report.notes = (*report.notes, f"{one.name}: failed {times:,} times and was passed over: {said}")
    if not run.stopped:
        one.curve.attained(report.rate, summary.attainment)


def _goodput(report: Report, one: Trials, index: int, tell: _Teller) -> None:
    """Search the highest rate for each goal, and fill in the curve around the first."""
    summary = report.policies[index]
    start = report.rate
    for goal in GOALS:
        one.on_rate = lambda rate, share, goal=goal: tell(f"goodput at {goal:.0%}: {rate:.2f}/s", share)
        summary.goodput[goal_name(goal)] = start = one.goodput(goal, start or report.rate)
    base = summary.goodput[goal_name(GOALS[0])] or report.rate
    for times in CURVE:
        one.on_rate = lambda rate, share: tell(f"curve: {rate:.2f}/s", share)
        one.attainment(base * times)
    summary.curve = sorted(one.curve.kept.items())


def fleet_in_words(fleet: Fleet) -> str:
    """How many instances of which role, and what is not as their launch profiles say."""
    counts = {role: sum(unit.endpoint.role is role for unit in fleet.units) for role in Role}
    told = [f"{n} {role.value}" for role, n in counts.items() if n]
    engines = ", ".join(dict.fromkeys(unit.endpoint.engine for unit in fleet.units))
    words = f"{' + '.join(told)} ({engines}), {fleet.latency_s * 1e3:g} ms one way"
    if fleet.noise:
        words += f", steps vary by {fleet.noise:.0%}"
    slow = [unit.slowdown for unit in fleet.units if unit.slowdown != 1.0]
    return words + (f", {len(slow)} of them slower by up to {max(slow):g}x" if slow else "")
