"""`pdctl route`: the router alone, in the foreground, over engines that somebody else runs."""

from __future__ import annotations

import typer

from orchestrator.cli.app import DEFAULT_TOPOLOGY, Overrides, TopologyFile, app, err, load_plan
from orchestrator.errors import Problem, TopologyError
from orchestrator.topology.plan import Plan


@app.command()
def route(topology: TopologyFile = DEFAULT_TOPOLOGY, overrides: Overrides = None) -> None:
    """Run the router alone: it joins whichever engines of the topology answer. SIGHUP reads it anew."""
    # Here and not above: every other command would pay for loading the data path.
    from orchestrator.router.running import run_router

    def read() -> Plan:
        return load_plan(topology, overrides, ask_versions=False)

    plan = read()
    if plan.router is None or plan.router.kind != "pdctl":
        kind = "none" if plan.router is None else plan.router.kind
        problem = Problem(
            f"is {kind!r}: only pdctl's own router can be run alone",
            file=str(topology),
            field="router.kind",
            hint="use `pdctl up`, or --set router.kind=pdctl",
        )
        raise TopologyError([problem])
    raise typer.Exit(
        run_router(plan, reread=read, on_ready=lambda url: err.print(f"routing at {url}", markup=False))
    )
