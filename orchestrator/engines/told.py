"""What a running engine tells of itself, held against the plan and against the other side of a hand-off."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.core.rules import ERROR, WARN, Rule
from orchestrator.engines.base import Engine, InstanceSpec
from orchestrator.engines.capabilities import release
from orchestrator.engines.rules import STARTED_OTHERWISE

ANYWHERE = ("id",)
"""Facts that must be as planned of an engine that others started, too: the name of the model it serves."""

GRAVE = frozenset({"id", "tp_size", "pp_size", "attn_tp_size"})
"""Facts by which an engine is another one than was planned. What else differs is a warning: an engine may
have had its reasons (a page size that its attention needs): what matters is that both sides did the same."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """A fact that prefill and decode must have alike, and the rule that says so (as grave as that, unless
    `severity` says otherwise). With `transfer`, only where KV travels by that."""

    fact: str
    rule: Rule
    severity: str | None = None
    transfer: str | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing wrong with engines that run."""

    rule: str
    severity: str
    message: str

    def __str__(self) -> str:
        return f"{self.message} [{self.rule}]"


@dataclass(frozen=True, slots=True)
class Side:
    """An engine as it told of itself: its name, its facts, and the rules that are silenced for it."""

    name: str
    facts: Mapping[str, Any]
    silenced: Collection[str] = ()


def expected(adapter: Engine, spec: InstanceSpec, external: bool) -> dict[str, Any]:
    """What the engine of `spec` will tell of itself if it is what was planned, by the names of its facts."""
    expects = getattr(adapter, "expects", None)
    told: Mapping[str, Any] = expects(spec) if expects is not None else {}
    return {name: told[name] for name in ANYWHERE if name in told} if external else dict(told)


def agreements(adapter: Engine) -> Sequence[Agreement]:
    """What `adapter`'s prefill and decode must have alike."""
    found: Sequence[Agreement] = getattr(adapter, "agreements", ())
    return found


def contradictions(expects: Mapping[str, Any], side: Side) -> list[Finding]:
    """Findings where an engine tells otherwise than was planned."""
    if STARTED_OTHERWISE.name in side.silenced:
        return []
    return [
        Finding(
            STARTED_OTHERWISE.name,
            ERROR if name in GRAVE else WARN,
            f"{side.name} tells {name} {side.facts[name]}, planned was {planned}",
        )
        for name, planned in expects.items()
        if name in side.facts and not _same(name, side.facts[name], planned)
    ]


def _same(name: str, told: object, planned: object) -> bool:
    """Equal; of versions, by their numbers: what is built for a CPU calls itself 0.32.0+cpu."""
    return release(str(told)) == release(str(planned)) if name == "version" else told == planned


def disagreements(agreed: Sequence[Agreement], prefill: Side, decode: Side) -> Iterator[Finding]:
    """Findings where the two sides of a hand-off tell different things; what either keeps back is skipped."""
    for agreement in agreed:
        fact, rule = agreement.fact, agreement.rule
        if rule.name in prefill.silenced or rule.name in decode.silenced:
            continue
        if agreement.transfer not in (None, prefill.facts.get("transfer")):
            continue
        ours, theirs = prefill.facts.get(fact), decode.facts.get(fact)
        if ours is not None and theirs is not None and ours != theirs:
            yield Finding(
                rule.name,
                agreement.severity or rule.severity,
                f"{fact} is {theirs} at {decode.name} and {ours} at {prefill.name}",
            )


def grave(findings: Sequence[Finding]) -> str:
    """The errors among `findings` in words, `; ` between them; empty when there are none."""
    return "; ".join(str(finding) for finding in findings if finding.severity == ERROR)
