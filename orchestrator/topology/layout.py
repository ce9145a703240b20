"""Seats and ports for every instance of a topology, each clash with its line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator.core.address import is_loopback, is_wildcard, split_host_port, split_http_url
from orchestrator.core.placement import Clash, Demand, NodeSpace, Seat, seat
from orchestrator.core.ports import PortDemand, assign_ports
from orchestrator.core.types import Role
from orchestrator.engines.base import PortNeed, Shape
from orchestrator.errors import Problem
from orchestrator.topology import rules
from orchestrator.topology.inputs import Inputs, Part
from orchestrator.topology.schema import Node

NEAR = {
    Role.PREFILL: (Role.DECODE, Role.ENCODE),
    Role.DECODE: (Role.PREFILL,),
    Role.ENCODE: (Role.PREFILL, Role.UNIFIED),
    Role.UNIFIED: (Role.ENCODE,),
}
"""Whom each role hands to or gets from: a short way there is worth more than any other."""


@dataclass(slots=True)
class Layout:
    """Where instances run, by name, rank 0's seat first, and where their processes listen, by `process_name`;
    external ones have neither."""

    seats: Mapping[str, tuple[Seat, ...]] = field(default_factory=dict)
    ports: dict[str, dict[str, int]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def process_name(instance: str, rank: int) -> str:
    """What the process of node rank `rank` is called: the first bears the instance's own name."""
    return f"{instance}.{rank}" if rank else instance


def shape_of(part: Part, nnodes: int = 1) -> Shape:
    """The parallel sizes of a pool's instances, each on `nnodes` nodes."""
    pool = part.pool
    return Shape(tp=pool.tp, pp=pool.pp, dp=pool.dp, ep=pool.ep, nnodes=nnodes)


def lay_out(inputs: Inputs) -> Layout:
    """Place every launched instance and give its processes their ports."""
    nodes = inputs.topology.hosts
    spaces = [NodeSpace(n.name, n.gpus, *n.ports, rack=n.rack or "") for n in nodes]
    launched = [part for part in inputs.parts if part.pool.external is None]
    wanted = [d for part in launched for d in _demands(inputs, part, nodes)]
    placed = seat(wanted, spaces, {demand.owner: _held_seats(inputs, demand) for demand in wanted})
    layout = Layout(seats=placed.seats)
    layout.problems += _gpu_problems(inputs, placed.clashes)
    for index, node in enumerate(nodes):
        demands = [d for part in launched for d in _port_demands(part, node, placed.seats)]
        pools = [part.name for part in launched]
        held = {name: one.ports for name, one in inputs.held.items() if one.seat.node == node.name}
        ports, clashes = assign_ports(demands, spaces[index], _fixed(inputs, node), pools, held)
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


def _held_seats(inputs: Inputs, demand: Demand) -> tuple[Seat, ...]:
    """Where the processes of an instance were launched, if all of them were."""
    names = [process_name(demand.owner, rank) for rank in range(demand.nnodes)]
    return tuple(inputs.held[name].seat for name in names if name in inputs.held)


def _demands(inputs: Inputs, part: Part, nodes: Sequence[Node]) -> list[Demand]:
    names = part.pool.nodes or tuple(n.name for n in nodes)
    near = frozenset(p.name for p in inputs.parts if p.pool.role in NEAR[part.pool.role])
    nnodes = span(part, nodes)
    demands = []
    for index, name in part.instances():
        pin = part.pool.pin[index] if part.pool.pin is not None else None
        demand = Demand(
            name,
            part.gpus,
            names if pin is None else pin.span,
            pinned=None if pin is None else pin.gpus,
            nnodes=nnodes,
            pool=part.name,
            near=near,
            spread=part.pool.placement == "spread",
            index=index,
        )
        demands.append(demand)
    return demands


def span(part: Part, nodes: Sequence[Node]) -> int:
    """How many nodes each of a pool's instances takes: as written, else as few as have GPUs enough, where
    the engine can be spread over nodes at all."""
    if part.pool.nnodes is not None:
        return part.pool.nnodes
    if part.pool.pin is not None:
        return len(part.pool.pin[0].span)
    sizes = [len(n.gpus) for n in nodes if part.pool.nodes is None or n.name in part.pool.nodes]
    most = max(sizes, default=0)
    if not part.spans_nodes or not most:
        return 1
    for count in range(1, len(sizes) + 1):
        share, rest = divmod(part.gpus, count)
        if not rest and share <= most and _whole(part, share):
            return count
    return 1


def _whole(part: Part, share: int) -> bool:
    """Whether `share` ranks on each node split no tensor-parallel group but into equal parts."""
    tp = part.pool.tp
    return not share or share % tp == 0 or tp % share == 0


def _port_demands(part: Part, node: Node, seats: Mapping[str, tuple[Seat, ...]]) -> list[PortDemand]:
    demands = []
    for index, name in part.instances():
        taken = seats.get(name, ())
        needs = ports_of(part, len(taken) or 1)
        for rank, seated in enumerate(taken):
            if seated.node == node.name:
                runs = tuple((need.purpose, need.count) for need in needs if not (rank and need.head))
                demands.append(PortDemand(process_name(name, rank), part.name, index, runs))
    return demands


def ports_of(part: Part, nnodes: int) -> tuple[PortNeed, ...]:
    """Every port that an instance of a pool needs, spread over `nnodes` nodes."""
    return tuple(part.adapter.ports(part.pool.role, shape_of(part, nnodes), part.transfer))


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
    instance = owner.partition(".")[0]
    return next(p for p in inputs.parts if any(name == instance for _, name in p.instances()))


def _fixed(inputs: Inputs, node: Node) -> dict[int, str]:
    """Ports on the node's address that are not the planner's to give."""
    router, hosts = inputs.topology.router, inputs.topology.hosts
    taken: list[tuple[str, int, str]] = []
    its = next((n for n in hosts if n.name == router.node), hosts[0])
    if router.kind != "none" and its.address == node.address:
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
