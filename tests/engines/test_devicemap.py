"""NICs by GPU in the forms of each transfer, for adapters; `wiring` is the data they are made of."""

from __future__ import annotations

from orchestrator.engines import devicemap
from orchestrator.engines.base import Near

FOUR = tuple(Near((f"mlx5_{i}",), f"0000:0{i}:00.0", (f"0000:1{i}:00.0",)) for i in range(4))


def test_a_map_is_by_the_gpu_as_the_process_sees_it(spec) -> None:
    made = spec(
        devices=(4, 5), nics=("mlx5_4", "mlx5_5"), near=(Near(("mlx5_4",)), Near(("mlx5_5", "mlx5_6")))
    )
    assert devicemap.by_gpu(made) == {"0": "mlx5_4", "1": "mlx5_5,mlx5_6"}
    assert devicemap.form(made) == devicemap.INLINE


def test_a_list_says_as_much_where_all_gpus_are_alike(spec) -> None:
    alike = spec(devices=(0, 1), nics=("mlx5_0",), near=(Near(("mlx5_0",)),) * 2)
    shared = spec(devices=(0, 1), nics=("mlx5_0", "mlx5_1"))
    assert devicemap.form(alike) == devicemap.form(shared) == devicemap.LIST
    assert devicemap.by_gpu(shared) == {"0": "mlx5_0,mlx5_1", "1": "mlx5_0,mlx5_1"}


def test_a_map_with_gaps_is_none(spec) -> None:
    gappy = spec(devices=(0, 1), nics=("mlx5_0",), near=(Near(("mlx5_0",)), Near(())))
    assert devicemap.by_gpu(gappy) == {}
    assert devicemap.form(gappy) == devicemap.LIST


def test_the_form_that_is_asked_for(spec) -> None:
    for form in (devicemap.LIST, devicemap.INLINE, devicemap.FILE):
        made = spec(devices=(0, 1, 2, 3), nics=("mlx5_0",), near=FOUR, options={"device_map": form})
        assert devicemap.form(made) == form
    # Nothing to put into a file.
    assert devicemap.form(spec(devices=(0,), options={"device_map": "file"})) == devicemap.LIST


def test_ucx_is_told_ports_or_an_interface(spec) -> None:
    assert devicemap.for_ucx(spec(nics=("mlx5_0", "mlx5_1"))) == "mlx5_0:1,mlx5_1:1"
    assert devicemap.for_ucx(spec(interface="ens3")) == "ens3"
    assert devicemap.for_ucx(spec()) is None


def test_pairs_of_addresses_only_where_all_are_known(spec) -> None:
    assert devicemap.pairs(spec(near=FOUR[:2])) == {
        "0000:00:00.0": "0000:10:00.0",
        "0000:01:00.0": "0000:11:00.0",
    }
    assert devicemap.pairs(spec(near=(FOUR[0], Near(("mlx5_1",))))) == {}
    two = Near(("a", "b"), "0000:01:00.0", ("0000:11:00.0", "0000:12:00.0"))
    assert devicemap.pairs(spec(near=(two,))) == {}
    assert devicemap.pairs(spec()) == {}
