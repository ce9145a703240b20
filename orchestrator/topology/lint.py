"""What is wrong between the parts of a topology, each of which is right by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.core.address import is_loopback, is_wildcard
from orchestrator.core.types import Role
from orchestrator.engines.base import InstanceSpec, LintContext
from orchestrator.engines.rules import TRANSFER_MISMATCH
from orchestrator.errors import Problem
from orchestrator.topology import rules
from orchestrator.topology.inputs import Inputs, Part
from orchestrator.topology.lint_nodes import racks, router_reach, shared_hosts, spans
from orchestrator.topology.lint_slo import class_pools, classes, promises, waits
from orchestrator.topology.rulebook import rules_of
from orchestrator.topology.source import Place
from orchestrator.topology.tls import HINT
from orchestrator.topology.values import REFERENCE

EPHEMERAL = (32768, 60999)
"""Linux's default net.ipv4.ip_local_port_range; not read from this host, as plans are equal on every host."""


def lint(inputs: Inputs) -> list[Problem]:
    """Every finding of the rules here, errors and warnings."""
    return [problem for rule in RULES for problem in rule(inputs)]


def lint_engines(inputs: Inputs, specs: Mapping[str, Sequence[InstanceSpec]]) -> list[Problem]:
    """Every finding of the engines' adapters about the instances of each, by pool in `specs`."""
    found: list[Problem] = []
    for parts in _by_adapter(inputs):
        launched = [part for part in parts if part.pool.external is None]
        context = LintContext(
            specs=tuple(spec for part in launched for spec in specs[part.name]),
            origins={p.name: (inputs.source.name, inputs.source.line(p.place)) for p in parts},
            kv=inputs.kv,
            connect_s=inputs.topology.router.timeouts.connect,
        )
        found += [_located(inputs, problem) for problem in parts[0].adapter.lint(context)]
    return found


def _by_adapter(inputs: Inputs) -> list[list[Part]]:
    groups: dict[type, list[Part]] = {}
    for part in inputs.parts:
        groups.setdefault(type(part.adapter), []).append(part)
    return list(groups.values())


def _located(inputs: Inputs, problem: Problem) -> Problem:
    """An adapter's finding with its place: the `--set`, or file and line, of its field if it names one."""
    field: Place = tuple(problem.field.split(".")) if problem.field else ()
    if (override := inputs.source.override(field)) is not None:
        return replace(problem, file=f"--set {override}", line=None)
    if problem.file == Path(inputs.source.name).name:
        return replace(problem, file=inputs.source.name)  # it was read off an origin, which is short
    if problem.file is not None:
        return problem
    return replace(problem, file=inputs.source.name, line=inputs.source.line(field or ("pools",)))


def _populated(inputs: Inputs, *roles: Role) -> list[Part]:
    return [part for part in inputs.parts if part.pool.role in roles and part.pool.size > 0]


def roles(inputs: Inputs) -> Iterator[Problem]:
    """A prefill engine is of no use without a decode engine, nor the other way round."""
    for here, there in ((Role.PREFILL, Role.DECODE), (Role.DECODE, Role.PREFILL)):
        if _populated(inputs, here) and not _populated(inputs, there):
            part = _populated(inputs, here)[0]
            yield inputs.source.problem(
                part.place,
                f"{here.value} instances, but none for {there.value} to hand off with",
                hint=f"add a pool with `role: {there.value}`, or make this one `role: unified`",
                rule=rules.ROLES,
            )
    served = {part.dialect for part in _populated(inputs, Role.PREFILL, Role.UNIFIED)}
    for part in _populated(inputs, Role.ENCODE):
        if part.dialect not in served:
            yield inputs.source.problem(
                part.place,
                f"encoders, but no prefill or unified instance of {part.dialect} to encode for",
                hint="add a pool with `role: prefill` or `role: unified` of that engine",
                rule=rules.ROLES,
            )
    if not any(part.pool.size for part in inputs.parts):
        yield inputs.source.problem(("pools",), "no pool has an instance", rule=rules.ROLES)


def one_protocol(inputs: Inputs) -> Iterator[Problem]:
    """Any prefill engine may be paired with any decode engine, so all must speak one hand-off."""
    pairs = _populated(inputs, Role.PREFILL, Role.DECODE)
    for part in pairs[1:]:
        first = pairs[0]
        if part.dialect != first.dialect:
            message = (
                f"speaks {part.dialect}, pool {first.name} speaks {first.dialect}: "
                "KV cannot be handed off between them"
            )
            yield inputs.source.problem((*part.place, "engine"), message, rule=rules.ONE_PROTOCOL)
        elif (
            part.transfer != first.transfer
            and part.pool.external is None
            and first.pool.external is None
            and TRANSFER_MISMATCH not in rules_of(part.adapter)  # it knows the defaults, and says it itself
        ):
            message = (
                f"transfers KV by {part.transfer or 'the default'}, "
                f"pool {first.name} by {first.transfer or 'the default'}"
            )
            yield inputs.source.problem((*part.place, "transfer"), message, rule=rules.ONE_PROTOCOL)


def model_path(inputs: Inputs) -> Iterator[Problem]:
    """Whoever is launched has a model to load."""
    if inputs.topology.model.path is None and any(part.pool.external is None for part in inputs.parts):
        message = "is required: pdctl launches engines here, and they need to know what to load"
        yield inputs.source.problem(("model", "path"), message, rule=rules.MODEL_PATH)


def addresses(inputs: Inputs) -> Iterator[Problem]:
    """With several nodes, each needs an address that the others can reach."""
    hosts = inputs.topology.hosts
    for index, node in enumerate(hosts):
        if is_wildcard(node.address):
            message = f"{node.address} is every interface; name the one that peers and the router reach"
            yield inputs.source.problem(("nodes", index, "address"), message, rule=rules.ADDRESSES)
        elif is_loopback(node.address) and not all(is_loopback(n.address) for n in hosts):
            message = f"{node.address} cannot be reached from the other nodes"
            yield inputs.source.problem(("nodes", index, "address"), message, rule=rules.ADDRESSES)


def port_ranges(inputs: Inputs) -> Iterator[Problem]:
    """Two nodes at one address share its ports."""
    hosts = inputs.topology.hosts
    for index, node in enumerate(hosts):
        for other in hosts[:index]:
            apart = node.ports[0] > other.ports[1] or node.ports[1] < other.ports[0]
            if node.address == other.address and not apart:
                message = f"overlaps the ports of node {other.name}, which has the same address"
                yield inputs.source.problem(("nodes", index, "ports"), message, rule=rules.PORT_RANGES)


def ephemeral_ports(inputs: Inputs) -> Iterator[Problem]:
    """A port that the kernel hands out to outgoing connections is taken now and then."""
    first, last = EPHEMERAL
    for index, node in enumerate(inputs.topology.hosts):
        if node.ports[0] <= last and node.ports[1] >= first:
            yield inputs.source.problem(
                ("nodes", index, "ports"),
                f"{node.ports[0]}-{node.ports[1]} meets the ports that Linux gives to outgoing connections "
                f"({first}-{last}), so an engine's port may be taken when it starts",
                hint=f"choose a range below {first}",
                rule=rules.EPHEMERAL_PORTS,
            )


def pins(inputs: Inputs) -> Iterator[Problem]:
    """An instance that is pinned to GPUs gets as many as it takes."""
    for part in inputs.parts:
        for (index, name), pin in zip(part.instances(), part.pool.pin or (), strict=False):
            nnodes = len(pin.span)
            if pin.gpus is not None and len(pin.gpus) * nnodes != part.gpus:
                takes = f"{part.gpus} GPUs" if nnodes == 1 else f"{part.gpus} GPUs on {nnodes} nodes"
                here = len(pin.gpus) if nnodes == 1 else f"{len(pin.gpus)} on each"
                message = f"{name} takes {takes}, here are {here}"
                yield inputs.source.problem((*part.place, "pin", index, "gpus"), message, rule=rules.PINS)


def admin_key(inputs: Inputs) -> Iterator[Problem]:
    """Who reaches the admin listener can take engines out; `auth: none` lets in clients, not operators."""
    router = inputs.topology.router
    host = router.admin_address[0]
    if router.kind == "pdctl" and not is_loopback(host) and router.credentials.admin_key is None:
        yield inputs.source.problem(
            ("router", "admin"),
            f"{router.admin} can be reached from other machines, and no admin key is demanded",
            hint="write router.credentials.admin_key: ${env:NAME}, or listen on 127.0.0.1",
            rule=rules.ADMIN_KEY,
        )


def tls_files(inputs: Inputs) -> Iterator[Problem]:
    """A router that cannot show its certificate cannot start."""
    if inputs.tls_fault is not None:
        field, why = inputs.tls_fault
        yield inputs.source.problem(("router", "tls", field), why, hint=HINT, rule=rules.TLS_FILES)


def inline_secrets(inputs: Inputs) -> Iterator[Problem]:
    """A key in the file ends up in version control."""
    data = inputs.source.data
    given: list[tuple[Place, Any]] = [
        (("router", "credentials", name), value)
        for name, value in data.get("router", {}).get("credentials", {}).items()
    ]
    given += [(("tenants", name, "keys"), t.get("keys")) for name, t in data.get("tenants", {}).items()]
    for place, value in given:
        texts = value if isinstance(value, list) else [value]
        if any(isinstance(text, str) and not REFERENCE.search(text) for text in texts):
            yield inputs.source.problem(
                place,
                "a key is written in the file",
                hint="write ${env:NAME} and keep the key in the environment",
                rule=rules.INLINE_SECRETS,
            )


def untried(inputs: Inputs) -> Iterator[Problem]:
    """Who uses a profile that nobody has run yet should know."""
    for part in inputs.parts:
        if not part.profile.tried and part.pool.external is None:
            yield inputs.source.problem(
                (*part.place, "profile"),
                f"launch profile {part.profile.name} is written from documentation and untried",
                rule=rules.UNTRIED,
            )


def vocabulary(inputs: Inputs) -> Iterator[Problem]:
    """An engine that a token id beyond its vocabulary ends needs the router to know where that is."""
    exposed = [
        part
        for part in inputs.parts
        if part.pool.size and getattr(part.adapter, "dies_of_unknown_tokens", False)
    ]
    if exposed and inputs.vocab_size is None:
        yield inputs.source.problem(
            ("model",),
            f"the size of the vocabulary is unknown: a client that sends a token id beyond it ends an engine "
            f"of pool {exposed[0].name}",
            hint="write `vocab_size: N`, as the model's config.json has it",
            rule=rules.VOCABULARY,
        )


RULES: Sequence[Callable[[Inputs], Iterator[Problem]]] = (
    roles,
    one_protocol,
    model_path,
    addresses,
    port_ranges,
    shared_hosts,
    racks,
    router_reach,
    ephemeral_ports,
    pins,
    spans,
    classes,
    class_pools,
    promises,
    waits,
    admin_key,
    tls_files,
    inline_secrets,
    untried,
    vocabulary,
)
"""Every rule of the topology itself, in the order of docs/topology.md."""
