"""Placement: no GPU and no port is ever given twice, and growth of a pool moves nobody else."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.placement import (
    Demand,
    NodeSpace,
    PortDemand,
    Seat,
    assign_ports,
    seat,
)


def node(name: str = "a", gpus: int = 8, first: int = 20000, last: int = 29999) -> NodeSpace:
    return NodeSpace(name, tuple(range(gpus)), first, last)


def demand(owner: str, gpus: int, *nodes: str) -> Demand:
    return Demand(owner, gpus, nodes or ("a",))


def test_instances_get_aligned_neighbouring_gpus_in_order() -> None:
    placed = seat([demand("p-0", 2), demand("p-1", 2), demand("d-0", 4)], [node()])
    assert placed.seats == {
        "p-0": Seat("a", (0, 1)),
        "p-1": Seat("a", (2, 3)),
        "d-0": Seat("a", (4, 5, 6, 7)),
    }
    assert placed.clashes == []


def test_a_broken_run_is_avoided_while_a_whole_one_is_left() -> None:
    pinned = Demand("x", 1, ("a",), (1,))
    placed = seat([demand("p", 2), pinned], [node(gpus=4)])
    assert placed.seats["p"] == Seat("a", (2, 3))
    placed = seat([demand("p", 2), pinned, Demand("y", 1, ("a",), (3,))], [node(gpus=4)])
    assert placed.seats["p"] == Seat("a", (0, 2))


def test_the_next_node_takes_what_the_first_has_no_room_for() -> None:
    placed = seat([demand("p-0", 8, "a", "b"), demand("p-1", 8, "a", "b")], [node(), node("b")])
    assert [s.node for s in placed.seats.values()] == ["a", "b"]


def test_instances_without_gpus_are_dealt_round() -> None:
    placed = seat([demand(f"p-{i}", 0, "a", "b") for i in range(4)], [node(), node("b")])
    assert [s.node for s in placed.seats.values()] == ["a", "b", "a", "b"]


def test_what_does_not_fit_says_what_is_left() -> None:
    placed = seat([demand("p", 6), demand("q", 4)], [node()])
    assert "q" not in placed.seats
    assert [c.owner for c in placed.clashes] == ["q"]
    assert placed.clashes[0].message == "needs 4 GPUs on one node; a has 2 of 8 free"


def test_pins_that_clash_are_named() -> None:
    placed = seat(
        [Demand("p", 2, ("a",), (0, 1)), Demand("q", 2, ("a",), (1, 2)), Demand("r", 1, ("a",), (9,))],
        [node()],
    )
    assert [(c.owner, c.message) for c in placed.clashes] == [
        ("q", "GPU 1 of node a is already pinned to p"),
        ("r", "node a has no GPU 9"),
    ]


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.sampled_from([("a",), ("b",), ("a", "b"), ("b", "a")])), max_size=12
    ),
    st.integers(0, 8),
    st.integers(0, 8),
)
def test_no_gpu_is_booked_twice(wanted: list[tuple[int, tuple[str, ...]]], a: int, b: int) -> None:
    demands = [Demand(f"i-{n}", gpus, nodes) for n, (gpus, nodes) in enumerate(wanted)]
    placed = seat(demands, [node("a", a), node("b", b)])
    booked = Counter((s.node, gpu) for s in placed.seats.values() for gpu in s.gpus)
    assert all(count == 1 for count in booked.values())
    for d in demands:
        seated = placed.seats.get(d.owner)
        refused = any(c.owner == d.owner for c in placed.clashes)
        assert (seated is None) == refused
        assert seated is None or (len(seated.gpus) == d.gpus and seated.node in d.nodes)


def ports_of(pools: dict[str, tuple[int, int]], space: NodeSpace) -> dict[str, dict[str, int]]:
    """Ports for pools given as (instances, width of their third run)."""
    demands = [
        PortDemand(f"{pool}-{i}", pool, i, (("http", 1), ("bootstrap", 1), ("events", width)))
        for pool, (count, width) in pools.items()
        for i in range(count)
    ]
    ports, clashes = assign_ports(demands, space, {})
    assert not clashes
    return ports


def test_ports_are_easy_to_tell_apart() -> None:
    ports = ports_of({"prefill": (2, 1), "decode": (2, 1)}, node())
    assert ports["prefill-0"] == {"http": 20000, "bootstrap": 20001, "events": 20002}
    assert ports["prefill-1"]["http"] == 20010
    assert ports["decode-1"]["http"] == 20210


@given(
    st.dictionaries(st.sampled_from("abcd"), st.tuples(st.integers(0, 30), st.integers(1, 40)), min_size=1),
    st.integers(0, 3000),
)
def test_no_port_is_given_twice_nor_outside_the_range(pools: dict[str, tuple[int, int]], room: int) -> None:
    space = node(first=20000, last=20000 + room)
    demands = [
        PortDemand(f"{pool}-{i}", pool, i, (("http", 1), ("events", width)))
        for pool, (count, width) in pools.items()
        for i in range(count)
    ]
    ports, clashes = assign_ports(demands, space, {})
    taken = Counter(
        port
        for d in demands
        if d.owner in ports
        for purpose, count in d.runs
        for port in range(ports[d.owner][purpose], ports[d.owner][purpose] + count)
    )
    assert all(count == 1 for count in taken.values())
    assert all(20000 <= port <= 20000 + room for port in taken)
    needed = sum(d.total for d in demands)
    assert bool(clashes) == (needed > room + 1)


@given(st.integers(1, 15), st.integers(1, 15))
def test_growing_a_pool_moves_no_other_ports(before: int, after: int) -> None:
    first = ports_of({"prefill": (before, 1), "decode": (3, 1)}, node())
    then = ports_of({"prefill": (after, 1), "decode": (3, 1), "later": (2, 1)}, node())
    kept = [name for name in first if name in then]
    assert {name: first[name] for name in kept} == {name: then[name] for name in kept}


def test_a_small_range_is_packed() -> None:
    ports = ports_of({"prefill": (2, 1), "decode": (2, 1)}, node(first=30000, last=30011))
    assert [p["http"] for p in ports.values()] == [30000, 30003, 30006, 30009]


def test_a_range_that_is_too_small_says_what_is_needed() -> None:
    demands = [PortDemand(f"p-{i}", "p", i, (("http", 2),)) for i in range(3)]
    ports, clashes = assign_ports(demands, node(first=30000, last=30003), {})
    assert list(ports) == ["p-0", "p-1"]
    assert [c.owner for c in clashes] == ["p-2"]
    assert "need 6 ports, the range 30000-30003 has 4" in clashes[0].message


def test_case_3_a_port_spoken_for_is_refused_with_both_holders() -> None:
    demands = [PortDemand("p-0", "p", 0, (("http", 1), ("bootstrap", 1)))]
    _, clashes = assign_ports(demands, node(), {20001: "router.listen"})
    assert clashes[0].message == "its bootstrap port 20001 is also that of router.listen"
