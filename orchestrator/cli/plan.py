"""`pdctl check`, `plan` and `schema`: what can be known of a deployment without starting anything."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated

import typer

from orchestrator.cli.app import DEFAULT_TOPOLOGY, Overrides, TopologyFile, app, load_plan, out
from orchestrator.cli.show import as_text, summary
from orchestrator.topology.known import json_schema
from orchestrator.topology.mask import masked
from orchestrator.topology.plan import dump
from orchestrator.topology.profiles import ProfileFile
from orchestrator.topology.reference import markdown
from orchestrator.topology.schema import Topology


class Form(StrEnum):
    """How `schema` prints."""

    JSON = "json"
    MARKDOWN = "markdown"


class Subject(StrEnum):
    """Which file `schema` describes."""

    TOPOLOGY = "topology"
    PROFILE = "profile"


_MODELS = {Subject.TOPOLOGY: Topology, Subject.PROFILE: ProfileFile}


@app.command()
def check(topology: TopologyFile = DEFAULT_TOPOLOGY, overrides: Overrides = None) -> None:
    """Check a topology: its form, what it refers to, and its parts against each other."""
    plan = load_plan(topology, overrides)
    for finding in plan.silenced:
        out.print(finding, markup=False, style="dim")
    out.print(f"OK {summary(plan)}", markup=False)


@app.command(name="plan")
def show_plan(
    topology: TopologyFile = DEFAULT_TOPOLOGY,
    overrides: Overrides = None,
    as_json: Annotated[
        bool, typer.Option("--json", metavar="", help="Print the whole plan as JSON.")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", metavar="", help="Print every word with its origin.")
    ] = False,
) -> None:
    """Print what `up` would run: each command line and its environment, secrets masked."""
    if as_json and explain:
        raise typer.BadParameter("--json holds every origin already; leave out --explain")
    plan = load_plan(topology, overrides)
    if as_json:
        typer.echo(dump(masked(plan)))
        return
    for line in as_text(plan, explain=explain):
        typer.echo(line)


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
