"""What a node really has, as plain data: GPUs, NICs, where they sit on PCIe, and how far apart they are."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum


class Distance(IntEnum):
    """How a GPU and a NIC are connected, nearest first, in the words of `nvidia-smi topo -m`."""

    PIX = 0
    """Through one PCIe switch, or none."""
    PXB = 1
    """Through several PCIe switches, but not through the CPU."""
    PHB = 2
    """Through the CPU's host bridge."""
    NODE = 3
    """Between host bridges of one NUMA node."""
    SYS = 4
    """Between NUMA nodes, over the sockets' interconnect."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU; `index` is NVML's (order on the PCI bus), `path` leads from the host bridge to itself.

    `numa` is None where the kernel does not tell; so are sizes.
    """

    index: int
    pci: str = ""
    vendor: str = ""
    name: str = ""
    memory_bytes: int | None = None
    numa: int | None = None
    path: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Nic:
    """An RDMA device by its name in /sys/class/infiniband, and its first port.

    `state` is the port's (`ACTIVE`, `DOWN`, `INIT`, ...), `link_layer` `InfiniBand` or `Ethernet`,
    `interfaces` are the network interfaces on the same PCI function.
    """

    name: str
    pci: str = ""
    numa: int | None = None
    path: tuple[str, ...] = ()
    state: str = ""
    rate_gbps: float | None = None
    link_layer: str = ""
    interfaces: tuple[str, ...] = ()

    @property
    def active(self) -> bool:
        """Whether its port can carry anything now."""
        return self.state == "ACTIVE"


@dataclass(frozen=True, slots=True)
class Interface:
    """A network interface of the host, loopback and virtual ones left out."""

    name: str
    up: bool = True
    speed_gbps: float | None = None
    numa: int | None = None
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Told:
    """What `nvidia-smi topo -m` says of a GPU and a NIC; used where PCIe paths are hidden (some VMs)."""

    gpu: int
    nic: str
    distance: str


@dataclass(frozen=True, slots=True)
class Installed:
    """An environment that engines are started in, and what of them is installed there."""

    environment: str
    versions: dict[str, str] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True, slots=True)
class Fabric:
    """One node. `memlock_bytes` and `open_files` are soft limits, -1 for none at all, None where unknown.

    `notes` say what could not be read, and why.
    """

    host: str
    cpus: int | None = None
    memory_bytes: int | None = None
    numa_nodes: int = 1
    gpus: tuple[Gpu, ...] = ()
    nics: tuple[Nic, ...] = ()
    interfaces: tuple[Interface, ...] = ()
    told: tuple[Told, ...] = ()
    memlock_bytes: int | None = None
    open_files: int | None = None
    installed: tuple[Installed, ...] = ()
    notes: tuple[str, ...] = ()

    def gpu(self, index: int) -> Gpu | None:
        """The GPU of that index."""
        return next((gpu for gpu in self.gpus if gpu.index == index), None)

    def nic(self, name: str) -> Nic | None:
        """The RDMA device of that name."""
        return next((nic for nic in self.nics if nic.name == name), None)

    @property
    def active_nics(self) -> tuple[Nic, ...]:
        """The RDMA devices whose link is up."""
        return tuple(nic for nic in self.nics if nic.active)

    def interface_of(self, address: str) -> Interface | None:
        """The interface that has `address`."""
        return next((i for i in self.interfaces if address in i.addresses), None)


def distance(gpu: Gpu, nic: Nic, told: Sequence[Told] = ()) -> Distance:
    """How far apart they are: by their PCIe paths, else as `told`, else by their NUMA nodes.

    Host bridges whose NUMA node is not known count as of one node: so it is on machines with one.
    """
    common = 0
    for ours, theirs in zip(gpu.path, nic.path, strict=False):
        if ours != theirs:
            break
        common += 1
    if common > 1:
        # Device, downstream port, and then the upstream port of the switch that both hang off.
        below = max(len(gpu.path), len(nic.path)) - common
        return Distance.PIX if below <= 2 else Distance.PXB
    if common == 1:
        return Distance.PHB
    if not (gpu.path and nic.path):
        said = next((t.distance for t in told if t.gpu == gpu.index and t.nic == nic.name), None)
        if said is not None and said in Distance.__members__:
            return Distance[said]
    return Distance.SYS if crosses_numa(gpu, nic) else Distance.NODE


def crosses_numa(gpu: Gpu, nic: Nic) -> bool:
    """Whether they are known to be on different NUMA nodes."""
    return gpu.numa is not None and nic.numa is not None and gpu.numa != nic.numa


def differences(saved: Fabric, found: Fabric) -> Iterator[str]:
    """What has changed on a node since it was saved, as far as a plan depends on it."""
    for kind, old, new in (
        ("GPU", {g.index: g for g in saved.gpus}, {g.index: g for g in found.gpus}),
        ("RDMA device", {n.name: n for n in saved.nics}, {n.name: n for n in found.nics}),
    ):
        for key in (*old, *(key for key in new if key not in old)):
            if key not in new:
                yield f"{kind} {key} is gone"
            elif key not in old:
                yield f"{kind} {key} is new"
            else:
                yield from (f"{kind} {key} {change}" for change in _changes(old[key], new[key]))


def _changes(old: Gpu | Nic, new: Gpu | Nic) -> Iterator[str]:
    told: list[tuple[str, object, object]] = [
        ("is at", old.pci, new.pci),
        ("is on NUMA node", old.numa, new.numa),
    ]
    if isinstance(old, Nic) and isinstance(new, Nic):
        told += [("is", old.state, new.state), ("is", old.link_layer, new.link_layer)]
        if old.active and new.active:  # a link that is down shows some rate
            told.append(("has Gbit/s", old.rate_gbps, new.rate_gbps))
    yield from (f"{what} {now}, was {before}" for what, before, now in told if before != now)


def natural(name: str) -> tuple[tuple[int, str], ...]:
    """A sort key that puts `mlx5_10` behind `mlx5_9`."""
    return tuple((int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", name))
