"""The texts of nvidia-smi, and NVML's addresses."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from orchestrator.core.fabric import Told
from orchestrator.fabric import nvidia

DATA = Path(__file__).resolve().parents[1] / "data" / "fabric"


def test_the_matrix_with_a_legend() -> None:
    told = nvidia.parse_matrix((DATA / "topo-m.txt").read_text())
    assert told[:2] == (Told(0, "mlx5_0", "PXB"), Told(0, "mlx5_bond_0", "SYS"))
    assert [t.distance for t in told if t.nic == "mlx5_bond_0"] == ["SYS", "SYS", "PIX", "PHB"]
    assert len(told) == 8


def test_the_matrix_of_older_drivers_names_devices_itself() -> None:
    text = "\tGPU0\tGPU1\tmlx5_0\tCPU Affinity\nGPU0\t X \tNV3\tNODE\t0-63\nGPU1\tNV3\t X \tSYS\t0-63\n"
    assert nvidia.parse_matrix(text) == (Told(0, "mlx5_0", "NODE"), Told(1, "mlx5_0", "SYS"))


@pytest.mark.parametrize("text", ["", "No devices were found\n", "GPU0\n"])
def test_a_matrix_of_nothing(text: str) -> None:
    assert nvidia.parse_matrix(text) == ()


def test_the_query() -> None:
    first, second = nvidia.parse_query((DATA / "smi-q.txt").read_text())
    assert (first.index, first.pci, first.name) == (0, "0000:18:00.0", "NVIDIA H100 80GB HBM3")
    assert first.memory_bytes == 81559 * 1024 * 1024
    assert (second.index, second.pci) == (1, "0001:2a:00.0")


def test_a_query_of_nothing() -> None:
    assert nvidia.parse_query("No devices were found\n") == []


class Nvml:
    """As pynvml looks to whoever asks for GPUs."""

    class NVMLError(Exception):
        pass

    def __init__(self, gpus: list[tuple[bytes, str, int]], broken: bool = False) -> None:
        self.gpus, self.broken, self.open = gpus, broken, 0

    def nvmlInit(self) -> None:
        if self.broken:
            raise self.NVMLError("Driver Not Loaded")
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index == 7:
            raise self.NVMLError("GPU is lost")
        return index

    def nvmlDeviceGetPciInfo(self, handle: int) -> SimpleNamespace:
        return SimpleNamespace(busId=self.gpus[handle][0])

    def nvmlDeviceGetName(self, handle: int) -> str:
        return self.gpus[handle][1]

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:
        return SimpleNamespace(total=self.gpus[handle][2])


def test_nvml() -> None:
    fake = Nvml([(b"00000000:1B:00.0", "NVIDIA H200", 150754820096)])
    assert nvidia.by_nvml(fake) == [nvidia.Seen(0, "0000:1b:00.0", "NVIDIA H200", 150754820096)]
    assert fake.open == 0


def test_nvml_without_a_driver_and_with_a_lost_gpu() -> None:
    with pytest.raises(OSError, match="Driver Not Loaded"):
        nvidia.by_nvml(Nvml([], broken=True))
    lost = Nvml([(b"00000000:1B:00.0", "x", 1)] * 8)
    with pytest.raises(OSError, match="GPU is lost"):
        nvidia.by_nvml(lost)
    assert lost.open == 0
