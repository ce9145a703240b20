"""How KV travels between the hosts that there are: by RDMA where they have it, over TCP where one has not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from orchestrator.core.fabric import Fabric
from orchestrator.core.types import Role
from orchestrator.topology.inputs import Part
from orchestrator.topology.schema import Topology

HANDS_OFF = (Role.PREFILL, Role.DECODE)


def carried(topology: Topology, parts: Sequence[Part], fabrics: Mapping[str, Fabric]) -> tuple[Part, ...]:
    """`parts` as their hosts can: over TCP where one that they or their peers may use has no RDMA up.

    Both sides of a hand-off change together. Where a pool names a transfer that needs RDMA, whoever wrote it
    is told (rule `no-rdma`), not overruled.
    """
    return tuple(_carried(topology, part, parts, fabrics) for part in parts)


def _carried(topology: Topology, part: Part, parts: Sequence[Part], fabrics: Mapping[str, Fabric]) -> Part:
    carriage = part.carriage
    if part.pool.role not in HANDS_OFF or carriage is None or carriage.by == "tcp":
        return part
    peers = [p for p in parts if p.pool.role in HANDS_OFF and p.dialect == part.dialect and p.pool.size]
    if not without_rdma(topology, peers, fabrics):
        return part
    if carriage.by == "either":
        return replace(part, over_tcp=True)
    written = [p for p in peers if p.pool.transfer is not None or p.pool.external is not None]
    return part if written else replace(part, chosen_transfer=carriage.tcp)


def without_rdma(topology: Topology, parts: Iterable[Part], fabrics: Mapping[str, Fabric]) -> list[str]:
    """The nodes that `parts` may use, are known, and have no RDMA device whose link is up.

    Who takes GPUs may use no node without any: a host for the router changes nothing.
    """
    found = {
        node.name
        for part in parts
        if part.pool.external is None
        for node in topology.hosts
        if node.name in _may_use(part, topology) and (node.gpus or not part.gpus)
    }
    known = [node.name for node in topology.hosts if node.name in found and node.name in fabrics]
    return [name for name in known if not fabrics[name].active_nics]


def _may_use(part: Part, topology: Topology) -> set[str]:
    if part.pool.pin is not None:
        return {name for pin in part.pool.pin for name in pin.span}
    return set(part.pool.nodes or (node.name for node in topology.hosts))
