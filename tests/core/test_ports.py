"""Ports: none is ever given twice, and growth of a pool moves nobody else."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.placement import NodeSpace
from orchestrator.core.ports import PortDemand, assign_ports


def node(first: int = 20000, last: int = 29999) -> NodeSpace:
    return NodeSpace("a", tuple(range(8)), first, last)


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


def demands_of(pools: dict[str, int]) -> list[PortDemand]:
    """Demands of three ports for each instance, in the order of the pools."""
    runs = (("http", 1), ("side", 2))
    return [PortDemand(f"{pool}-{i}", pool, i, runs) for pool, count in pools.items() for i in range(count)]


def test_a_pool_that_is_put_before_others_moves_nobody() -> None:
    held, _ = assign_ports(demands_of({"decode": 2}), node(), {})
    ports, clashes = assign_ports(demands_of({"first": 2, "decode": 2}), node(), {}, held=held)
    assert not clashes
    assert {name: ports[name] for name in held} == held
    assert ports["first-0"]["http"] == 20020, "the next slot that is free"


def test_ports_are_kept_only_as_far_as_they_are_what_is_asked_for() -> None:
    demands = demands_of({"a": 5})
    held = {
        "a-0": {"http": 20500, "side": 20501},
        "a-1": {"http": 20502, "side": 20503},  # of a-0
        "a-2": {"http": 20600},  # too few
        "a-3": {"http": 29998, "side": 29999},  # beyond the range
        "a-4": {"http": 20700, "side": 20700},  # one twice
    }
    ports, clashes = assign_ports(demands, node(), {}, held=held)
    assert not clashes
    assert ports["a-0"] == held["a-0"]
    assert {name: at["http"] for name, at in ports.items() if name != "a-0"} == {
        "a-1": 20010, "a-2": 20020, "a-3": 20030, "a-4": 20040,
    }  # fmt: skip


def test_a_port_that_is_spoken_for_now_is_not_kept() -> None:
    ports, clashes = assign_ports(
        demands_of({"a": 1}), node(), {20501: "router.listen"}, held={"a-0": {"http": 20500, "side": 20501}}
    )
    assert not clashes
    assert ports["a-0"]["http"] == 20000


def test_nothing_is_kept_where_somebody_would_get_none() -> None:
    held = {"a-0": {"http": 20002, "side": 20003}}
    ports, clashes = assign_ports(demands_of({"a": 2}), node(20000, 20006), {}, held=held)
    assert not clashes, "two runs of three fit into seven ports, but not around the middle"
    assert ports["a-0"]["http"] == 20000


@given(
    st.dictionaries(st.sampled_from("abcd"), st.integers(0, 12)),
    st.dictionaries(st.sampled_from("abcde"), st.integers(0, 25)),
    st.randoms(),
)
def test_whatever_changes_those_who_stay_keep_their_ports(
    before: dict[str, int], after: dict[str, int], rng: random.Random
) -> None:
    held, _ = assign_ports(demands_of(before), node(), {})
    demands = demands_of(after)
    rng.shuffle(demands)
    ports, clashes = assign_ports(demands, node(), {}, held=held)
    assert not clashes
    assert ports.keys() == {d.owner for d in demands}
    assert all(ports[name] == held[name] for name in ports.keys() & held.keys())
    taken = Counter(p for at in ports.values() for p in (at["http"], at["side"], at["side"] + 1))
    assert all(count == 1 for count in taken.values())
