"""`pdctl engines`: what a version of an engine knows, from the shipped tables or an installed engine."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.app import app, err, out
from orchestrator.engines.base import Engine
from orchestrator.engines.capabilities import Capabilities, Flag, Known, Recipe, dump, parse, program
from orchestrator.errors import LaunchError, Problem, TopologyError
from orchestrator.fabric.inspecting import inspect as ask
from orchestrator.topology.adapters import load_adapter
from orchestrator.topology.problems import close_to

engines = typer.Typer(
    name="engines",
    help="What a version of an engine knows: flags, variables, what replaced what.",
    no_args_is_help=True,
)
app.add_typer(engines)

EngineName = Annotated[
    str, typer.Argument(metavar="ENGINE", help="The adapter, as a pool's `engine` has it.")
]


@engines.command()
def inspect(
    engine: EngineName,
    python: Annotated[
        str, typer.Option("--python", metavar="PATH", help="The interpreter of its environment.")
    ] = sys.executable,
    write: Annotated[
        Path | None,
        typer.Option("--write", metavar="FILE", help="Write the table here, not to the terminal."),
    ] = None,
) -> None:
    """Ask an installed engine for its flags and variables, in a process of its own environment; takes as long
    as importing it."""
    recipe: Recipe | None = getattr(_adapter(engine), "recipe", None)
    if recipe is None:
        raise TopologyError([Problem(f"the adapter of {engine} does not say how its engine is asked")])
    table = dump(ask([python], program(), asdict(recipe)))
    if write is None:
        typer.echo(table, nl=False)
        return
    try:
        write.write_bytes(table)
    except OSError as error:
        message = f"{write}: cannot be written: {error.strerror or error}"
        raise LaunchError(message, reason="inspect-failed") from error
    found = parse(table)
    out.print(
        f"{write}: {engine} {found.version}, {len(found.flags)} flags, {len(found.variables)} variables",
        markup=False,
    )


@engines.command(context_settings={"ignore_unknown_options": True})  # names may begin with hyphens
def show(
    engine: EngineName,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A flag, a variable, or what an older version had.")
    ] = None,
    version: Annotated[
        str | None, typer.Option("--version", metavar="V", help="Default: the newest that is known.")
    ] = None,
) -> None:
    """Tell what a version knows by a name: default, choices, what came instead; without a name, all of it."""
    tables = getattr(_adapter(engine), "capabilities", None)
    if tables is None:
        raise TopologyError([Problem(f"the adapter of {engine} has no table of flags and variables")])
    found: Known = tables(version)
    if not found.exact:
        err.print(f"warning: {engine} {version} is unknown; this is {found.table.version}", markup=False)
    lines = _told(found.table, name) if name is not None else list(_all(found.table))
    for line in lines:
        out.print(line, markup=False)


def _adapter(engine: str) -> Engine:
    return load_adapter(engine, ".")


def _told(table: Capabilities, name: str) -> list[str]:
    plain = name.lstrip("-").replace("_", "-")
    if (flag := table.flag(plain)) is not None:
        return [_flag(f"--{plain}", flag)]
    if name in table.variables:
        return [f"{name}{_default(table.variables[name])}"]
    for candidate in (name, f"--{plain}"):
        if candidate in table.replaced:
            return [f"{candidate}: {table.replaced[candidate] or 'gone'}"]
    known = {f"--{flag}" for flag in table.names()} | set(table.variables) | set(table.replaced)
    hint = close_to(name if name in known or name.isupper() else f"--{plain}", known)
    raise TopologyError([Problem(f"{name} is unknown to version {table.version}", hint=hint)])


def _all(table: Capabilities) -> list[str]:
    return [
        *(_flag(f"--{name}", flag) for name, flag in table.flags.items()),
        *(f"{name}{_default(default)}" for name, default in table.variables.items()),
        *(f"{name}: {instead or 'gone'}" for name, instead in table.replaced.items()),
    ]


def _flag(name: str, flag: Flag) -> str:
    choices = f", one of {' '.join(flag.choices)}" if flag.choices else ""
    also = f", also {' '.join('--' + other for other in flag.also)}" if flag.also else ""
    went = f", deprecated: {flag.deprecated}" if flag.deprecated is not None else ""
    return f"{name}: {flag.kind}{_default(flag.default)}{choices}{also}{went}"


def _default(value: object) -> str:
    return "" if value is None else f", default {value}"
