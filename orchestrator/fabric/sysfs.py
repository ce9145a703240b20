"""GPUs, RDMA devices and network interfaces as a Linux kernel shows them below some root: `/`, or a copy."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from orchestrator.core.fabric import Gpu, Interface, Nic, natural

_VENDORS = {"0x10de": "nvidia", "0x1002": "amd"}
_GPU_CLASSES = {"nvidia": ("0x0300", "0x0302"), "amd": ("0x0302", "0x0380", "0x1200")}
"""PCI classes of a vendor's GPUs: VGA (also of desktop CPUs, so not AMD's), 3D, display, accelerator."""
_BRIDGE = re.compile(r"pci[0-9a-f]{4,}:[0-9a-f]{2}")
_PCI = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


class Root:
    """A file tree in the form of a Linux host's `/`, of which `sys` and `proc` are read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def text(self, relative: str | Path) -> str:
        """The stripped text of a file; empty where it is missing, unreadable, or the device refuses."""
        try:
            return (self.path / relative).read_text(errors="replace").strip()
        except OSError:
            return ""

    def number(self, relative: str | Path) -> int | None:
        """The whole number in a file, if it holds one."""
        try:
            return int(self.text(relative))
        except ValueError:
            return None

    def names(self, relative: str | Path) -> list[str]:
        """What a folder holds, in natural order; nothing where there is no such folder."""
        try:
            return sorted((entry.name for entry in (self.path / relative).iterdir()), key=natural)
        except OSError:
            return []

    def pci_path(self, relative: str | Path) -> tuple[str, ...]:
        """From the host bridge to the PCI device that `relative` is or has; empty for a virtual one."""
        parts = (self.path / relative).resolve().parts
        first = next((i for i, part in enumerate(parts) if _BRIDGE.fullmatch(part)), len(parts))
        functions = [part for part in parts[first + 1 :] if _PCI.fullmatch(part)]
        return (parts[first], *functions) if functions else ()


def gpus(root: Root) -> tuple[Gpu, ...]:
    """Every GPU on the PCI bus, numbered in the order of their addresses, as NVML numbers them."""
    found = []
    for pci in root.names("sys/bus/pci/devices"):
        device = Path("sys/bus/pci/devices", pci)
        vendor = _VENDORS.get(root.text(device / "vendor"), "")
        if not root.text(device / "class").startswith(_GPU_CLASSES.get(vendor, ("none",))):
            continue
        found.append(
            Gpu(
                index=0,
                pci=pci,
                vendor=vendor,
                name=_gpu_name(root, device, pci),
                memory_bytes=root.number(device / "mem_info_vram_total"),
                numa=_numa(root, device),
                path=root.pci_path(device),
            )
        )
    ordered = sorted(found, key=lambda gpu: gpu.pci)
    return tuple(
        Gpu(i, g.pci, g.vendor, g.name, g.memory_bytes, g.numa, g.path) for i, g in enumerate(ordered)
    )


def _gpu_name(root: Root, device: Path, pci: str) -> str:
    told = root.text(f"proc/driver/nvidia/gpus/{pci}/information")
    model = re.search(r"^Model:\s*(.+)$", told, re.MULTILINE)
    return model[1].strip() if model else root.text(device / "product_name")


def nics(root: Root) -> tuple[Nic, ...]:
    """Every RDMA device, with the state of its first port."""
    return tuple(_nic(root, name) for name in root.names("sys/class/infiniband"))


def _nic(root: Root, name: str) -> Nic:
    device = Path("sys/class/infiniband", name)
    ports = root.names(device / "ports")
    port = device / "ports" / (ports[0] if ports else "1")
    rate = re.match(r"([0-9.]+) Gb/sec", root.text(port / "rate"))
    path = root.pci_path(device)
    return Nic(
        name=name,
        pci=path[-1] if path else "",
        numa=_numa(root, device / "device"),
        path=path,
        # "4: ACTIVE"
        state=root.text(port / "state").rpartition(": ")[2],
        rate_gbps=float(rate[1]) if rate else None,
        link_layer=root.text(port / "link_layer"),
        interfaces=tuple(root.names(device / "device" / "net")),
    )


def interfaces(root: Root) -> tuple[Interface, ...]:
    """Every network interface on a bus; loopback, bridges, tunnels and the like have no device."""
    return tuple(_interfaces(root))


def _interfaces(root: Root) -> Iterator[Interface]:
    for name in root.names("sys/class/net"):
        device = Path("sys/class/net", name)
        if not root.names(device / "device"):
            continue
        speed = root.number(device / "speed")
        yield Interface(
            name=name,
            up=root.text(device / "operstate") != "down",
            # In Mbit/s; -1 where the driver does not know.
            speed_gbps=speed / 1000 if speed is not None and speed > 0 else None,
            numa=_numa(root, device / "device"),
        )


def numa_nodes(root: Root) -> int:
    """How many NUMA nodes there are, at least one."""
    found = [name for name in root.names("sys/devices/system/node") if re.fullmatch(r"node\d+", name)]
    return max(1, len(found))


def cpus(root: Root) -> int | None:
    """How many CPUs are online; None where it is not told."""
    ranges = root.text("sys/devices/system/cpu/online")
    if not re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", ranges):
        return None
    count = 0
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        count += int(last or first) - int(first) + 1
    return count


def memory_bytes(root: Root) -> int | None:
    """The host's memory; None where it is not told."""
    found = re.search(r"^MemTotal:\s+(\d+) kB$", root.text("proc/meminfo"), re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def _numa(root: Root, device: Path) -> int | None:
    """The device's NUMA node; the kernel says -1 where firmware does not tell."""
    node = root.number(device / "numa_node")
    return node if node is not None and node >= 0 else None
