"""`pdctl doctor`: what a node has, and what is wrong there with a topology's plan."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from orchestrator.cli.app import app, out
from orchestrator.core.fabric import Fabric, Gpu
from orchestrator.errors import TopologyError
from orchestrator.fabric.host import HERE
from orchestrator.fabric.versions import installed
from orchestrator.topology.doctor import examine, examine_host
from orchestrator.topology.fabric import Report, dump

GIB = 1024**3


@app.command()
def doctor(
    topology: Annotated[
        Path | None, typer.Argument(metavar="[TOPOLOGY]", help="The topology that the node is part of.")
    ] = None,
    node: Annotated[
        str | None,
        typer.Option("--node", metavar="NAME", help="The node of the topology; default: this host."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", metavar="", help="Print JSON, which `fabric:` of a node reads.")
    ] = False,
    root: Annotated[
        Path,
        typer.Option("--root", metavar="DIR", help="Read a copy of a host's /sys and /proc in DIR instead."),
    ] = HERE,
) -> None:
    """Show what a node has: GPUs, NICs and which are near which, limits, engines, ports; and what is wrong.

    Exits with 2 where a plan for this node would be refused.
    """
    if node is not None and topology is None:
        raise typer.BadParameter("--node names a node of a topology; give its file too")
    if not root.is_dir():
        raise typer.BadParameter(f"{root} is not a folder", param_hint="--root")
    if topology is None:
        report = examine_host(root, ask=installed)
    else:
        report = examine(topology, node, root, environ=os.environ, ask=installed)
    if as_json:
        typer.echo(dump(report))
    else:
        _show(report)
    if any(finding.startswith("error: ") for finding in report.findings):
        raise typer.Exit(TopologyError.exit_code)


def _show(report: Report) -> None:
    fabric = report.node
    for line in _head(report):
        out.print(line, markup=False)
    if fabric.gpus:
        out.print(_gpus(report))
    if fabric.nics:
        out.print(_nics(fabric))
    for line in _rest(report):
        out.print(line, markup=False)


def _head(report: Report) -> Iterator[str]:
    fabric = report.node
    named = f"node {report.name}, " if report.name else ""
    facts = [f"{len(fabric.gpus)} GPUs", f"{len(fabric.nics)} RDMA devices"]
    if fabric.cpus:
        facts.append(f"{fabric.cpus} CPUs")
    if fabric.memory_bytes:
        facts.append(f"{fabric.memory_bytes / GIB:.0f} GiB of memory")
    facts.append(f"{fabric.numa_nodes} NUMA node{'s' if fabric.numa_nodes > 1 else ''}")
    yield f"{named}host {fabric.host}: {', '.join(facts)}"


def _gpus(report: Report) -> Table:
    table = Table("GPU", "name", "memory", "PCI", "NUMA", "NICs", "distance", box=None)
    near = {one.gpu: one for one in report.nics_of_gpus}
    for gpu in report.node.gpus:
        one = near.get(gpu.index)
        nics, distance = (", ".join(one.nics), one.distance) if one else ("-", "-")
        table.add_row(
            str(gpu.index), gpu.name or gpu.vendor, _memory(gpu), gpu.pci, _or(gpu.numa), nics, distance
        )
    return table


def _nics(fabric: Fabric) -> Table:
    table = Table("RDMA device", "state", "Gbit/s", "link", "PCI", "NUMA", "interface", box=None)
    for nic in fabric.nics:
        rate = f"{nic.rate_gbps:g}" if nic.rate_gbps else "-"
        link, names = nic.link_layer or "-", ", ".join(nic.interfaces) or "-"
        table.add_row(nic.name, nic.state or "-", rate, link, nic.pci or "-", _or(nic.numa), names)
    return table


def _rest(report: Report) -> Iterator[str]:
    fabric = report.node
    for one in fabric.interfaces:
        speed = f", {one.speed_gbps:g} Gbit/s" if one.speed_gbps else ""
        yield f"interface {one.name}: {'up' if one.up else 'down'}{speed} {' '.join(one.addresses)}".rstrip()
    if fabric.memlock_bytes is not None:
        yield f"locked memory: {_limit(fabric.memlock_bytes)}; open files: {_limit(fabric.open_files)}"
    for env in fabric.installed:
        found = ", ".join(f"{name} {version}" for name, version in sorted(env.versions.items()))
        yield f"{env.environment}: {env.error or found or 'no engine installed'}"
    if report.model is not None:
        yield "model: " + ", ".join(f"{name} {value}" for name, value in report.model.items() if value)
    if report.ports is not None:
        taken = "; ".join(f"{use.port} by {use.holder}" for use in report.ports_taken)
        yield f"ports {report.ports[0]}-{report.ports[1]}: {f'taken: {taken}' if taken else 'none taken'}"
    yield from (f"note: {note}" for note in fabric.notes)
    yield from report.findings


def _memory(gpu: Gpu) -> str:
    return f"{gpu.memory_bytes / GIB:.0f} GiB" if gpu.memory_bytes else "-"


def _or(number: int | None) -> str:
    return "-" if number is None else str(number)


def _limit(value: int | None) -> str:
    return "-" if value is None else "unlimited" if value == -1 else str(value)
