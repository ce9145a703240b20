"""A lint rule as data: its name, how grave its findings are, and what to say of it to people."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

ERROR, WARN = "error", "warn"
"""An error is refused; of a warning one is told, and gone on."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing that lint looks for.

    `finds` is what is wrong where it speaks, `why` what comes of it, `mend` what to do; each one or two
    sentences for an operator. `severity` is that of its gravest findings: single ones may be milder. A
    `fixed` rule cannot be silenced: nothing could be launched then. One that is `running` looks at
    engines that run, too, by what they tell of themselves.
    """

    name: str
    finds: str
    why: str
    mend: str
    severity: str = ERROR
    fixed: bool = False
    running: bool = False


def by_name(rules: Iterable[Rule]) -> dict[str, Rule]:
    """`rules` by name. Raises ValueError when two that differ have one name."""
    found: dict[str, Rule] = {}
    for rule in rules:
        if found.setdefault(rule.name, rule) != rule:
            raise ValueError(f"two lint rules are called {rule.name!r}")
    return found


def reference(rules: Iterable[Rule]) -> str:
    """The rules as Markdown, in the order of their names: a section each, which is also its anchor."""
    return "\n".join(_section(rule) for rule in sorted(rules, key=lambda rule: rule.name))


def _section(rule: Rule) -> str:
    kind = {ERROR: "Error", WARN: "Warning"}[rule.severity]
    fixed = ", cannot be silenced" if rule.fixed else ""
    again = ", looked at again after start" if rule.running else ""
    return f"### {rule.name}\n*{kind}{fixed}{again}.* {rule.finds}\n\n{rule.why}\n\n**Mend:** {rule.mend}\n"
