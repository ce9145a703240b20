"""`pdctl rules`: what lint looks for, why, and what to do about it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from orchestrator.cli.app import app, out
from orchestrator.core.rules import Rule, reference
from orchestrator.errors import Problem, TopologyError
from orchestrator.topology.problems import close_to
from orchestrator.topology.rulebook import rulebook


class Form(StrEnum):
    """How `rules` prints."""

    TEXT = "text"
    MARKDOWN = "markdown"


@app.command(name="rules")
def show_rules(
    name: Annotated[str | None, typer.Argument(metavar="RULE", help="One of them, by name.")] = None,
    form: Annotated[Form, typer.Option("--format", help="How to print them.")] = Form.TEXT,
) -> None:
    """List the rules of lint, or explain one: what it finds, what comes of it, and what to do."""
    rules = rulebook()
    if name is not None and name not in rules:
        raise TopologyError([Problem(f"there is no lint rule {name!r}", hint=close_to(name, rules))])
    chosen = [rules[name]] if name is not None else list(rules.values())
    if form is Form.MARKDOWN:
        typer.echo(reference(chosen), nl=False)
    elif name is not None:
        out.print(_explained(chosen[0]), markup=False)
    else:
        for rule in sorted(chosen, key=lambda rule: rule.name):
            out.print(f"{rule.name:<22} {rule.severity:<6} {rule.finds}", markup=False)


def _explained(rule: Rule) -> str:
    fixed = ", and cannot be silenced" if rule.fixed else ""
    again = "\nEngines that run are looked at again." if rule.running else ""
    return f"{rule.name}: {rule.severity}{fixed}\n{rule.finds}\n{rule.why}\nMend: {rule.mend}{again}"
