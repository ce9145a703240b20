"""`pdctl drain` and `switch`: instances that go on running, and what work they get."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from orchestrator.cli.app import DEFAULT_TOPOLOGY, NodeName, Overrides, TopologyFile, app, err, out
from orchestrator.cli.progress import Progress
from orchestrator.cli.run import Timeout, named_first, state_of, waited
from orchestrator.core.lifecycle import State
from orchestrator.core.types import Role
from orchestrator.errors import LaunchError
from orchestrator.launch import session


@app.command()
def drain(
    topology: TopologyFile = DEFAULT_TOPOLOGY,
    instance: Annotated[str | None, typer.Argument(metavar="INSTANCE", help="One engine.")] = None,
    overrides: Overrides = None,
    node: NodeName = None,
    timeout: Timeout = None,
    undo: Annotated[bool, typer.Option("--undo", metavar="", help="Give it work again.")] = False,
) -> None:
    """Give an engine nothing new and return when it has finished what it has; it goes on running.

    It stays drained, also when it, the router or the controller is started anew, until `--undo`. What hangs
    is not restarted while it is drained: it can be looked into.
    """
    # Here and not above: it loads an HTTP client that few commands need.
    from orchestrator.launch import drain as launch

    named_first(topology, "drain")
    if instance is None:
        raise typer.BadParameter("name the instance; `pdctl ps` lists them", param_hint="INSTANCE")
    state = state_of(topology, overrides, node)
    if undo:
        waited(launch.undo(state, instance), "")
        out.print(f"{instance} is given work again", markup=False)
        return
    work = launch.drain(state, instance, timeout)
    done = waited(work, f"{instance} stays closed to new work; `pdctl drain --undo` opens it")
    if done.drained:
        out.print(f"{instance} is drained; `pdctl drain --undo` gives it work again", markup=False)
        return
    left = f"{done.requests} requests and {done.kv_tokens} tokens of KV are left on {instance}"
    err.print(f"{left}; it is given nothing new", markup=False)
    raise typer.Exit(LaunchError.exit_code)


class Side(StrEnum):
    """A role that an engine can be switched to."""

    PREFILL = "prefill"
    DECODE = "decode"


@app.command()
def switch(
    to: Annotated[Side, typer.Option("--to", help="The role it is to have.")],
    topology: TopologyFile = DEFAULT_TOPOLOGY,
    instance: Annotated[str | None, typer.Argument(metavar="INSTANCE", help="One engine.")] = None,
    overrides: Overrides = None,
    node: NodeName = None,
    timeout: Timeout = None,
) -> None:
    """Make prefill of a running decode engine, or decode of prefill, without starting it anew.

    It is drained, told, checked, and given work in its new role, for as long as its process lives: one that
    is started anew has the topology's role again. Only where the engine can, and was started so.
    """
    named_first(topology, "switch")
    if instance is None:
        raise typer.BadParameter("name the instance; `pdctl ps` lists them", param_hint="INSTANCE")
    state = state_of(topology, overrides, node)
    with Progress() as progress:
        work = session.switch(state, instance, Role(to.value), progress, timeout)
        status = waited(work, "it goes on; see `pdctl ps`")
    found = next((i for i in status.instances if i.name == instance), None)
    if found is None or found.role != to.value or found.state is not State.READY:
        raise typer.Exit(LaunchError.exit_code)
    out.print(f"{instance} is {to.value} now, until its process ends", markup=False)
