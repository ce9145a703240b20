"""How far a GPU is from a NIC, and which NICs each GPU uses (`fabric` and `nicmap`)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.fabric import Distance, Fabric, Gpu, Nic, Told, differences, distance, natural
from orchestrator.core.nicmap import nic_map

SWITCH = ("pci0000:15", "0000:15:01.0", "0000:16:00.0")


def gpu(index: int = 0, path: tuple[str, ...] = (), numa: int | None = 0) -> Gpu:
    return Gpu(index, path=path, numa=numa)


def nic(name: str, path: tuple[str, ...] = (), numa: int | None = 0, **fields) -> Nic:
    return Nic(name, path=path, numa=numa, **{"state": "ACTIVE", "rate_gbps": 400.0, **fields})


@pytest.mark.parametrize(
    ("path", "numa", "expected"),
    [
        ((*SWITCH, "0000:17:01.0", "0000:19:00.0"), 0, Distance.PIX),
        ((*SWITCH, "0000:17:00.0", "0000:18:00.1"), 0, Distance.PIX),
        ((*SWITCH, "0000:17:01.0", "0000:19:00.0", "0000:1a:00.0", "0000:1b:00.0"), 0, Distance.PXB),
        (("pci0000:15", "0000:15:03.0", "0000:20:00.0"), 0, Distance.PHB),
        (("pci0000:37", "0000:37:01.0", "0000:38:00.0"), 0, Distance.NODE),
        (("pci0000:97", "0000:97:01.0", "0000:98:00.0"), 1, Distance.SYS),
        (("pci0000:97", "0000:97:01.0", "0000:98:00.0"), None, Distance.NODE),
    ],
)
def test_distance_by_pcie_path(path, numa, expected) -> None:
    here = gpu(path=(*SWITCH, "0000:17:00.0", "0000:18:00.0"))
    assert distance(here, nic("mlx5_0", path, numa)) is expected


def test_where_paths_are_hidden_the_driver_is_believed() -> None:
    told = (Told(0, "mlx5_0", "PXB"), Told(1, "mlx5_0", "X"))
    assert distance(gpu(), nic("mlx5_0"), told) is Distance.PXB
    assert distance(gpu(1), nic("mlx5_0", numa=1), told) is Distance.SYS


def test_names_sort_as_people_count() -> None:
    names = ["mlx5_10", "mlx5_bond_0", "mlx5_9"]
    assert sorted(names, key=natural) == ["mlx5_9", "mlx5_10", "mlx5_bond_0"]


def beside(index: int, switch: int, numa: int = 0) -> tuple[str, ...]:
    return (f"pci{switch}", f"root{switch}", f"up{switch}", f"down{switch}.{index}", f"{switch}.{index}")


def test_two_gpus_and_two_nics_on_a_switch_share_evenly() -> None:
    """As in a DGX A100."""
    host = Fabric(
        "a100",
        gpus=tuple(gpu(i, beside(i, i // 2)) for i in range(4)),
        nics=tuple(nic(f"mlx5_{i}", beside(10 + i, i // 2)) for i in range(4)),
    )
    assert [p.nics for p in nic_map(host)] == [("mlx5_0",), ("mlx5_1",), ("mlx5_2",), ("mlx5_3",)]
    assert nic_map(host, per_gpu=2)[0].nics == ("mlx5_0", "mlx5_1")


def test_a_gpu_with_four_nics_of_its_own_gets_all_four() -> None:
    """As in an EC2 p5, each with 100 Gbit/s."""
    host = Fabric(
        "p5", gpus=(gpu(0, beside(0, 0)),), nics=tuple(nic(f"rdmap{i}", beside(1 + i, 0)) for i in range(4))
    )
    assert nic_map(host)[0].nics == ("rdmap0", "rdmap1", "rdmap2", "rdmap3")


def test_of_equally_near_ones_a_slow_port_is_no_peer() -> None:
    host = Fabric("h", gpus=(gpu(),), nics=(nic("mlx5_0", rate_gbps=25.0), nic("mlx5_1")))
    assert nic_map(host)[0].nics == ("mlx5_1",)
    assert nic_map(host, per_gpu=2)[0].nics == ("mlx5_1", "mlx5_0")


def test_a_dead_link_is_never_used() -> None:
    assert nic_map(Fabric("h", gpus=(gpu(),), nics=(nic("mlx5_0", state="DOWN"),))) == ()


@given(
    gpus=st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0, 1, None])), min_size=1, max_size=8),
    nics=st.lists(
        st.tuples(
            st.integers(0, 3), st.sampled_from([0, 1, None]), st.booleans(), st.sampled_from([25.0, 400.0])
        ),
        max_size=8,
    ),
    per_gpu=st.one_of(st.none(), st.integers(1, 4)),
)
def test_every_gpu_gets_the_nearest_that_is_up_and_none_twice(gpus, nics, per_gpu) -> None:
    host = Fabric(
        "any",
        gpus=tuple(gpu(i, beside(i, s), n) for i, (s, n) in enumerate(gpus)),
        nics=tuple(
            nic(f"mlx5_{i}", beside(100 + i, s), n, state="ACTIVE" if up else "DOWN", rate_gbps=rate)
            for i, (s, n, up, rate) in enumerate(nics)
        ),
    )
    picks = nic_map(host, per_gpu=per_gpu)
    up = host.active_nics
    assert [p.gpu for p in picks] == ([g.index for g in host.gpus] if up else [])
    for pick in picks:
        here = host.gpus[pick.gpu]
        assert len(set(pick.nics)) == len(pick.nics) >= 1
        if per_gpu is not None:
            assert len(pick.nics) == min(per_gpu, len(up))
        by_name = {n.name: distance(here, n) for n in up}
        assert min(by_name[n] for n in pick.nics) == min(by_name.values())
        assert pick.distance == max(by_name[n] for n in pick.nics)
        assert pick.distance <= max(by_name.values())


def test_what_has_changed_on_a_node() -> None:
    old = Fabric("h", gpus=(gpu(0), gpu(1)), nics=(nic("mlx5_0"), nic("mlx5_1"), nic("mlx5_2")))
    new = Fabric(
        "h",
        gpus=(gpu(0, numa=1),),
        nics=(nic("mlx5_0", rate_gbps=200.0), nic("mlx5_1", state="DOWN", rate_gbps=10.0), nic("mlx5_3")),
    )
    assert list(differences(old, old)) == []
    assert list(differences(old, new)) == [
        "GPU 0 is on NUMA node 1, was 0",
        "GPU 1 is gone",
        "RDMA device mlx5_0 has Gbit/s 200.0, was 400.0",
        "RDMA device mlx5_1 is DOWN, was ACTIVE",
        "RDMA device mlx5_2 is gone",
        "RDMA device mlx5_3 is new",
    ]
