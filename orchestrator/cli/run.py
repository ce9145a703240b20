"""`pdctl up`, `down`, `ps`, `logs` and `restart`: a deployment's processes."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from orchestrator.cli.app import DEFAULT_TOPOLOGY, NodeName, Overrides, TopologyFile, app, err, load_plan
from orchestrator.cli.main import INTERRUPTED
from orchestrator.cli.progress import Progress, failures, pair_lines, ps_lines
from orchestrator.core.address import is_loopback, split_http_url
from orchestrator.core.lifecycle import State
from orchestrator.errors import LaunchError, Problem, TopologyError
from orchestrator.launch import logs as log_files
from orchestrator.launch import report, session
from orchestrator.launch.paths import StateDir
from orchestrator.launch.status import Phase, Status, ps_object
from orchestrator.launch.unit import ROUTER
from orchestrator.topology.doctor import out_of_date
from orchestrator.topology.load import draft
from orchestrator.topology.plan import RAY, Plan
from orchestrator.topology.planner import state_dir
from orchestrator.topology.values import parse_duration

T = TypeVar("T")

InstanceName = Annotated[str | None, typer.Argument(metavar="INSTANCE", help="One instance, or `router`.")]


def seconds(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


Timeout = Annotated[
    float | None,
    typer.Option(
        parser=seconds,
        metavar="DURATION",
        help="Give up waiting after this long, e.g. 10m (default: never).",
    ),
]


def state_of(topology: Path, overrides: list[str] | None, node: str | None = None) -> StateDir:
    """The state directory of a topology (of one node of it), also of one that is broken at the moment: what
    it describes may be running, and must be seen and stopped."""
    found = draft(topology, overrides or (), os.environ)
    if found.topology is not None:
        return StateDir(state_dir(found, node))
    declared, name = found.source.data.get("state_dir"), found.source.data.get("name")
    if isinstance(declared, str):
        root = found.folder.absolute(declared)
    elif isinstance(name, str):
        root = str(found.state_home / "pdctl" / name)
    else:
        raise TopologyError(found.problems)
    root = root if node is None else f"{root}@{node}"
    err.print(
        f"warning: {topology} has {len(found.problems)} problems (see `pdctl check`); "
        f"going by what runs in {root}",
        markup=False,
        style="yellow",
    )
    return StateDir(root)


def named_first(topology: Path, command: str) -> None:
    """Refuse what looks like an instance's name where the topology belongs."""
    if topology.suffix not in (".yaml", ".yml") and not topology.exists():
        hint = f"the topology comes first: `pdctl {command} {DEFAULT_TOPOLOGY} {topology}`"
        raise TopologyError([Problem("no such file", file=str(topology), hint=hint)])


def waited(work: Coroutine[Any, Any, T], interrupted: str) -> T:
    """The result of `work`; Ctrl-C ends the wait with `interrupted` as the last word."""
    try:
        return asyncio.run(work)
    except KeyboardInterrupt:
        err.print(interrupted, markup=False)
        raise typer.Exit(INTERRUPTED) from None


def one_node(plan: Plan, topology: Path) -> None:
    """Refuse to start here what belongs on several hosts, or a node that nothing runs on."""
    names = ", ".join(plan.nodes)
    if plan.launcher == RAY:
        if plan.node is None:
            return
        hint = "leave out --node; one `pdctl up` starts all of them"
        raise TopologyError(
            [Problem("launcher: ray starts every node's engines", file=str(topology), hint=hint)]
        )
    if plan.node is not None and plan.nodes and plan.node not in plan.nodes:
        raise TopologyError(
            [
                Problem(
                    f"nothing of it runs on node {plan.node}", file=str(topology), hint=f"it runs on {names}"
                )
            ]
        )
    hosts = {split_http_url(i.url)[0] for i in plan.instances if not i.external}
    hosts |= {f.address for i in plan.instances for f in i.followers}
    if plan.node is None and len(hosts) > 1 and not all(map(is_loopback, hosts)):
        message = f"its engines run on several hosts ({', '.join(sorted(hosts))}); which one is this?"
        hint = f"run `pdctl up {topology} --node NAME` on each, with the name of its node: {names}"
        raise TopologyError([Problem(message, file=str(topology), hint=hint)], reason="which-node")


def exit_as(status: Status) -> None:
    """End with the code that `status` deserves."""
    if status.phase is Phase.STOPPED:
        raise typer.Exit(INTERRUPTED)
    if status.phase is not Phase.READY:
        raise typer.Exit(LaunchError.exit_code)


@app.command()
def up(
    topology: TopologyFile = DEFAULT_TOPOLOGY,
    overrides: Overrides = None,
    node: NodeName = None,
    detach: Annotated[
        bool,
        typer.Option(
            "--detach", "-d", metavar="", help="Return once all is ready; leave a controller behind."
        ),
    ] = False,
    timeout: Timeout = None,
) -> None:
    """Start what the topology describes, or change what runs of it; print the router's URL when ready.

    In the foreground, Ctrl-C drains and stops everything, a second one kills. What an earlier controller
    left running is adopted; only what differs is started anew.
    """
    plan = load_plan(topology, overrides, node=node)
    one_node(plan, topology)
    for line in out_of_date(topology, overrides or (), environ=os.environ):
        err.print(f"warning: {line}", markup=False, style="yellow")
    look = f"see `pdctl ps {topology}`, or stop it with `pdctl down {topology}`"
    on = f"it goes on without us; {look}"
    with Progress() as progress:
        begin = session.up_detached if detach else session.up_foreground
        status = waited(begin(plan, progress, timeout), on)
    if status.phase is Phase.WORKING:
        for line in failures(status):
            err.print(line, markup=False)
    if detach and status.phase is Phase.WORKING:
        err.print(f"not ready; {on}", markup=False)
    elif detach and status.phase is Phase.FAILED:
        serves = any(i.state is State.READY and i.role != ROUTER for i in status.instances)
        left = "what is ready serves on" if serves or status.external else "nothing can serve"
        err.print(f"not all is ready, {left}; {look}", markup=False)
    exit_as(status)


@app.command()
def down(
    topology: TopologyFile = DEFAULT_TOPOLOGY,
    overrides: Overrides = None,
    node: NodeName = None,
    force: Annotated[
        bool, typer.Option("--force", metavar="", help="Kill at once, without a drain.")
    ] = False,
) -> None:
    """Drain and stop everything, also when the controller is dead; leave no process behind."""
    state = state_of(topology, overrides, node)
    with Progress() as progress:
        found = waited(
            session.down(state, progress, force=force), "the stop goes on; `pdctl down --force` kills"
        )
    if not found:
        err.print(f"nothing runs in {state.root}", markup=False)


@app.command()
def ps(
    topology: TopologyFile = DEFAULT_TOPOLOGY,
    overrides: Overrides = None,
    node: NodeName = None,
    as_json: Annotated[
        bool, typer.Option("--json", metavar="", help="Print a list with one object per instance.")
    ] = False,
) -> None:
    """Show every instance: its state, process, restarts and last error."""
    state = state_of(topology, overrides, node)
    status = asyncio.run(report.status(state))
    if as_json:
        typer.echo(json.dumps([ps_object(i) for i in status.instances], indent=2))
    elif status.instances:
        for line in ps_lines(status.instances):
            typer.echo(line)
        for external in status.external:
            typer.echo(f"external: {external}")
        for line in pair_lines(status.bad_pairs):
            typer.echo(line)
    if status.phase is Phase.UNWATCHED:
        err.print(
            "no controller runs: what lives serves on, nothing is restarted. "
            f"`pdctl up {topology}` adopts it, `pdctl down {topology}` stops it.",
            markup=False,
            style="yellow",
        )
    elif not status.instances and not status.external:
        err.print(f"nothing runs in {state.root}", markup=False)
    if status.problem:
        err.print(status.problem, markup=False, style="yellow")


@app.command()
def logs(
    topology: TopologyFile = DEFAULT_TOPOLOGY,
    instance: Annotated[
        str | None, typer.Argument(metavar="INSTANCE", help="One instance, `router` or `controller`.")
    ] = None,
    overrides: Overrides = None,
    node: NodeName = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", metavar="", help="Go on with what comes.")
    ] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Lines of each log to begin with.")] = 50,
) -> None:
    """Print the last lines of one log, or of all with the instance's name before each line."""
    named_first(topology, "logs")
    state = state_of(topology, overrides, node)
    files = report.log_files(state, instance)
    secrets = report.secrets(state)
    width = max(len(name) for name, _ in files)

    def put(name: str, line: str) -> None:
        text = log_files.strike(line, secrets)
        typer.echo(text if instance is not None else f"{name:<{width}} | {text}")

    async def stream() -> None:
        async for name, line in log_files.follow(files, lines):
            put(name, line)

    if follow:
        try:
            asyncio.run(stream())
        except KeyboardInterrupt:
            return
    for name, path in files:
        for line in log_files.tail(path, lines):
            put(name, line)


@app.command()
def restart(
    topology: TopologyFile = DEFAULT_TOPOLOGY,
    instance: InstanceName = None,
    overrides: Overrides = None,
    node: NodeName = None,
    timeout: Timeout = None,
) -> None:
    """Drain and restart one instance (or `router`), or all engines, one after the other."""
    named_first(topology, "restart")
    state = state_of(topology, overrides, node)
    with Progress() as progress:
        names = [instance] if instance is not None else []
        status = waited(session.restart(state, names, progress, timeout), "it goes on; see `pdctl ps`")
    # Of one that was named, not what else may be down.
    if not any(i.name == instance and i.state is State.READY for i in status.instances):
        exit_as(status)
