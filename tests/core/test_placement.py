"""Placement: no GPU is ever given twice; instances lie apart, their ranks and their partners near."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.placement import Demand, NodeSpace, Placed, Seat, seat


def node(name: str = "a", gpus: int = 8, rack: str = "") -> NodeSpace:
    return NodeSpace(name, tuple(range(gpus)), 20000, 29999, rack)


def demand(owner: str, gpus: int, *nodes: str, **more: object) -> Demand:
    """One of pool `owner[0]` with the number behind the hyphen."""
    pool, _, index = owner.partition("-")
    return Demand(owner, gpus, nodes or ("a",), pool=pool, index=int(index or 0), **more)  # type: ignore[arg-type]


def pair(prefill: int, decode: int, gpus: int, *nodes: str) -> list[Demand]:
    """P and D instances of as many GPUs each, near each other."""
    made = [demand(f"p-{i}", gpus, *nodes, near=frozenset("d")) for i in range(prefill)]
    return made + [demand(f"d-{i}", gpus, *nodes, near=frozenset("p")) for i in range(decode)]


def where(placed: Placed) -> dict[str, str]:
    """The nodes of each owner."""
    assert placed.clashes == []
    return {owner: " ".join(s.node for s in seats) for owner, seats in placed.seats.items()}


def test_instances_get_aligned_neighbouring_gpus_in_order() -> None:
    placed = seat([demand("p-0", 2), demand("p-1", 2), demand("d-0", 4)], [node()])
    assert placed.seats == {
        "p-0": (Seat("a", (0, 1)),),
        "p-1": (Seat("a", (2, 3)),),
        "d-0": (Seat("a", (4, 5, 6, 7)),),
    }
    assert placed.clashes == []


def test_a_broken_run_is_avoided_while_a_whole_one_is_left() -> None:
    pinned = Demand("x", 1, ("a",), (1,))
    placed = seat([demand("p", 2), pinned], [node(gpus=4)])
    assert placed.seats["p"] == (Seat("a", (2, 3)),)
    placed = seat([demand("p", 2), pinned, Demand("y", 1, ("a",), (3,))], [node(gpus=4)])
    assert placed.seats["p"] == (Seat("a", (0, 2)),)


def test_the_next_node_takes_what_the_first_has_no_room_for() -> None:
    placed = seat([demand("p-0", 8, "a", "b"), demand("p-1", 8, "a", "b")], [node(), node("b")])
    assert where(placed) == {"p-0": "a", "p-1": "b"}


def test_instances_of_a_pool_are_spread_over_nodes_with_their_partners_beside_them() -> None:
    placed = seat(pair(2, 2, 4, "a", "b"), [node(), node("b")])
    assert where(placed) == {"p-0": "a", "p-1": "b", "d-0": "a", "d-1": "b"}


def test_packed_instances_fill_the_first_node() -> None:
    demands = [demand(f"p-{i}", 4, "b", "a", spread=False) for i in range(3)]
    assert where(seat(demands, [node(), node("b")])) == {"p-0": "b", "p-1": "b", "p-2": "a"}


def test_instances_of_a_pool_are_spread_over_racks_first() -> None:
    nodes = [node(f"{rack}{i}", rack=rack) for rack in "rs" for i in range(4)]
    placed = seat(pair(4, 4, 8, *(n.name for n in nodes)), nodes)
    racks = {owner: name[0] for owner, name in where(placed).items()}
    for pool in "pd":
        assert Counter(racks[f"{pool}-{i}"] for i in range(4)) == {"r": 2, "s": 2}
    assert [racks[f"p-{i}"] for i in range(4)] == [racks[f"d-{i}"] for i in range(4)]


def test_the_ranks_of_an_instance_stay_in_one_rack_while_one_has_room() -> None:
    nodes = [node("r0", rack="r"), node("s0", rack="s"), node("s1", rack="s"), node("r1", rack="r")]
    names = tuple(n.name for n in nodes)
    two = [demand(f"p-{i}", 16, *names, nnodes=2) for i in range(2)]
    assert where(seat(two, nodes)) == {"p-0": "r0 r1", "p-1": "s0 s1"}
    scattered = [demand("x-0", 8, "r0"), demand("y-0", 8, "s1"), two[0]]
    assert where(seat(scattered, nodes))["p-0"] == "s0 r1"


def test_an_earlier_one_makes_way() -> None:
    """`p` chose the node that `r` cannot do without, and there is another one for it."""
    nodes = [node(name, 4) for name in "abc"]
    demands = [demand("p-0", 4, "a", "b"), demand("q-0", 4, "b", "c"), demand("r-0", 4, "a", "c")]
    assert sorted(where(seat(demands, nodes)).values()) == ["a", "b", "c"]
    small = demand("t-0", 2, "a")
    placed = seat([demand("p-0", 4, "a", "b"), small], nodes)
    assert where(placed) == {"p-0": "b", "t-0": "a"}


def test_one_on_several_nodes_makes_way_too() -> None:
    nodes = [node(name) for name in "abc"]
    placed = seat([demand("p-0", 16, "a", "b", "c", nnodes=2), demand("q-0", 4, "a")], nodes)
    assert where(placed) == {"p-0": "b c", "q-0": "a"}


def test_instances_without_gpus_are_dealt_round() -> None:
    placed = seat([demand(f"p-{i}", 0, "a", "b") for i in range(4)], [node(), node("b")])
    assert list(where(placed).values()) == ["a", "b", "a", "b"]


def test_what_does_not_fit_says_what_is_left() -> None:
    placed = seat([demand("p", 6), demand("q", 4)], [node()])
    assert "q" not in placed.seats
    assert [c.owner for c in placed.clashes] == ["q"]
    assert placed.clashes[0].message == "needs 4 GPUs on one node; a has 2 of 8 free"


def test_what_spans_nodes_says_which_lack_what() -> None:
    nodes = [node(), node("b", 4)]
    placed = seat(
        [
            demand("p", 16, "a", "b", nnodes=2),
            demand("q", 8, "a", nnodes=2),
            demand("r", 7, "a", "b", nnodes=2),
        ],
        nodes,
    )
    assert {(c.owner, c.message) for c in placed.clashes} == {
        ("p", "needs 8 GPUs on each of 2 nodes; a has 8 of 8 free, b has 4 of 4 free"),
        ("q", "spans 2 nodes, and may use 1 (a)"),
        ("r", "its 7 GPUs cannot be spread evenly over 2 nodes"),
    }


def test_pins_that_clash_are_named() -> None:
    placed = seat(
        [Demand("p", 2, ("a",), (0, 1)), Demand("q", 2, ("a",), (1, 2)), Demand("r", 1, ("a",), (9,))],
        [node()],
    )
    assert [(c.owner, c.message) for c in placed.clashes] == [
        ("q", "GPU 1 of node a is already pinned to p"),
        ("r", "node a has no GPU 9"),
    ]


def test_a_pin_on_several_nodes_takes_the_same_gpus_on_each() -> None:
    placed = seat([Demand("p", 4, ("b", "a"), (2, 3), nnodes=2)], [node(), node("b")])
    assert placed.seats["p"] == (Seat("b", (2, 3)), Seat("a", (2, 3)))


CHOICES = [("a",), ("b",), ("a", "b"), ("b", "a"), ("c", "a"), ("a", "b", "c")]


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.sampled_from(CHOICES), st.integers(1, 3), st.booleans()), max_size=14
    ),
    st.lists(st.integers(0, 8), min_size=3, max_size=3),
    st.lists(st.sampled_from(["", "r", "s"]), min_size=3, max_size=3),
)
def test_no_gpu_is_booked_twice(
    wanted: list[tuple[int, tuple[str, ...], int, bool]], sizes: list[int], racks: list[str]
) -> None:
    demands = [
        Demand(f"i-{n}", gpus, nodes, nnodes=nnodes, pool=f"{n % 3}", spread=spread, index=n // 3)
        for n, (gpus, nodes, nnodes, spread) in enumerate(wanted)
    ]
    nodes = [node(name, size, rack) for name, size, rack in zip("abc", sizes, racks, strict=True)]
    placed = seat(demands, nodes)
    booked = Counter((s.node, gpu) for seats in placed.seats.values() for s in seats for gpu in s.gpus)
    assert all(count == 1 for count in booked.values())
    for d in demands:
        seated = placed.seats.get(d.owner)
        assert (seated is None) == any(c.owner == d.owner for c in placed.clashes)
        if seated is not None:
            assert len({s.node for s in seated}) == len(seated) == d.nnodes
            assert all(len(s.gpus) == d.share and s.node in d.nodes for s in seated)
    assert seat(demands, nodes) == placed


@given(st.lists(st.sampled_from([1, 2, 4, 8]), max_size=20), st.integers(1, 4))
def test_what_fits_whole_nodes_is_never_refused(sizes: list[int], count: int) -> None:
    """Sizes that divide each other and the node always fit while there are GPUs enough."""
    names = tuple("abcd"[:count])
    demands = [Demand(f"i-{n}", gpus, names, pool=f"{n % 2}") for n, gpus in enumerate(sizes)]
    placed = seat(demands, [node(name) for name in names])
    assert bool(placed.clashes) == (sum(sizes) > 8 * count)


@given(st.lists(st.sets(st.sampled_from("abcde"), min_size=1), max_size=6))
def test_equal_instances_are_placed_whenever_a_placement_exists(choices: list[set[str]]) -> None:
    names = "abcde"
    demands = [Demand(f"i-{n}", 8, tuple(sorted(nodes))) for n, nodes in enumerate(choices)]
    placed = seat(demands, [node(name) for name in names])
    assert len(placed.seats) == _matching([sorted(nodes) for nodes in choices])


def _matching(choices: list[list[str]]) -> int:
    """How many can have a node of their own at most, by trying everything."""

    def best(n: int, free: frozenset[str]) -> int:
        if n == len(choices):
            return 0
        without = best(n + 1, free)
        return max([without, *(1 + best(n + 1, free - {c}) for c in choices[n] if c in free)])

    return best(0, frozenset("abcde"))


def held(placed: Placed) -> dict[str, tuple[Seat, ...]]:
    return dict(placed.seats)


def test_who_holds_a_seat_keeps_it_when_others_come() -> None:
    first = seat([demand("decode-0", 2, "a"), demand("decode-1", 2, "a")], [node()])
    more = [demand("new-0", 4, "a"), demand("decode-0", 2, "a"), demand("decode-1", 2, "a")]
    assert seat(more, [node()]).seats["decode-0"] != first.seats["decode-0"], "it would have moved"
    again = seat(more, [node()], held(first))
    assert {name: again.seats[name] for name in first.seats} == first.seats
    assert again.seats["new-0"] == (Seat("a", (4, 5, 6, 7)),)


def test_a_seat_is_kept_only_as_far_as_it_is_what_is_asked_for() -> None:
    seats = {
        "wider": (Seat("a", (6, 7)),),
        "elsewhere": (Seat("b", (0, 1)),),
        "without": (Seat("a", (8, 9)),),
        "twice": (Seat("a", (2, 3)),),
        "also": (Seat("a", (3, 4)),),
    }
    demands = [
        demand("wider", 4, "a"),
        *(demand(name, 2, "a") for name in ("elsewhere", "without", "twice", "also")),
    ]
    nodes = [NodeSpace("a", (*range(8), *range(10, 16)), 20000, 29999), node("b")]
    placed = seat(demands, nodes, seats)
    assert not placed.clashes
    assert placed.seats["twice"] == seats["twice"]
    assert all(placed.seats[name] != seats[name] for name in seats if name != "twice")


def test_pins_go_before_seats_that_are_held() -> None:
    pinned = Demand("pinned", 2, ("a",), pinned=(0, 1))
    placed = seat([demand("there", 2, "a"), pinned], [node()], {"there": (Seat("a", (1, 2)),)})
    assert placed.seats["pinned"] == (Seat("a", (0, 1)),)
    assert placed.seats["there"] == (Seat("a", (2, 3)),)


def test_one_that_holds_a_seat_makes_way_before_anybody_is_refused() -> None:
    demands = [demand("small", 1, "a", "b"), demand("large", 8, "a")]
    placed = seat(demands, [node("a"), node("b", 4)], {"small": (Seat("a", (0,)),)})
    assert where(placed) == {"small": "b", "large": "a"}


@given(
    st.lists(st.tuples(st.integers(0, 4), st.sampled_from(CHOICES), st.integers(0, 2)), max_size=8),
    st.lists(st.tuples(st.integers(0, 8), st.sampled_from(CHOICES), st.integers(0, 2)), max_size=4),
    st.integers(0, 8),
)
def test_whoever_comes_nobody_moves_unless_one_would_have_no_room(
    wanted: list[tuple[int, tuple[str, ...], int]],
    more: list[tuple[int, tuple[str, ...], int]],
    between: int,
) -> None:
    old = [Demand(f"i-{n}", gpus, names, pool=str(p), index=n) for n, (gpus, names, p) in enumerate(wanted)]
    new = [Demand(f"j-{n}", gpus, names, pool=str(p), index=n) for n, (gpus, names, p) in enumerate(more)]
    nodes = [node(name) for name in "abc"]
    first = seat(old, nodes)
    both = [*old[:between], *new, *old[between:]]
    placed = seat(both, nodes, held(first))
    booked = Counter((s.node, gpu) for seats in placed.seats.values() for s in seats for gpu in s.gpus)
    assert all(count == 1 for count in booked.values())
    assert seat(old, nodes, held(first)).seats == first.seats
    left = {
        n.name: 8 - sum(len(s.gpus) for seats in first.seats.values() for s in seats if s.node == n.name)
        for n in nodes
    }
    if all(sum(d.gpus for d in new if name in d.nodes) <= left[name] for name in left) and not first.clashes:
        assert not placed.clashes
        assert {name: placed.seats[name] for name in first.seats} == first.seats
    assert len(placed.clashes) <= len(seat(both, nodes).clashes)


def test_nobody_stays_where_that_would_leave_one_without_nodes() -> None:
    wide = demand("w-0", 14, "a", "b", nnodes=2)
    nodes = [node("a"), node("b"), node("c", 2)]
    small = [demand("s-0", 2, "a", "c"), demand("s-1", 1, "b")]
    placed = seat([*small, wide], nodes, {"s-0": (Seat("a", (0, 1)),), "s-1": (Seat("b", (0,)),)})
    assert where(placed) == {"s-0": "c", "s-1": "b", "w-0": "a b"}
