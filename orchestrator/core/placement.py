"""Placement: which nodes and GPUs the ranks of an instance get.

Pure and deterministic: nothing is probed, so that every host works out the same plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class NodeSpace:
    """What a node offers: GPU indices in order, and its range of ports (both ends included).

    `rack` names what it shares power or a switch with; empty: nothing is known of that.
    """

    name: str
    gpus: tuple[int, ...]
    first_port: int
    last_port: int
    rack: str = ""


@dataclass(frozen=True, slots=True)
class Demand:
    """What one instance needs: `gpus` in all, in equal shares on `nnodes` of `nodes`.

    `nodes` are in order of preference. `pinned` names the very GPUs, on each of `nodes`, which are then as
    many as it spans. `spread`: away from the other instances of its `pool` (different racks, then nodes) and
    close to those of the pools in `near`; else the first of its nodes with room. `index` is its number within
    the pool.
    """

    owner: str
    gpus: int
    nodes: tuple[str, ...]
    pinned: tuple[int, ...] | None = None
    nnodes: int = 1
    pool: str = ""
    near: frozenset[str] = frozenset()
    spread: bool = True
    index: int = 0

    @property
    def share(self) -> int:
        """GPUs on each node it spans."""
        return self.gpus // self.nnodes


@dataclass(frozen=True, slots=True)
class Seat:
    """Where one process of an instance runs: a node, and its GPUs there."""

    node: str
    gpus: tuple[int, ...] = ()


NOBODY: Mapping[str, tuple[Seat, ...]] = {}
"""Who holds seats already, where nobody does."""


@dataclass(frozen=True, slots=True)
class Clash:
    """Why `owner` could not be placed as asked."""

    owner: str
    message: str


@dataclass(slots=True)
class Placed:
    """The outcome of `seat`: seats by owner, rank 0's first, and what did not fit."""

    seats: dict[str, tuple[Seat, ...]] = field(default_factory=dict)
    clashes: list[Clash] = field(default_factory=list)


def seat(
    demands: Sequence[Demand],
    nodes: Sequence[NodeSpace],
    held: Mapping[str, tuple[Seat, ...]] = NOBODY,
) -> Placed:
    """Seats for each demand; no GPU is given twice.

    Pinned demands go first, then those that stay where they are (`held`, by owner, as far as that is still
    what is asked for), then the largest and those with the fewest nodes to choose from, the first of every
    pool before the second of any. Where one finds no room, an earlier one makes way if it can, one that
    would stay after all others; where more find room if nobody stays, nobody does. On its node each gets, in
    the order of `demands`, an aligned run of GPUs where there is one (neighbours share switches and NUMA
    nodes), else the lowest free ones.
    """
    placed = Placed()
    booked: dict[tuple[str, int], str] = {}
    by_name = {n.name: n for n in nodes}
    for demand in demands:
        if demand.pinned is not None:
            _pin(demand, by_name, booked, placed)
    table = _Table(by_name, booked, placed.seats, demands)
    stays = _staying(demands, by_name, booked, held)
    for demand in demands:
        if demand.owner in stays:
            table.put(demand, tuple(seat.node for seat in stays[demand.owner]))
    free = (d for d in demands if d.pinned is None and d.owner not in stays)
    for demand in sorted(free, key=_urgency):
        if demand.gpus % demand.nnodes:
            message = f"its {_gpus(demand.gpus)} cannot be spread evenly over {demand.nnodes} nodes"
            placed.clashes.append(Clash(demand.owner, message))
        elif not table.place(demand, set()):
            placed.clashes.append(Clash(demand.owner, table.lack(demand)))
    for owner, seats in stays.items():
        if table.chosen[owner] == tuple(seat.node for seat in seats):
            placed.seats[owner] = seats
            booked.update({(seat.node, gpu): owner for seat in seats for gpu in seat.gpus})
    for demand in demands:
        chosen = table.chosen.get(demand.owner)
        if chosen and demand.owner not in placed.seats:
            placed.seats[demand.owner] = tuple(_take(demand, by_name[n], booked) for n in chosen)
    if placed.clashes and stays:
        # Those that span nodes make nobody move, so somebody may be in their way.
        anew = seat(demands, nodes)
        return anew if len(anew.clashes) < len(placed.clashes) else placed
    return placed


def _staying(
    demands: Sequence[Demand],
    nodes: Mapping[str, NodeSpace],
    booked: Mapping[tuple[str, int], str],
    held: Mapping[str, tuple[Seat, ...]],
) -> dict[str, tuple[Seat, ...]]:
    """Of those that hold seats, who may keep them: they are what it asks for, there, and nobody else's."""
    stays: dict[str, tuple[Seat, ...]] = {}
    taken = set(booked)
    for demand in demands:
        seats = held.get(demand.owner, ())
        gpus = {(seat.node, gpu) for seat in seats for gpu in seat.gpus}
        if (
            demand.pinned is None
            and len(seats) == len({seat.node for seat in seats}) == demand.nnodes
            and all(seat.node in demand.nodes and seat.node in nodes for seat in seats)
            and all(len(seat.gpus) == len(set(seat.gpus)) == demand.share for seat in seats)
            and demand.share * demand.nnodes == demand.gpus
            and all(gpu in nodes[name].gpus for name, gpu in gpus)
            and taken.isdisjoint(gpus)
        ):
            stays[demand.owner] = seats
            taken |= gpus
    return stays


def _urgency(demand: Demand) -> tuple[int, int, int, int]:
    return -demand.share, len(demand.nodes) - demand.nnodes, -demand.nnodes, demand.index


def _pin(
    demand: Demand, nodes: Mapping[str, NodeSpace], booked: dict[tuple[str, int], str], placed: Placed
) -> None:
    pinned = demand.pinned or ()
    for name in demand.nodes:
        for gpu in pinned:
            holder = booked.get((name, gpu))
            if gpu not in nodes[name].gpus:
                placed.clashes.append(Clash(demand.owner, f"node {name} has no GPU {gpu}"))
            elif holder is not None:
                message = f"GPU {gpu} of node {name} is already pinned to {holder}"
                placed.clashes.append(Clash(demand.owner, message))
            booked.setdefault((name, gpu), demand.owner)
    placed.seats[demand.owner] = tuple(Seat(name, pinned) for name in demand.nodes)


def _take(demand: Demand, node: NodeSpace, booked: dict[tuple[str, int], str]) -> Seat:
    """GPUs for one process on a node that is known to have them."""
    free = [g for g in node.gpus if (node.name, g) not in booked]
    gpus = _aligned(node.gpus, set(free), demand.share) or tuple(free[: demand.share])
    booked.update({(node.name, g): demand.owner for g in gpus})
    return Seat(node.name, gpus)


def _aligned(gpus: Sequence[int], free: set[int], count: int) -> tuple[int, ...]:
    if not count:
        return ()
    for start in range(0, len(gpus) - count + 1, count):
        run = gpus[start : start + count]
        if free.issuperset(run):
            return tuple(run)
    return ()


def _gpus(count: int) -> str:
    return f"{count} GPU" if count == 1 else f"{count} GPUs"


class _Table:
    """Nodes by how many of their GPUs are free, and who was given which nodes; GPUs get their index later.

    `chosen` are the nodes of each owner, rank 0's first.
    """

    def __init__(
        self,
        nodes: Mapping[str, NodeSpace],
        booked: Collection[tuple[str, int]],
        pinned: Mapping[str, tuple[Seat, ...]],
        demands: Iterable[Demand],
    ) -> None:
        self._nodes = nodes
        self._free = {n.name: sum((n.name, g) not in booked for g in n.gpus) for n in nodes.values()}
        self._on_node: Counter[tuple[str, str]] = Counter()
        self._in_rack: Counter[tuple[str, str]] = Counter()
        self._placed: dict[str, Demand] = {}
        self.chosen: dict[str, tuple[str, ...]] = {}
        for demand in demands:
            if demand.owner in pinned:
                self._count(demand, [s.node for s in pinned[demand.owner]], 1)

    def place(self, demand: Demand, tried: set[str]) -> bool:
        """Give it nodes, if need be by having another one move; False if that is not possible either.

        `tried` are nodes not to look at again: someone is being moved away from there for this one.
        """
        nodes = self._choose(demand, tried)
        if nodes:
            self.put(demand, nodes)
            return True
        return demand.nnodes == 1 and self._make_way(demand, tried)

    def lack(self, demand: Demand) -> str:
        """Which resource there is too little of."""
        if demand.nnodes > len(demand.nodes):
            return f"spans {demand.nnodes} nodes, and may use {len(demand.nodes)} ({', '.join(demand.nodes)})"
        where = "on one node" if demand.nnodes == 1 else f"on each of {demand.nnodes} nodes"
        left = ", ".join(
            f"{name} has {self._free[name]} of {len(self._nodes[name].gpus)} free" for name in demand.nodes
        )
        return f"needs {_gpus(demand.share)} {where}; {left}"

    def _choose(self, demand: Demand, tried: Collection[str]) -> tuple[str, ...]:
        """The best nodes for it as things are; empty if there are too few with room."""
        room = [n for n in demand.nodes if n not in tried and self._free[n] >= demand.share]
        if len(room) < demand.nnodes:
            return ()
        if not demand.spread:
            return tuple(room[: demand.nnodes])
        order = {name: n for n, name in enumerate(demand.nodes)}
        ranked = sorted(room, key=lambda name: (*self._crowding(demand, name), order[name]))
        if demand.nnodes == 1:
            return (ranked[0],)
        # Ranks of one instance talk all the time: one rack, if one has room for all of them.
        racks: dict[str, list[str]] = {}
        for name in ranked:
            racks.setdefault(self._nodes[name].rack, []).append(name)
        whole = next((names for names in racks.values() if len(names) >= demand.nnodes), ranked)
        return tuple(sorted(whole[: demand.nnodes], key=order.__getitem__))

    def _crowding(self, demand: Demand, name: str) -> tuple[int, int, int, int]:
        """How much of its own pool would fail together with it there, then how far its partners are."""
        rack = self._nodes[name].rack
        return (
            self._in_rack[demand.pool, rack],
            self._on_node[demand.pool, name],
            -sum(self._on_node[pool, name] for pool in demand.near),
            -sum(self._in_rack[pool, rack] for pool in demand.near),
        )

    def _make_way(self, demand: Demand, tried: set[str]) -> bool:
        for name in demand.nodes:
            if name in tried:
                continue
            tried.add(name)
            here = [d for owner, d in self._placed.items() if name in self.chosen[owner]]
            for other in reversed(here):
                if not other.share or self._free[name] + other.share < demand.share:
                    continue
                before = self._lift(other)
                if self.place(other, tried):
                    self.put(demand, (name,))
                    return True
                self.put(other, before)
        return False

    def put(self, demand: Demand, nodes: tuple[str, ...]) -> None:
        """Give it these nodes, which have room."""
        self._placed[demand.owner] = demand
        self.chosen[demand.owner] = nodes
        self._count(demand, nodes, 1)
        for name in nodes:
            self._free[name] -= demand.share

    def _lift(self, demand: Demand) -> tuple[str, ...]:
        nodes = self.chosen.pop(demand.owner)
        del self._placed[demand.owner]
        self._count(demand, nodes, -1)
        for name in nodes:
            self._free[name] += demand.share
        return nodes

    def _count(self, demand: Demand, nodes: Iterable[str], by: int) -> None:
        names = list(nodes)
        for name in names:
            self._on_node[demand.pool, name] += by
        for rack in {self._nodes[name].rack for name in names}:
            self._in_rack[demand.pool, rack] += by
