"""Findings that the topology silences by the name of their rule, with the reason that it gives."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.core.rules import Rule
from orchestrator.errors import Problem
from orchestrator.plugins import nearest
from orchestrator.topology import rules
from orchestrator.topology.inputs import Inputs
from orchestrator.topology.problems import close_to
from orchestrator.topology.source import Place


@dataclass(frozen=True, slots=True)
class Silenced:
    """A finding that is not told, and why."""

    problem: Problem
    reason: str

    def __str__(self) -> str:
        return f"{self.problem}; silenced: {self.reason}"


def settle(
    inputs: Inputs, found: Sequence[Problem], known: Mapping[str, Rule]
) -> tuple[list[Problem], list[Silenced]]:
    """`found` without what the topology silences, that apart; findings about silences themselves are added.

    `known` are the rules by name; a rule that has just spoken may be silenced whether or not it is known.
    """
    names = {problem.rule for problem in found if problem.rule}
    kept = [*_unknown(inputs, known, names)]
    apart: list[Silenced] = []
    for problem in found:
        reason = _reason(inputs, problem, known)
        if reason is None:
            kept.append(problem)
        else:
            apart.append(Silenced(problem, reason))
    used = {silenced.problem.rule for silenced in apart}
    running = {name for name, rule in known.items() if rule.running}
    heard = used | names | running | {name for name in inputs.topology.silence if name not in known}
    kept += _unused(inputs, heard)
    return kept, apart


def silenced_in(inputs: Inputs, pool: str) -> tuple[str, ...]:
    """The names of the rules that are silenced for a pool, for who looks again at what was started."""
    return tuple(
        name
        for name, silence in inputs.topology.silence.items()
        if silence.pools is None or pool in silence.pools
    )


def _reason(inputs: Inputs, problem: Problem, known: Mapping[str, Rule]) -> str | None:
    silence = inputs.topology.silence.get(problem.rule or "")
    rule = known.get(problem.rule or "")
    if silence is None or (rule is not None and rule.fixed):
        return None
    if silence.pools is not None and _pool(problem) not in silence.pools:
        return None
    return silence.reason


def _pool(problem: Problem) -> str | None:
    parts = (problem.field or "").split(".")
    return parts[1] if parts[0] == "pools" and len(parts) > 1 else None


def _unknown(inputs: Inputs, known: Mapping[str, Rule], spoken: Iterable[str]) -> Iterator[Problem]:
    pools = [part.name for part in inputs.parts]
    names = sorted({*known, *spoken})
    for name, silence in inputs.topology.silence.items():
        place: Place = ("silence", name)
        if name not in names:
            close = nearest(name, names)
            message = f"there is no lint rule {name!r}"
            hint: str | None = f"did you mean {close!r}?" if close else "`pdctl rules` lists them"
            yield inputs.source.problem(place, message, hint=hint, rule=rules.SILENCE)
        elif name in known and known[name].fixed:
            message = "cannot be silenced: nothing could be launched"
            yield inputs.source.problem(place, message, hint=known[name].mend, rule=rules.SILENCE)
        for index, pool in enumerate(silence.pools or ()):
            if pool not in pools:
                at: Place = (*place, "pools", index)
                hint = close_to(pool, pools)
                yield inputs.source.problem(at, f"there is no pool {pool!r}", hint=hint, rule=rules.SILENCE)


def _unused(inputs: Inputs, heard: Collection[str | None]) -> Iterator[Problem]:
    for name in inputs.topology.silence:
        if name not in heard:
            yield inputs.source.problem(
                ("silence", name), "finds nothing here", hint="remove it", rule=rules.UNUSED_SILENCE
            )
