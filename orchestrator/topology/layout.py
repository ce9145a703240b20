"""Seats and ports for every instance of a topology, each clash with its line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from orchestrator.core.address import is_loopback, is_wildcard, split_host_port, split_http_url
from orchestrator.core.placement import Clash, Demand, NodeSpace, PortDemand, Seat, assign_ports, seat
from orchestrator.engines.base import Shape
from orchestrator.errors import Problem
from orchestrator.topology import rules
from orchestrator.topology.inputs import Inputs, Part
from orchestrator.topology.schema import Node


@dataclass(slots=True)
class Layout:
    """Where instances run and listen, by instance name; external ones have neither."""

    seats: Mapping[str, Seat] = field(default_factory=dict)
    ports: dict[str, dict[str, int]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def shape_of(part: Part) -> Shape:
    """The parallel sizes of a pool's instances."""
    pool = part.pool
    return Shape(tp=pool.tp, pp=pool.pp, dp=pool.dp, ep=pool.ep)


def lay_out(inputs: Inputs) -> Layout:
    """Place every launched instance and give it its ports."""
    nodes = inputs.topology.hosts
    spaces = [NodeSpace(n.name, n.gpus, *n.ports) for n in nodes]
    launched = [part for part in inputs.parts if part.pool.external is None]
    placed = seat([d for part in launched for d in _demands(part, nodes)], spaces)
    layout = Layout(seats=placed.seats)
    layout.problems += _gpu_problems(inputs, placed.clashes)
    for index, node in enumerate(nodes):
        demands = [d for part in launched for d in _port_demands(part, node, placed.seats)]
        pools = [part.name for part in launched]
        ports, clashes = assign_ports(demands, spaces[index], _fixed(inputs, node), pools)
        layout.ports.update(ports)
        for clash in clashes:
            problem = inputs.source.problem(
                _part_of(inputs, clash.owner).place,
                f"{clash.owner}: {clash.message}",
                hint=f"change nodes.{index}.ports ({node.ports[0]}-{node.ports[1]})",
                rule=rules.PORTS,
            )
            layout.problems.append(problem)
    return layout


def _demands(part: Part, nodes: tuple[Node, ...]) -> list[Demand]:
    names = part.pool.nodes or tuple(n.name for n in nodes)
    demands = []
    for index, name in part.instances():
        if part.pool.pin is None:
            demands.append(Demand(name, part.gpus, names))
            continue
        pin = part.pool.pin[index]
        demands.append(Demand(name, part.gpus, (pin.node,), pin.gpus))
    return demands


def _port_demands(part: Part, node: Node, seats: Mapping[str, Seat]) -> list[PortDemand]:
    needs = part.adapter.ports(part.pool.role, shape_of(part), part.transfer)
    runs = tuple((need.purpose, need.count) for need in needs)
    return [
        PortDemand(name, part.name, index, runs)
        for index, name in part.instances()
        if name in seats and seats[name].node == node.name
    ]


def _gpu_problems(inputs: Inputs, clashes: list[Clash]) -> list[Problem]:
    found = []
    for clash in clashes:
        part = _part_of(inputs, clash.owner)
        message, hint = f"{clash.owner}: {clash.message}", _way_out(inputs, part)
        found.append(inputs.source.problem(part.place, message, hint=hint, rule=rules.PLACEMENT))
    return found


def _way_out(inputs: Inputs, part: Part) -> str:
    """What to do about GPUs that `part` lacks, by what is wanted and what is stated on its nodes."""
    nodes = {n.name: len(n.gpus) for n in inputs.topology.hosts}
    mine = set(part.pool.nodes or nodes)
    there = sum(nodes[name] for name in mine)
    if not there or part.pool.pin is not None:
        return "state the GPUs in nodes, or use a launch profile with `gpus: false` if it needs none"
    rivals = [p for p in inputs.parts if p.pool.external is None and set(p.pool.nodes or nodes) <= mine]
    wanted = sum(p.gpus * p.pool.size for p in rivals)
    if wanted > there:
        return f"{wanted} GPUs wanted, {there} there"
    return "there are GPUs enough, but no node has room: let other pools use other `nodes`, or `pin`"


def _part_of(inputs: Inputs, owner: str) -> Part:
    return next(p for p in inputs.parts if any(name == owner for _, name in p.instances()))


def _fixed(inputs: Inputs, node: Node) -> dict[int, str]:
    """Ports on the node's address that are not the planner's to give."""
    router = inputs.topology.router
    taken: list[tuple[str, int, str]] = []
    if router.kind != "none":
        taken.append((*split_host_port(router.listen), "router.listen"))
        taken.append((*router.admin_address, "router.admin"))
    for part in inputs.parts:
        for index, external in enumerate(part.pool.external or ()):
            host, port = split_http_url(external.url)
            taken.append((host, port, f"{part.name}-{index}, which is external"))
            if external.bootstrap_port is not None:
                taken.append((host, external.bootstrap_port, f"the bootstrap server of {part.name}-{index}"))
    return {port: holder for host, port, holder in taken if _meets(host, node.address)}


def _meets(host: str, address: str) -> bool:
    return host == address or is_wildcard(host) or (is_loopback(host) and is_loopback(address))
