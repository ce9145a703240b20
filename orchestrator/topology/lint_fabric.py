"""What is wrong between a plan and what its nodes have (`fabric:`), each finding with what it costs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.core.fabric import Distance, Fabric, Gpu, Nic, crosses_numa, distance, natural
from orchestrator.core.nicmap import nic_map
from orchestrator.core.rules import Rule
from orchestrator.core.transfer import CROSS_NUMA_SHARE
from orchestrator.engines.base import InstanceSpec
from orchestrator.engines.rules import NIC_MISSING
from orchestrator.errors import Problem
from orchestrator.topology import fabric_rules as rules
from orchestrator.topology.carriage import HANDS_OFF, without_rdma
from orchestrator.topology.costs import against, tcp_cost
from orchestrator.topology.inputs import Inputs, Part
from orchestrator.topology.source import Place

Specs = Mapping[str, Sequence[InstanceSpec]]


@dataclass(frozen=True, slots=True)
class Wired:
    """Instances of one pool on one known node that move KV by RDMA."""

    part: Part
    index: int
    fabric: Fabric
    specs: tuple[InstanceSpec, ...]

    @property
    def node(self) -> str:
        """The node's name."""
        return self.specs[0].node

    def used(self) -> Iterator[tuple[Gpu, tuple[Nic, ...]]]:
        """Each GPU with the NICs that it may use, as far as the node has both."""
        for spec in self.specs:
            for position, index in enumerate(spec.devices):
                names = spec.near[position].names if spec.near else spec.nics
                nics = tuple(nic for name in names if (nic := self.fabric.nic(name)) is not None)
                if (gpu := self.fabric.gpu(index)) is not None and nics:
                    yield gpu, nics


def lint_fabric(inputs: Inputs, specs: Specs) -> list[Problem]:
    """Every finding about NICs by hand, and about nodes that are known."""
    if not inputs.fabrics:
        return [*_gaps(inputs, specs)]
    wired = list(_wired(inputs, specs))
    found = [*_gaps(inputs, specs), *_nodes(inputs), *_carriages(inputs, specs), *_cards(inputs, specs)]
    checks: Sequence[Callable[[Inputs, Wired], Iterator[Problem]]] = (_cross_numa, _down, _memlock)
    found += [problem for one in wired for check in checks for problem in check(inputs, one)]
    return [*found, *_idle(inputs, wired), *_peers(inputs, wired)]


def _wired(inputs: Inputs, specs: Specs) -> Iterator[Wired]:
    order = {node.name: index for index, node in enumerate(inputs.topology.hosts)}
    for part in inputs.parts:
        carriage = part.carriage
        if part.pool.role not in HANDS_OFF or carriage is None or carriage.by == "tcp" or part.over_tcp:
            continue
        for name, fabric in inputs.fabrics.items():
            here = tuple(spec for spec in specs.get(part.name, ()) if spec.node == name and spec.nics)
            if here:
                yield Wired(part, order[name], fabric, here)


def _gaps(inputs: Inputs, specs: Specs) -> Iterator[Problem]:
    """Maps by hand that leave out GPUs which instances use."""
    for index, node in enumerate(inputs.topology.hosts):
        here = [spec for found in specs.values() for spec in found if spec.node == node.name and spec.nics]
        bare = {
            gpu for spec in here for gpu, near in zip(spec.devices, spec.near, strict=False) if not near.names
        }
        if bare:
            message = (
                f"no NIC for GPU {_listed(sorted(bare))}: instances there use one list for all of theirs"
            )
            yield inputs.source.problem(("nodes", index, "nics"), message, rule=rules.NIC_GAPS)


def _cards(inputs: Inputs, specs: Specs) -> Iterator[Problem]:
    """Launch profiles for other cards than there are."""
    for part in inputs.parts:
        card = part.profile.card
        for name, fabric in inputs.fabrics.items():
            used = {gpu for spec in specs.get(part.name, ()) if spec.node == name for gpu in spec.devices}
            others = {
                gpu.name
                for gpu in fabric.gpus
                if card is not None and gpu.index in used and gpu.name and not _is(card, gpu.name)
            }
            if others:
                has = _listed(sorted(others))
                message = f"launch profile {part.profile.name} is for {card}, node {name} has {has}"
                yield inputs.source.problem((*part.place, "profile"), message, rule=rules.PROFILE_CARD)


def _is(card: str, name: str) -> bool:
    """Whether `card` is a word of a GPU's name: L40 is not L40S."""
    return card.lower() in re.split(r"[^a-z0-9]+", name.lower())


def _nodes(inputs: Inputs) -> Iterator[Problem]:
    """GPUs and NICs that a node states and does not have."""
    for index, node in enumerate(inputs.topology.hosts):
        fabric = inputs.fabrics.get(node.name)
        if fabric is None:
            continue
        place: Place = ("nodes", index)
        lacking = [gpu for gpu in node.gpus if fabric.gpu(gpu) is None]
        if lacking:
            have = f"{len(fabric.gpus)} GPUs" if fabric.gpus else "no GPU"
            message = f"there is no GPU {', '.join(map(str, lacking))}: the node has {have}, numbered from 0"
            yield inputs.source.problem((*place, "gpus"), message, rule=rules.GPU_MISSING)
        if not _says(inputs, index, "nics"):
            continue
        names = [*node.nics.shared, *(name for _, names in node.nics.by_gpu for name in names)]
        for name in dict.fromkeys(names):
            nic = fabric.nic(name)
            if nic is None:
                message, hint = f"there is no RDMA device {name}", f"the node has {_names(fabric.nics)}"
            elif nic.state and not nic.active:
                message = f"the link of {name} is {nic.state}"
                hint = f"up are {_names(fabric.active_nics)}"
            else:
                continue
            yield inputs.source.problem((*place, "nics"), message, hint=hint, rule=NIC_MISSING)


def _carriages(inputs: Inputs, specs: Specs) -> Iterator[Problem]:
    """Transfers that need RDMA where there is none, and what TCP costs."""
    launched = [part for part in inputs.parts if part.pool.external is None and part.pool.size]
    parts = [p for p in launched if p.pool.role in HANDS_OFF and p.carriage is not None]
    bare = without_rdma(inputs.topology, parts, inputs.fabrics)
    for part in parts:
        carriage, place = part.carriage, (*part.place, "transfer")
        assert carriage is not None
        cost = tcp_cost(inputs, part)
        if carriage.by == "rdma" and bare:
            what = part.transfer or "the default transfer"
            message = f"{what} needs RDMA, and node {_listed(bare)} has none up"
            hint = f"write transfer: {carriage.tcp} in both pools; over TCP {cost}"
            yield inputs.source.problem(place, message, hint=hint, rule=rules.NO_RDMA)
        elif part.chosen_transfer is not None or part.over_tcp:
            message = f"KV goes over TCP, as node {_listed(bare)} has no RDMA device that is up: {cost}"
            yield inputs.source.problem(place, message, rule=rules.TCP_COST)
        elif carriage.by == "tcp" and not bare and _all_known(inputs, specs, parts):
            message = f"KV goes over TCP, and every node has RDMA: {cost}"
            yield inputs.source.problem(place, message, rule=rules.TCP_COST)


def _all_known(inputs: Inputs, specs: Specs, parts: Sequence[Part]) -> bool:
    nodes = {spec.node for part in parts for spec in specs.get(part.name, ())}
    return bool(nodes) and nodes <= set(inputs.fabrics)


def _cross_numa(inputs: Inputs, wired: Wired) -> Iterator[Problem]:
    """GPUs none of whose NICs is on their own NUMA node."""
    away: dict[str, list[Gpu]] = {}
    for gpu, nics in wired.used():
        if all(crosses_numa(gpu, nic) for nic in nics):
            away.setdefault(", ".join(nic.name for nic in nics), []).append(gpu)
    for names, gpus in away.items():
        nearest = nic_map(wired.fabric, [gpu.index for gpu in gpus])
        better = {pick.gpu: pick.nics[0] for pick in nearest if pick.distance < Distance.SYS}
        numas = _listed(sorted({gpu.numa for gpu in gpus if gpu.numa is not None}))
        yield _finding(
            inputs,
            wired,
            rules.CROSS_NUMA,
            f"GPU {_listed([gpu.index for gpu in gpus])} of {wired.node}, on NUMA node {numas}, "
            f"{'uses' if len(gpus) == 1 else 'use'} {names} on another one, at about half its bandwidth: "
            f"{against(inputs, wired.part, CROSS_NUMA_SHARE)}",
            hint=f"nearer is {_pairs(better)}" if better else "the node has none that is nearer and up",
        )


def _down(inputs: Inputs, wired: Wired) -> Iterator[Problem]:
    """GPUs whose nearest NIC has no link, so that they share another one."""
    if _says(inputs, wired.index, "nics"):
        return
    up = replace(
        wired.fabric, nics=tuple(replace(n, state="ACTIVE", rate_gbps=None) for n in wired.fabric.nics)
    )
    users: dict[str, int] = {}
    for _, nics in wired.used():
        for nic in nics:
            users[nic.name] = users.get(nic.name, 0) + 1
    for gpu, nics in wired.used():
        closest = min(distance(gpu, nic, up.told) for nic in up.nics)
        dead = [n for n in wired.fabric.nics if distance(gpu, n, up.told) == closest and not n.active]
        if dead and closest < min(distance(gpu, nic, up.told) for nic in nics):
            share = 1 / max(users[nic.name] for nic in nics)
            yield _finding(
                inputs,
                wired,
                rules.NIC_DOWN,
                f"the link of {_names(dead)}, nearest to GPU {gpu.index} of {wired.node}, is "
                f"{dead[0].state}: {_names(nics)} carries it too, at {share:.0%} of its bandwidth for each: "
                f"{against(inputs, wired.part, share)}",
            )


def _memlock(inputs: Inputs, wired: Wired) -> Iterator[Problem]:
    limit = wired.fabric.memlock_bytes
    if limit is not None and limit >= 0:
        message = f"{wired.node} lets {limit} bytes of memory be locked; RDMA wants no limit"
        yield _finding(inputs, wired, rules.MEMLOCK, message)


def _idle(inputs: Inputs, wired: Sequence[Wired]) -> Iterator[Problem]:
    """Nodes whose instances leave NICs near their GPUs unused."""
    for name in dict.fromkeys(one.node for one in wired):
        here = [one for one in wired if one.node == name]
        host = inputs.topology.hosts[here[0].index]
        fabric = here[0].fabric
        gpus = {gpu.index for one in here for gpu, _ in one.used()}
        # Of all GPUs of the node, as it shares its NICs, used or not.
        picks = [p for p in nic_map(fabric, host.gpus, host.nics_per_gpu) if p.gpu in gpus]
        nics = {nic for one in here for _, found in one.used() for nic in found}
        used = {nic.name for nic in nics}
        near = {nic for pick in picks for nic in pick.nics}
        idle: list[str] = sorted(near - used, key=natural)
        if idle and len(used) < len(near):
            yield _finding(
                inputs,
                here[0],
                rules.IDLE_NICS,
                f"of {len(near)} NICs near the GPUs of {name}, {_names(nics)} alone "
                f"{'is' if len(used) == 1 else 'are'} used, {_listed(idle)} not: "
                f"{against(inputs, here[0].part, len(used) / len(near))}",
                hint=f"nics: {_pairs({pick.gpu: ', '.join(pick.nics) for pick in picks})}",
            )


def _peers(inputs: Inputs, wired: Sequence[Wired]) -> Iterator[Problem]:
    """The NICs of prefill and of decode against each other; of two pools, the first nodes at fault."""
    found: dict[tuple[str, str, str], list[Problem]] = {}
    for ours in wired:
        for theirs in wired:
            if (ours.part.pool.role, theirs.part.pool.role) != HANDS_OFF or ours.node == theirs.node:
                continue
            for problem in _pair(inputs, ours, theirs):
                found.setdefault((ours.part.name, theirs.part.name, problem.rule or ""), []).append(problem)
    for first, *more in found.values():
        others = f"; so it is with {len(more)} more pairs of nodes" if more else ""
        yield replace(first, message=first.message + others)


def _pair(inputs: Inputs, ours: Wired, theirs: Wired) -> Iterator[Problem]:
    here, there = ({nic for _, nics in one.used() for nic in nics} for one in (ours, theirs))
    layers = [{nic.link_layer for nic in nics} for nics in (here, there)]
    if all(layers) and "" not in layers[0] | layers[1] and not layers[0] & layers[1]:
        message = (
            f"{_names(here)} of {ours.node} is {_listed(sorted(layers[0]))}, {_names(there)} of "
            f"{theirs.node} {_listed(sorted(layers[1]))}: KV has no path between them"
        )
        yield _finding(inputs, theirs, rules.LINK_LAYERS, message)
        return
    rates = [min((nic.rate_gbps or 0 for nic in nics), default=0) for nics in (here, there)]
    if min(rates) and min(rates) * 2 <= max(rates):
        slow = ours if rates[0] < rates[1] else theirs
        cost = against(inputs, slow.part, min(rates) / max(rates))
        message = f"NICs of {slow.node} have {min(rates):g} Gbit/s, their peers {max(rates):g}: {cost}"
        yield _finding(inputs, slow, rules.SLOWER_PEER, message)


def _finding(inputs: Inputs, wired: Wired, rule: Rule, message: str, hint: str | None = None) -> Problem:
    field = "nics" if _says(inputs, wired.index, "nics") else "fabric"
    return inputs.source.problem(("nodes", wired.index, field), message, hint=hint, rule=rule)


def _says(inputs: Inputs, index: int, field: str) -> bool:
    """Whether the topology itself gives a field of a node; there may be none written at all."""
    written = inputs.source.data.get("nodes") or []
    return index < len(written) and field in written[index]


def _names(nics: Iterable[Nic]) -> str:
    names: list[str] = sorted((nic.name for nic in nics), key=natural)
    return _listed(names) or "none"


def _listed(items: Iterable[object]) -> str:
    return ", ".join(map(str, items))


def _pairs(by_gpu: Mapping[int, str]) -> str:
    return (
        "{"
        + ", ".join(f"{gpu}: {f'[{nics}]' if ',' in nics else nics}" for gpu, nics in by_gpu.items())
        + "}"
    )
