"""Every port of a deployment's engines, from one allocator.

Pure and deterministic: nothing is probed, so that every host works out the same plan. Growing a pool
leaves the ports of the others where they are as long as its region of the node's range suffices, and those
that are held already stay where they are in any case, while there is room for all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.core.placement import Clash, NodeSpace

REGION_PORTS = 200
"""Ports set aside for each pool on a node, so that one pool can grow without moving the others' ports."""
SLOT_PORTS = 10
"""An instance's ports start at multiples of this within its region: instance 3 is found at ...30."""


NOTHING: Mapping[str, Mapping[str, int]] = {}
"""Who holds ports already, where nobody does."""


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
    held: Mapping[str, Mapping[str, int]] = NOTHING,
) -> tuple[dict[str, dict[str, int]], list[Clash]]:
    """First port of each run by owner and purpose, for the instances of one node, and what clashes.

    Pools get regions of the node's range in the order of `pools` (those left out follow, in order of
    appearance); one without an instance here keeps its place. Where regions of comfortable size do not
    all fit, everything is packed tightly instead. `fixed` are ports on this address that are spoken
    for already (the router's listeners, external engines), with their holders. `held` are first ports by
    owner and purpose that are kept as far as they are what is asked for; who would meet them goes to the
    next slot that is free. If that leaves anybody without, nothing is kept.
    """
    stays = _staying(demands, node, fixed, held)
    if stays:
        ports = _around(demands, node, fixed, pools, stays)
        if ports is not None:
            return ports, _met(demands, ports, fixed)
    offsets = _offsets(demands, node, pools)
    room = node.last_port - node.first_port + 1
    ports = {}
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
    clashes += _met(demands, ports, fixed)
    return ports, clashes


def _staying(
    demands: Sequence[PortDemand],
    node: NodeSpace,
    fixed: Mapping[int, str],
    held: Mapping[str, Mapping[str, int]],
) -> dict[str, dict[str, int]]:
    """Of those that hold ports, who may keep them: the runs it asks for, in the range, and nobody else's."""
    stays: dict[str, dict[str, int]] = {}
    taken = set(fixed)
    for demand in demands:
        ports = held.get(demand.owner)
        if ports is None or ports.keys() != {purpose for purpose, _ in demand.runs}:
            continue
        own = _ports(demand, ports)
        if (
            all(node.first_port <= port <= node.last_port for port in own)
            and len(own) == len(set(own))
            and taken.isdisjoint(own)
        ):
            stays[demand.owner] = {purpose: ports[purpose] for purpose, _ in demand.runs}
            taken.update(own)
    return stays


def _around(
    demands: Sequence[PortDemand],
    node: NodeSpace,
    fixed: Mapping[int, str],
    pools: Sequence[str],
    stays: Mapping[str, dict[str, int]],
) -> dict[str, dict[str, int]] | None:
    """Ports for all, around those that stay; None if there is no room for somebody."""
    taken = {port for d in demands if d.owner in stays for port in _ports(d, stays[d.owner])}
    found, displaced = dict(stays), []
    for demand, offset in zip(demands, _offsets(demands, node, pools), strict=True):
        if demand.owner in stays:
            continue
        runs = _runs(demand, node.first_port + offset)
        own = _ports(demand, runs)
        if own and (max(own) > node.last_port or not taken.isdisjoint(own)):
            displaced.append(demand)
        else:
            found[demand.owner] = runs
            taken.update(own)
    taken.update(fixed)
    for demand in displaced:
        starts = range(node.first_port, node.last_port + 2 - demand.total)
        for first in sorted(starts, key=lambda port: ((port - node.first_port) % SLOT_PORTS != 0, port)):
            if taken.isdisjoint(range(first, first + demand.total)):
                break
        else:
            return None
        found[demand.owner] = _runs(demand, first)
        taken.update(range(first, first + demand.total))
    return {demand.owner: found[demand.owner] for demand in demands}


def _ports(demand: PortDemand, starts: Mapping[str, int]) -> list[int]:
    return [
        port for purpose, count in demand.runs for port in range(starts[purpose], starts[purpose] + count)
    ]


def _offsets(demands: Sequence[PortDemand], node: NodeSpace, pools: Sequence[str]) -> list[int]:
    room = node.last_port - node.first_port + 1
    offsets = _roomy(demands, pools)
    if any(offset + d.total > room for d, offset in zip(demands, offsets, strict=True)):
        return _tight(demands)
    return offsets


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


def _met(
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
