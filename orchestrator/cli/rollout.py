"""`pdctl rollout`: a changed topology taken up one instance at a time, while requests are watched."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.app import DEFAULT_TOPOLOGY, NodeName, Overrides, TopologyFile, app, load_plan
from orchestrator.cli.progress import Progress
from orchestrator.cli.run import Timeout, exit_as, named_first, one_node, seconds, waited
from orchestrator.launch import session


@app.command()
def rollout(
    topology: TopologyFile = DEFAULT_TOPOLOGY,
    pool: Annotated[str | None, typer.Argument(metavar="POOL", help="Only this pool.")] = None,
    overrides: Overrides = None,
    node: NodeName = None,
    watch: Annotated[
        float,
        typer.Option(parser=seconds, metavar="DURATION", help="How long to watch requests after each step."),
    ] = "30s",  # type: ignore[assignment]
    timeout: Timeout = None,
) -> None:
    """Replace what differs from the topology one instance at a time; pause when requests fare worse.

    It pauses when more of them fail, or miss their promise, than before; the same command goes on from there.
    """
    named_first(topology, "rollout")
    plan = load_plan(topology, overrides, node=node)
    one_node(plan, topology)
    with Progress() as progress:
        work = session.rollout(plan, pool, watch, progress, timeout)
        status = waited(work, "it goes on; see `pdctl ps`")
    exit_as(status)
