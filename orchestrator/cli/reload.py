"""`pdctl reload`: changed scheduling policies taken up by a running router."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from orchestrator.cli.app import DEFAULT_TOPOLOGY, NodeName, Overrides, TopologyFile, app, err, load_plan, out


@app.command()
def reload(
    topology: TopologyFile = DEFAULT_TOPOLOGY,
    overrides: Overrides = None,
    node: NodeName = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", metavar="", help="Say what would come of it, and change nothing.")
    ] = False,
    force: Annotated[
        bool,
        typer.Option("--force", metavar="", help="Use a profile that failed or refused too much when tried."),
    ] = False,
) -> None:
    """Have the running router decide by the topology's policies and SLO classes; nothing is restarted.

    The new scheduling profile is validated, then tried on made-up requests and on the last ones that the
    router has seen. If a policy fails there, or most of what is served would be refused, the profile in use
    stays, and the exit code is 2.
    """
    # Here and not above: it loads an HTTP client that few commands need.
    from orchestrator.launch import reload as launch

    plan = load_plan(topology, overrides, node=node)
    done = asyncio.run(launch.reload(plan, dry_run=dry_run, force=force))
    for what in done.left:
        err.print(f"not reloaded: {what}; `pdctl up` applies that", markup=False, style="yellow")
    out.print(done.policies if dry_run else f"reloaded; {done.policies}", markup=False)
