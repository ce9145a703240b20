"""Every command registered on one application, and errors mapped to exit codes."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated

import typer

from orchestrator.cli import doctor as _doctor
from orchestrator.cli import engines as _engines
from orchestrator.cli import explain as _explain
from orchestrator.cli import move as _move
from orchestrator.cli import plan as _plan
from orchestrator.cli import reload as _reload
from orchestrator.cli import render as _render
from orchestrator.cli import replay as _replay
from orchestrator.cli import rollout as _rollout
from orchestrator.cli import route as _route
from orchestrator.cli import rules as _rules
from orchestrator.cli import run as _run
from orchestrator.cli.app import app, show_error
from orchestrator.errors import PdctlError

__all__ = ["app", "execute"]

COMMANDS = (
    _run,
    _plan,
    _route,
    _explain,
    _reload,
    _replay,
    _rules,
    _doctor,
    _engines,
    _move,
    _render,
    _rollout,
)
"""The modules whose import registered their commands."""

ORDER = (
    "up", "down", "ps", "logs", "restart",
    "drain", "switch", "rollout",
    "reload", "explain", "replay", "check", "plan", "rules", "doctor",
    "route", "render", "schema",
)  # fmt: skip
"""The commands as `--help` lists them: by how often they are needed, not by module."""

app.registered_commands.sort(key=lambda c: ORDER.index(c.name or getattr(c.callback, "__name__", "")))
for _command in app.registered_commands:
    # Typer breaks lines where the source does; a terminal has its own width.
    _paragraphs = inspect.getdoc(_command.callback) or ""
    _command.help = "\n\n".join(" ".join(p.split()) for p in _paragraphs.split("\n\n"))


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"pdctl {version('pdctl')}")
        raise typer.Exit


@app.callback()
def _options(
    show_version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    pass


def execute(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0, a PdctlError's code, or click's own 2 for bad usage."""
    try:
        app(arguments)
    except PdctlError as error:
        show_error(error)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # Whoever read us (`head`, a pager) has seen enough; nothing is left to flush to.
        sys.stderr.close()
        sys.exit(1)
