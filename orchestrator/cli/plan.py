"""`pdctl check`, `plan` and `schema`: what can be known of a deployment without starting anything."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from enum import StrEnum
from typing import Annotated, NoReturn

import typer

from orchestrator.cli.app import DEFAULT_TOPOLOGY, NodeName, Overrides, TopologyFile, app, load_plan, out
from orchestrator.cli.show import as_text, diff_lines, summary
from orchestrator.topology.known import json_schema
from orchestrator.topology.mask import masked
from orchestrator.topology.plan import Plan, dump
from orchestrator.topology.profiles import ProfileFile
from orchestrator.topology.reference import markdown
from orchestrator.topology.schema import Topology
from orchestrator.topology.strict import Strict

DIFFERS = 1
"""Exit code of `plan --diff` where `up` would change something, as diff(1) has it."""


class Form(StrEnum):
    """How `schema` prints."""

    JSON = "json"
    MARKDOWN = "markdown"


class Subject(StrEnum):
    """Which file `schema` describes."""

    TOPOLOGY = "topology"
    PROFILE = "profile"


_MODELS: dict[Subject, type[Strict]] = {Subject.TOPOLOGY: Topology, Subject.PROFILE: ProfileFile}


@app.command()
def check(topology: TopologyFile = DEFAULT_TOPOLOGY, overrides: Overrides = None) -> None:
    """Check a topology: its form, what it refers to, and its parts against each other."""
    plan = load_plan(topology, overrides, shown_only=True)
    for finding in plan.silenced:
        out.print(finding, markup=False, style="dim")
    out.print(f"OK {summary(plan)}", markup=False)


@app.command(name="plan")
def show_plan(
    topology: TopologyFile = DEFAULT_TOPOLOGY,
    overrides: Overrides = None,
    node: NodeName = None,
    as_json: Annotated[
        bool, typer.Option("--json", metavar="", help="Print the whole plan as JSON.")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", metavar="", help="Print every word with its origin.")
    ] = False,
    as_diff: Annotated[
        bool,
        typer.Option("--diff", metavar="", help="Print what `up` would change; exit 1 if anything."),
    ] = False,
) -> None:
    """Print what `up` would run: each command line and its environment, secrets masked."""
    if as_json and explain:
        raise typer.BadParameter("--json holds every origin already; leave out --explain")
    if as_diff and explain:
        raise typer.BadParameter("--diff says what differs, --explain where it comes from: give one of them")
    plan = load_plan(topology, overrides, node=node, shown_only=not as_diff)
    if as_diff:
        _show_diff(plan, as_json=as_json)
    if as_json:
        typer.echo(dump(masked(plan)))
        return
    for line in as_text(plan, explain=explain):
        typer.echo(line)


def _show_diff(plan: Plan, *, as_json: bool) -> NoReturn:
    """Print what `up` would change, and exit: 0 if nothing, 1 if anything."""
    # Here and not above: it loads what supervises, which the other commands of this module do without.
    from orchestrator.launch import changes, report
    from orchestrator.launch.paths import StateDir

    state = StateDir(plan.state_dir)
    status = asyncio.run(report.status(state))
    found = changes.diff(plan, changes.read_lock(state), status.instances)
    if as_json:
        typer.echo(json.dumps(asdict(found), indent=2))
    else:
        for line in diff_lines(found):
            typer.echo(line)
    raise typer.Exit(DIFFERS if found.changes else 0)


@app.command()
def schema(
    subject: Annotated[Subject, typer.Argument(help="Which file.")] = Subject.TOPOLOGY,
    form: Annotated[Form, typer.Option("--format", help="How to print it.")] = Form.JSON,
) -> None:
    """Print the JSON Schema of a topology or a launch profile, or its settings as a table."""
    model = _MODELS[subject]
    if form is Form.MARKDOWN:
        typer.echo(markdown(json_schema(model)), nl=False)
    else:
        typer.echo(json.dumps(json_schema(model), indent=2, ensure_ascii=False))
