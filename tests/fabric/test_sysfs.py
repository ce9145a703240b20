"""What is read off trees in the form of real hosts' `/sys` and `/proc`."""

from __future__ import annotations

from pathlib import Path

import hosttree

from orchestrator.core.fabric import Distance
from orchestrator.core.nicmap import nic_map
from orchestrator.fabric import sysfs
from orchestrator.fabric.host import read


def test_a_dgx_h100(tmp_path: Path) -> None:
    host = read(hosttree.unfold("dgx-h100", tmp_path))
    assert (host.host, host.cpus, host.numa_nodes) == ("dgx-h100", 224, 2)
    assert host.memory_bytes == 2113393164 * 1024
    assert [g.name for g in host.gpus] == ["NVIDIA H100 80GB HBM3"] * 8
    assert [g.numa for g in host.gpus] == [0] * 4 + [1] * 4
    assert host.gpus[0].path[0] == "pci0000:15"
    assert host.gpus[0].path[-1] == host.gpus[0].pci == "0000:1b:00.0"
    assert len(host.nics) == 12
    first = host.nic("mlx5_0")
    assert first is not None
    assert (first.pci, first.state, first.rate_gbps, first.link_layer, first.interfaces) == (
        "0000:18:00.0",
        "ACTIVE",
        400.0,
        "InfiniBand",
        ("ib0",),
    )
    assert [n.name for n in host.nics[-2:]] == ["mlx5_10", "mlx5_11"]
    # The storage ports are nobody's nearest.
    picks = nic_map(host)
    assert [p.nics[0] for p in picks] == [f"mlx5_{i}" for i in (0, 3, 4, 5, 6, 9, 10, 11)]
    assert {p.distance for p in picks} == {Distance.PXB}
    eno3 = next(i for i in host.interfaces if i.name == "eno3")
    assert (eno3.up, eno3.speed_gbps, eno3.numa) == (True, 10.0, 0)
    assert "lo" not in [i.name for i in host.interfaces]


def test_an_hgx_h200(tmp_path: Path) -> None:
    host = read(hosttree.unfold("hgx-h200", tmp_path))
    picks = nic_map(host)
    assert [p.nics for p in picks] == [(f"mlx5_{i}",) for i in range(8)]
    assert {p.distance for p in picks} == {Distance.PIX}


def test_eight_accelerators_of_amd(tmp_path: Path) -> None:
    host = read(hosttree.unfold("mi300x", tmp_path))
    assert {(g.vendor, g.name, g.memory_bytes) for g in host.gpus} == {
        ("amd", "AMD Instinct MI300X OAM", 206141652992)
    }
    assert [p.nics for p in nic_map(host)] == [(f"mlx5_{i}",) for i in range(8)]


def test_a_pcie_box_with_a_nic_per_socket(tmp_path: Path) -> None:
    picks = nic_map(read(hosttree.unfold("pcie-two-numa", tmp_path)))
    assert [p.nics[0] for p in picks] == ["mlx5_0", "mlx5_0", "mlx5_1", "mlx5_1"]
    assert {p.distance for p in picks} == {Distance.NODE}


def test_a_machine_with_ethernet_alone(tmp_path: Path) -> None:
    host = read(hosttree.unfold("ethernet-vm", tmp_path))
    assert (len(host.gpus), host.gpus[0].numa, host.nics, nic_map(host)) == (2, None, (), ())
    assert [(i.name, i.speed_gbps, i.numa) for i in host.interfaces] == [("ens3", None, None)]


def test_a_link_that_is_down_is_gone_round(tmp_path: Path) -> None:
    host = read(hosttree.unfold("nic-down", tmp_path))
    down = host.nic("mlx5_2")
    assert down is not None
    assert (down.state, down.rate_gbps, down.active) == ("DOWN", 10.0, False)
    picks = {p.gpu: p for p in nic_map(host)}
    # Its neighbours on the same socket carry it along, as near as there is.
    assert picks[2].distance is Distance.NODE
    assert picks[2].nics[0] in {"mlx5_0", "mlx5_1", "mlx5_3"}
    assert picks[3].nics == ("mlx5_3",)


def test_an_empty_root_has_nothing_and_raises_nothing(tmp_path: Path) -> None:
    root = sysfs.Root(tmp_path)
    assert (sysfs.gpus(root), sysfs.nics(root), sysfs.interfaces(root)) == ((), (), ())
    assert (sysfs.numa_nodes(root), sysfs.cpus(root), sysfs.memory_bytes(root)) == (1, None, None)


def test_a_software_device_has_no_place_on_the_bus(tmp_path: Path) -> None:
    """Soft RoCE: /sys/class/infiniband/rxe0 leads to devices/virtual."""
    own = tmp_path / "sys/devices/virtual/infiniband/rxe0"
    hosttree.write(own / "ports/1/state", "4: ACTIVE")
    hosttree.write(own / "ports/1/rate", "2.5 Gb/sec (1X SDR)")
    hosttree.link(tmp_path / "sys/class/infiniband/rxe0", own)
    (nic,) = sysfs.nics(sysfs.Root(tmp_path))
    assert (nic.name, nic.pci, nic.path, nic.rate_gbps, nic.active) == ("rxe0", "", (), 2.5, True)


def test_amd_accelerators_are_gpus_and_display_chips_are_not(tmp_path: Path) -> None:
    for pci, kind in (("0000:05:00.0", "0x120000"), ("0000:06:00.0", "0x030000")):
        device = tmp_path / "sys/devices/pci0000:00" / pci
        hosttree.write(device / "vendor", "0x1002")
        hosttree.write(device / "class", kind)
        hosttree.write(device / "mem_info_vram_total", "206141652992")
        hosttree.link(tmp_path / "sys/bus/pci/devices" / pci, device)
    (gpu,) = sysfs.gpus(sysfs.Root(tmp_path))
    assert (gpu.index, gpu.pci, gpu.vendor, gpu.memory_bytes) == (0, "0000:05:00.0", "amd", 206141652992)
