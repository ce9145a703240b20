"""Hosts as trees of `sys` and `proc`, unfolded from the manifests in tests/data/fabric.

A line is a device: its address, its NUMA node, the bridges `via` which it hangs off the CPU. What the kernel
would put around it (links from `class` and `bus`, attribute files) is made here; `_` stands for a space.
"""

from __future__ import annotations

import os
from pathlib import Path

DATA = Path(__file__).resolve().parents[1] / "data" / "fabric"


def unfold(name: str, root: Path) -> Path:
    """The host of `NAME.txt` below `root`, which is returned."""
    for line in (DATA / f"{name}.txt").read_text().splitlines():
        kind, *words = line.split()
        values = {key: value.replace("_", " ") for key, _, value in (w.partition("=") for w in words)}
        if kind == "host":
            write(root / "proc/sys/kernel/hostname", words[0])
        elif kind == "cpus":
            write(root / "sys/devices/system/cpu/online", words[0])
        elif kind == "numa":
            for node in range(int(words[0])):
                write(root / f"sys/devices/system/node/node{node}/cpulist", "")
        elif kind == "memory":
            write(root / "proc/meminfo", f"MemTotal:       {words[0]} kB\nMemFree:        1 kB")
        elif kind == "gpu":
            vendor, _, product = values["id"].partition(":")
            device = _pci(root, words[0], values, "0x030200" if vendor == "0x10de" else "0x120000")
            write(device / "vendor", vendor)
            write(device / "device", product)
            if vendor == "0x1002":
                write(device / "product_name", values["model"])
                write(device / "mem_info_vram_total", values["vram"])
                continue
            told = f"Model: \t\t {values['model']}\nIRQ:   \t\t 18\nBus Location: \t {words[0]}"
            write(root / f"proc/driver/nvidia/gpus/{words[0]}/information", told)
        elif kind == "nic":
            _nic(root, words[0], _pci(root, words[1], values, "0x020700"), values)
        elif kind == "net":
            _net(root, words[0], _pci(root, words[1], values, "0x020000"), values["speed"])
    return root


def _pci(root: Path, pci: str, values: dict[str, str], kind: str) -> Path:
    device = root / "sys/devices" / values["via"] / pci
    write(device / "class", kind)
    write(device / "vendor", "0x15b3")
    write(device / "numa_node", values["numa"])
    for bridge in (values["via"] + "/" + pci).split("/")[1:-1]:
        at = root / "sys/devices" / values["via"].partition(bridge)[0] / bridge
        write(at / "class", "0x060400")
        write(at / "vendor", "0x1000")
        link(root / "sys/bus/pci/devices" / bridge, at)
    link(root / "sys/bus/pci/devices" / pci, device)
    return device


def _nic(root: Path, name: str, device: Path, values: dict[str, str]) -> None:
    own, port = device / "infiniband" / name, device / "infiniband" / name / "ports" / "1"
    state = {"ACTIVE": "4: ACTIVE", "DOWN": "1: DOWN"}[values["state"]]
    write(port / "state", state)
    write(port / "phys_state", "5: LinkUp" if values["state"] == "ACTIVE" else "3: Disabled")
    write(port / "rate", values["rate"])
    write(port / "link_layer", values["link"])
    link(own / "device", device)
    link(root / "sys/class/infiniband" / name, own)
    speed = "-1" if values["state"] == "DOWN" else str(int(values["rate"].split()[0]) * 1000)
    _net(root, values["net"], device, speed)


def _net(root: Path, name: str, device: Path, speed: str) -> None:
    own = device / "net" / name
    write(own / "speed", speed)
    write(own / "operstate", "up")
    link(own / "device", device)
    link(root / "sys/class/net" / name, own)
    write(root / "sys/devices/virtual/net/lo/operstate", "unknown")
    link(root / "sys/class/net/lo", root / "sys/devices/virtual/net/lo")


def write(path: Path, text: str) -> None:
    """A file of the tree."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def link(path: Path, target: Path) -> None:
    """A relative symbolic link, as sysfs has them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.is_symlink():
        path.symlink_to(os.path.relpath(target, path.parent))
