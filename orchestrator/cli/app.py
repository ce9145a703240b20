"""What every command shares: the application, the topology and `--set` arguments, how findings are shown."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from orchestrator.errors import PdctlError, TopologyError
from orchestrator.fabric.versions import installed
from orchestrator.topology.plan import Plan
from orchestrator.topology.planner import DEFAULT_FILE, plan_file

app = typer.Typer(
    name="pdctl",
    help="Launch, supervise and route prefill/decode-disaggregated inference engines from one topology.yaml.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

TopologyFile = Annotated[
    Path, typer.Argument(metavar="TOPOLOGY", help="The topology file.", show_default=True)
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="A.B=VALUE",
        help="Set one field of the topology, the value read as YAML; list items go by number.",
    ),
]
NodeName = Annotated[
    str | None,
    typer.Option(
        "--node",
        metavar="NAME",
        envvar="PDCTL_NODE",
        help="The node that this host is, where there are more.",
    ),
]
DEFAULT_TOPOLOGY = DEFAULT_FILE

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)


def load_plan(
    topology: Path,
    overrides: list[str] | None,
    *,
    node: str | None = None,
    ask_versions: bool = True,
    shown_only: bool = False,
) -> Plan:
    """The plan of `topology` (for one `node` of it), its warnings shown. Raises TopologyError with every
    finding.

    `ask_versions`: engines' environments are asked for versions that the topology does not declare.
    `shown_only`: nothing is run by it, so that keys need not be set where it is made.
    """
    ask = installed if ask_versions else None
    plan = plan_file(topology, overrides or (), environ=os.environ, ask=ask, node=node, shown_only=shown_only)
    for warning in plan.warnings:
        err.print(f"warning: {warning}", markup=False, style="yellow")
    return plan


def show_error(error: PdctlError) -> None:
    """Print an error for a person: every finding on a line of its own, and how many there are; behind it
    the reason to look up or search for, where it says more than the kind of error."""
    if not isinstance(error, TopologyError):
        slug = f" [{error.reason}]" if error.reason != error.default_reason else ""
        err.print(f"pdctl: {error.message}{slug}", markup=False, style="red")
        return
    for problem in error.problems:
        err.print(str(problem), markup=False, style="red")
    if len(error.problems) > 1:
        err.print(f"{len(error.problems)} problems", markup=False, style="bold red")
