"""This host, or a copy of its `/sys` and `/proc`, as one `Fabric`; what cannot be read is only noted."""

from __future__ import annotations

import importlib
import resource
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import psutil

from orchestrator.core.fabric import Fabric, Gpu, Told
from orchestrator.fabric import nvidia, sysfs
from orchestrator.fabric.nvidia import Run, Seen

HERE = Path("/")
RUN_TIMEOUT_S = 30.0
"""A driver that has to wake eight GPUs without persistence takes tens of seconds."""


def run(command: Sequence[str]) -> str:
    """The output of a command. Raises OSError when it cannot be run, fails, or takes too long."""
    try:
        done = subprocess.run(
            list(command),
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=RUN_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise OSError(f"{command[0]}: no answer within {RUN_TIMEOUT_S:g} s") from error
    if done.returncode:
        said = (done.stderr or done.stdout).strip().partition("\n")[0]
        raise OSError(f"{' '.join(command)}: exit code {done.returncode}: {said}")
    return done.stdout


def read(path: Path = HERE, run: Run = run) -> Fabric:
    """What the host has whose root is at `path`; a copy (any path but `/`) tells no limits or addresses."""
    root = sysfs.Root(path)
    fabric = Fabric(
        host=root.text("proc/sys/kernel/hostname") or socket.gethostname(),
        cpus=sysfs.cpus(root),
        memory_bytes=sysfs.memory_bytes(root),
        numa_nodes=sysfs.numa_nodes(root),
        gpus=sysfs.gpus(root),
        nics=sysfs.nics(root),
        interfaces=sysfs.interfaces(root),
    )
    return fabric if path != HERE else _live(fabric, run)


def _live(fabric: Fabric, run: Run) -> Fabric:
    """`fabric` with what only the running host tells."""
    notes: list[str] = []
    told: tuple[Told, ...] = ()
    if not fabric.gpus or any(gpu.vendor == "nvidia" for gpu in fabric.gpus):
        seen, notes = _driver(run)
        fabric = replace(fabric, gpus=merged(fabric.gpus, seen))
        if fabric.nics and any(not gpu.path for gpu in fabric.gpus):
            try:
                told = nvidia.topology(run)
            except OSError as error:
                notes.append(str(error))
    if not fabric.gpus:
        notes = []  # no GPU anywhere: that no driver answers is no news
    mine = addresses()
    return replace(
        fabric,
        told=told,
        interfaces=tuple(
            replace(i, addresses=tuple(a for a, name in mine.items() if name == i.name))
            for i in fabric.interfaces
        ),
        memlock_bytes=_limit(resource.RLIMIT_MEMLOCK),
        open_files=_limit(resource.RLIMIT_NOFILE),
        notes=tuple(notes),
    )


def _driver(run: Run) -> tuple[list[Seen], list[str]]:
    """The GPUs as NVIDIA's driver numbers them, and why not, if it does not tell."""
    try:
        return nvidia.by_nvml(importlib.import_module("pynvml")), []
    except ImportError:
        why = ""
    except OSError as error:
        why = str(error)
    try:
        return nvidia.by_command(run), []
    except OSError as error:
        return [], [*filter(None, [why]), f"{error}: GPUs are as the PCI bus shows them"]


def merged(found: Sequence[Gpu], seen: Sequence[Seen]) -> tuple[Gpu, ...]:
    """The GPUs of the bus with the driver's numbers, names and sizes; those it lacks are left out, as no
    engine could use them. Without anything `seen`, as they were `found`."""
    if not seen:
        return tuple(found)
    on_bus = {gpu.pci: gpu for gpu in found}
    return tuple(
        replace(
            on_bus.get(one.pci, Gpu(one.index, one.pci, "nvidia")),
            index=one.index,
            name=one.name,
            memory_bytes=one.memory_bytes,
        )
        for one in seen
    )


def addresses() -> dict[str, str]:
    """Every IP address of this host with the interface that has it, scopes (`%eth0`) left out."""
    return {
        one.address.partition("%")[0]: interface
        for interface, found in psutil.net_if_addrs().items()
        for one in found
        if one.family in (socket.AF_INET, socket.AF_INET6)
    }


def _limit(which: int) -> int:
    soft, _ = resource.getrlimit(which)
    return -1 if soft == resource.RLIM_INFINITY else soft
