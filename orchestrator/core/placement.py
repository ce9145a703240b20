"""Placement: which node and GPUs an instance gets, and every port of the deployment from one allocator.

Pure and deterministic: nothing is probed, so that every host works out the same plan. Growing a pool
leaves the ports of the others where they are as long as its region of the node's range suffices.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

REGION_PORTS = 200
"""Ports set aside for each pool on a node, so that one pool can grow without moving the others' ports."""
SLOT_PORTS = 10
"""An instance's ports start at multiples of this within its region: instance 3 is found at ...30."""


@dataclass(frozen=True, slots=True)
class NodeSpace:
    """What a node offers: GPU indices in order, and its range of ports (both ends included)."""

    name: str
    gpus: tuple[int, ...]
    first_port: int
    last_port: int


@dataclass(frozen=True, slots=True)
class Demand:
    """What one instance needs: `gpus` of them, on one of `nodes` (in order of preference).

    `pinned` names the very GPUs, on the only node of `nodes`.
    """

    owner: str
    gpus: int
    nodes: tuple[str, ...]
    pinned: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Seat:
    """Where an instance runs."""

    node: str
    gpus: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Clash:
    """Why `owner` could not be placed as asked."""

    owner: str
    message: str


@dataclass(slots=True)
class Placed:
    """The outcome of `seat`: seats by owner, and what did not fit."""

    seats: dict[str, Seat] = field(default_factory=dict)
    clashes: list[Clash] = field(default_factory=list)


def seat(demands: Sequence[Demand], nodes: Sequence[NodeSpace]) -> Placed:
    """A seat for each demand; no GPU is given twice.

    Pinned demands go first. The others take, in order, the first of their nodes with room: an aligned
    run of GPUs where there is one (neighbours share switches and NUMA nodes), else the lowest free ones.
    Demands without GPUs are dealt round over their nodes.
    """
    placed = Placed()
    owner_of: dict[tuple[str, int], str] = {}
    by_name = {n.name: n for n in nodes}
    dealt: dict[tuple[str, ...], int] = {}
    for demand in sorted(demands, key=lambda d: d.pinned is None):
        if demand.pinned is not None:
            _seat_pinned(demand, by_name[demand.nodes[0]], owner_of, placed)
        elif demand.gpus == 0:
            turn = dealt.get(demand.nodes, 0)
            dealt[demand.nodes] = turn + 1
            placed.seats[demand.owner] = Seat(demand.nodes[turn % len(demand.nodes)])
        else:
            _seat_free(demand, [by_name[n] for n in demand.nodes], owner_of, placed)
    return placed


def _seat_pinned(
    demand: Demand, node: NodeSpace, owner_of: dict[tuple[str, int], str], placed: Placed
) -> None:
    pinned = demand.pinned or ()
    for gpu in pinned:
        holder = owner_of.get((node.name, gpu))
        if gpu not in node.gpus:
            placed.clashes.append(Clash(demand.owner, f"node {node.name} has no GPU {gpu}"))
        elif holder is not None:
            message = f"GPU {gpu} of node {node.name} is already pinned to {holder}"
            placed.clashes.append(Clash(demand.owner, message))
        owner_of.setdefault((node.name, gpu), demand.owner)
    placed.seats[demand.owner] = Seat(node.name, pinned)


def _seat_free(
    demand: Demand, nodes: Sequence[NodeSpace], owner_of: dict[tuple[str, int], str], placed: Placed
) -> None:
    for node in nodes:
        free = [g for g in node.gpus if (node.name, g) not in owner_of]
        if len(free) >= demand.gpus:
            gpus = _aligned(node.gpus, set(free), demand.gpus) or tuple(free[: demand.gpus])
            owner_of.update({(node.name, g): demand.owner for g in gpus})
            placed.seats[demand.owner] = Seat(node.name, gpus)
            return
    unbooked = {n.name: sum((n.name, g) not in owner_of for g in n.gpus) for n in nodes}
    left = ", ".join(f"{n.name} has {unbooked[n.name]} of {len(n.gpus)} free" for n in nodes)
    placed.clashes.append(Clash(demand.owner, f"needs {_gpus(demand.gpus)} on one node; {left}"))


def _gpus(count: int) -> str:
    return f"{count} GPU" if count == 1 else f"{count} GPUs"


def _aligned(gpus: Sequence[int], free: set[int], count: int) -> tuple[int, ...]:
    for start in range(0, len(gpus) - count + 1, count):
        run = gpus[start : start + count]
        if free.issuperset(run):
            return tuple(run)
    return ()


@dataclass(frozen=True, slots=True)
class PortDemand:
    """The runs of consecutive ports that one instance needs, by purpose, in order."""

    owner: str
    pool: str
    index: int
    runs: tuple[tuple[str, int], ...]

    @property
    def total(self) -> int:
        """Ports needed in all."""
        return sum(count for _, count in self.runs)


def assign_ports(
    demands: Sequence[PortDemand],
    node: NodeSpace,
    fixed: Mapping[int, str],
    pools: Sequence[str] = (),
) -> tuple[dict[str, dict[str, int]], list[Clash]]:
    """First port of each run by owner and purpose, for the instances of one node, and what clashes.

    Pools get regions of the node's range in the order of `pools` (those left out follow, in order of
    appearance); one without an instance here keeps its place. Where regions of comfortable size do not
    all fit, everything is packed tightly instead. `fixed` are ports on this address that are spoken
    for already (the router's listeners, external engines), with their holders.
    """
    offsets = _roomy(demands, pools)
    room = node.last_port - node.first_port + 1
    if any(offset + d.total > room for d, offset in zip(demands, offsets, strict=True)):
        offsets = _tight(demands)
    ports: dict[str, dict[str, int]] = {}
    clashes: list[Clash] = []
    for demand, offset in zip(demands, offsets, strict=True):
        if offset + demand.total > room:
            needed = sum(d.total for d in demands)
            message = (
                f"no port left on node {node.name}: its instances need {needed} ports, "
                f"the range {node.first_port}-{node.last_port} has {room}"
            )
            clashes.append(Clash(demand.owner, message))
            break
        ports[demand.owner] = _runs(demand, node.first_port + offset)
    clashes += _held(demands, ports, fixed)
    return ports, clashes


def _runs(demand: PortDemand, first: int) -> dict[str, int]:
    starts = {}
    for purpose, count in demand.runs:
        starts[purpose] = first
        first += count
    return starts


def _roomy(demands: Sequence[PortDemand], pools: Sequence[str]) -> list[int]:
    slots = dict.fromkeys(pools, SLOT_PORTS)
    reach = dict.fromkeys(pools, 1)
    for d in demands:
        slots[d.pool] = max(slots.get(d.pool, 0), _round_up(d.total, SLOT_PORTS))
        reach[d.pool] = max(reach.get(d.pool, 0), d.index + 1)
    starts: dict[str, int] = {}
    end = 0
    for pool, slot in slots.items():
        starts[pool] = end
        end += _round_up(slot * reach[pool], REGION_PORTS)
    return [starts[d.pool] + d.index * slots[d.pool] for d in demands]


def _tight(demands: Iterable[PortDemand]) -> list[int]:
    offsets, end = [], 0
    for d in demands:
        offsets.append(end)
        end += d.total
    return offsets


def _round_up(number: int, step: int) -> int:
    return -(-number // step) * step


def _held(
    demands: Sequence[PortDemand], ports: Mapping[str, Mapping[str, int]], fixed: Mapping[int, str]
) -> list[Clash]:
    clashes = []
    for demand in demands:
        for purpose, count in demand.runs:
            first = ports.get(demand.owner, {}).get(purpose)
            if first is None:
                continue
            for port in range(first, first + count):
                if port in fixed:
                    message = f"its {purpose} port {port} is also that of {fixed[port]}"
                    clashes.append(Clash(demand.owner, message))
    return clashes
