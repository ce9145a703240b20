"""What a process is told of the NICs near its GPUs, from what its node says and what is known of it."""

from __future__ import annotations

from typing import Any

from orchestrator.core.fabric import Fabric
from orchestrator.engines.base import Near
from orchestrator.topology.schema import Node


def nearby(fabric: Fabric | None, node: Node, gpus: tuple[int, ...], over_tcp: bool) -> dict[str, Any]:
    """The fields of `InstanceSpec` about NICs, for a process on `gpus` of `node`.

    `over_tcp`: no NIC is named, whatever the node has, as a peer has none; the interface of the address is.
    """
    wired: dict[str, Any] = {}
    if not over_tcp:
        wired["nics"] = node.nics.near(gpus)
        mapped = dict(node.nics.by_gpu)
        wired["near"] = tuple(_near(fabric, gpu, mapped.get(gpu, ())) for gpu in gpus) if mapped else ()
    if fabric is None:
        return wired
    wired["node_nics"] = {nic.name: nic.state for nic in fabric.nics}
    interface = fabric.interface_of(node.address)
    if over_tcp and interface is not None:
        wired["interface"] = interface.name
    return wired


def _near(fabric: Fabric | None, index: int, names: tuple[str, ...]) -> Near:
    gpu = fabric.gpu(index) if fabric is not None else None
    if fabric is None or gpu is None or gpu.vendor != "nvidia":
        return Near(names)
    found = [fabric.nic(name) for name in names]
    return Near(names, gpu.pci, tuple(nic.pci if nic is not None else "" for nic in found))
