"""What NVIDIA's driver tells of its GPUs: by NVML where its bindings are installed, else `nvidia-smi`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.core.fabric import Distance, Told

Run = Callable[[Sequence[str]], str]
"""Runs a command and returns its output. Raises OSError when it cannot, or fails."""

_NVIDIA_SMI = "nvidia-smi"


@dataclass(frozen=True, slots=True)
class Seen:
    """A GPU as the driver shows it."""

    index: int
    pci: str
    name: str
    memory_bytes: int | None


def by_nvml(nvml: Any) -> list[Seen]:
    """Every GPU, by `nvml`, the module pynvml of nvidia-ml-py. Raises OSError where there is no driver."""
    try:
        nvml.nvmlInit()
        try:
            return [_seen(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
        finally:
            nvml.nvmlShutdown()
    except nvml.NVMLError as error:
        raise OSError(f"NVML: {error}") from error


def _seen(nvml: Any, index: int) -> Seen:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    pci, name = nvml.nvmlDeviceGetPciInfo(handle).busId, nvml.nvmlDeviceGetName(handle)
    return Seen(index, normal(_text(pci)), _text(name), int(nvml.nvmlDeviceGetMemoryInfo(handle).total))


def by_command(run: Run) -> list[Seen]:
    """Every GPU, by `nvidia-smi -q`. Raises OSError where it does not run."""
    return parse_query(run([_NVIDIA_SMI, "-q"]))


def topology(run: Run) -> tuple[Told, ...]:
    """The matrix of `nvidia-smi topo -m`. Raises OSError where it does not run."""
    return parse_matrix(run([_NVIDIA_SMI, "topo", "-m"]))


def parse_query(text: str) -> list[Seen]:
    """The GPUs in the text of `nvidia-smi -q`, which lists them in NVML's order."""
    sections = re.split(r"^GPU ([0-9A-Fa-f]{4,}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])\s*$", text, flags=re.M)
    found = []
    for index, (pci, section) in enumerate(zip(sections[1::2], sections[2::2], strict=True)):
        name = re.search(r"^\s+Product Name\s+: (.+)$", section, re.M)
        total = re.search(r"^\s+FB Memory Usage\n\s+Total\s+: (\d+) MiB$", section, re.M)
        memory = int(total[1]) * 1024 * 1024 if total else None
        found.append(Seen(index, normal(pci), name[1].strip() if name else "", memory))
    return found


def parse_matrix(text: str) -> tuple[Told, ...]:
    """GPU and NIC distances in the text of `nvidia-smi topo -m`, old (`mlx5_0`) or new (`NIC0`, a legend)."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    names: dict[str, str] = dict(re.findall(r"^\s*(NIC\d+): (\S+)\s*$", plain, re.M))
    lines = [re.split(r"\t+|\s{2,}", line.strip()) for line in plain.splitlines() if line.strip()]
    header = next((cells for cells in lines if cells[0] == "GPU0" and "X" not in cells[1:2]), [])
    columns = [cell for cell in header if re.fullmatch(r"(GPU|NIC)\d+|mlx\d+_\w+", cell)]
    found = []
    for cells in lines:
        row = re.fullmatch(r"GPU(\d+)", cells[0])
        if row is None or cells is header:
            continue
        for column, level in zip(columns, cells[1:], strict=False):
            if not column.startswith("GPU") and level in Distance.__members__:
                found.append(Told(int(row[1]), names.get(column, column), level))
    return tuple(found)


def normal(pci: str) -> str:
    """`00000000:1B:00.0` as the kernel writes it, `0000:1b:00.0`."""
    domain, _, rest = pci.strip().lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
