"""What is wrong with nodes against each other, and with instances that span several of them."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.core.address import is_loopback, join_host_port
from orchestrator.errors import Problem
from orchestrator.topology import rules
from orchestrator.topology.inputs import Inputs
from orchestrator.topology.layout import span
from orchestrator.topology.router_plan import router_node


def shared_hosts(inputs: Inputs) -> Iterator[Problem]:
    """Two nodes at one address are one machine: a GPU or NIC that both list would be given twice."""
    hosts = inputs.topology.hosts
    for index, node in enumerate(hosts):
        for other in hosts[:index]:
            if node.address != other.address:
                continue
            twice = sorted(set(node.gpus) & set(other.gpus))
            if twice:
                named = f"GPU{'s' * (len(twice) > 1)} {', '.join(map(str, twice))}"
                yield inputs.source.problem(
                    ("nodes", index, "gpus"),
                    f"{named} of {node.address} belong to node {other.name} already, which has that address",
                    hint="give each node its own address, or its share of the GPUs as a list",
                    rule=rules.SHARED_HOST,
                )


def racks(inputs: Inputs) -> Iterator[Problem]:
    """Where some nodes have a rack, one without is taken for the neighbour of every other one without."""
    hosts = inputs.topology.hosts
    for index, node in enumerate(hosts):
        if node.rack is None and any(other.rack is not None for other in hosts):
            yield inputs.source.problem(
                ("nodes", index),
                f"node {node.name} has no `rack`, others have: all without one count as one rack",
                rule=rules.RACKS,
            )


def router_reach(inputs: Inputs) -> Iterator[Problem]:
    """Engines on other hosts than the router's are stopped by a pdctl that has to tell the router first."""
    hosts, router = inputs.topology.hosts, inputs.topology.router
    if router.kind != "pdctl" or all(is_loopback(node.address) for node in hosts):
        return
    launched = [part for part in inputs.parts if part.pool.external is None]
    used = {name for part in launched for name in part.pool.nodes or [node.name for node in hosts]}
    addresses = {node.address for node in hosts if node.name in used}
    if len(addresses) > 1 and is_loopback(router.admin_address[0]):
        host, port = router.admin_address
        there = router_node(inputs.topology).address
        yield inputs.source.problem(
            ("router", "admin"),
            f"engines run at {len(addresses)} addresses, and only the router's own node reaches its admin "
            f"listener at {join_host_port(host, port)}",
            hint=f"admin: {join_host_port(there, port)}, and credentials.admin_key",
            rule=rules.ROUTER_REACH,
        )


def spans(inputs: Inputs) -> Iterator[Problem]:
    """An instance on several nodes needs an engine that can do it, and whole groups of ranks."""
    for part in inputs.parts:
        if part.pool.external is not None or not part.pool.size:
            continue
        nnodes = span(part, inputs.topology.hosts)
        if nnodes == 1:
            continue
        place = (*part.place, "nnodes") if part.pool.nnodes else part.place
        if not part.spans_nodes:
            message = f"engine {part.pool.engine} runs an instance on one node, this one would span {nnodes}"
            hint = "more instances, each on one node"
            yield inputs.source.problem(place, message, hint=hint, rule=rules.SPANS)
        share, tp = part.gpus // nnodes, part.pool.tp
        if share and share % tp and tp % share:
            yield inputs.source.problem(
                place,
                f"{share} ranks on each of {nnodes} nodes would cut tensor-parallel groups of {tp} unevenly",
                hint=f"nnodes that leaves a multiple or a divisor of {tp} on each node",
                rule=rules.SPANS,
            )
