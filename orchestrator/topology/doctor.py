"""One node looked at against its topology: what it has, what is installed, what is taken, what is wrong."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator import plugins
from orchestrator.core.address import is_loopback
from orchestrator.core.fabric import Fabric, Installed, differences, distance
from orchestrator.core.nicmap import Pick, nic_map
from orchestrator.core.transfer import kv_shape
from orchestrator.errors import PdctlError, PluginError, Problem, TopologyError
from orchestrator.fabric import host, interpreter
from orchestrator.fabric.ports import listening
from orchestrator.topology.adapters import GROUP, load_adapter
from orchestrator.topology.fabric import PortUse, Report, as_told, load
from orchestrator.topology.load import Draft, draft
from orchestrator.topology.model import config
from orchestrator.topology.planner import AskVersions, plan_file
from orchestrator.topology.problems import close_to
from orchestrator.topology.router_plan import router_node
from orchestrator.topology.schema import Node
from orchestrator.topology.values import REFERENCE
from orchestrator.topology.words import runtime_words

Look = Callable[[Path], Fabric]
"""Reads the host whose root is at a path (`orchestrator.fabric.host.read`)."""

Built = Callable[[], str | None]
"""What is to be said of how the Python that runs the router was built, if anything."""

SHOWN = ("architectures", "max_position_embeddings", "vocab_size", "num_hidden_layers", "num_key_value_heads")
"""What is told of a model's config.json as it stands there."""


def examine_host(
    root: Path = host.HERE,
    *,
    ask: AskVersions | None,
    look: Look = host.read,
    built: Built = interpreter.mine,
) -> Report:
    """This host, or the copy of one below `root`, without a topology."""
    fabric = look(root)
    if root == host.HERE and ask is not None:
        names = sorted({name for e in plugins.known(GROUP) for name in _distributions(e, Path())})
        fabric = replace(fabric, installed=(_installed([sys.executable], names, ask),))
    if root == host.HERE:
        fabric = _noted(fabric, built())
    return Report(node=fabric, nics_of_gpus=as_told(nic_map(fabric)))


def examine(
    path: Path,
    name: str | None = None,
    root: Path = host.HERE,
    *,
    environ: Mapping[str, str],
    ask: AskVersions | None,
    look: Look = host.read,
    built: Built = interpreter.mine,
) -> Report:
    """The node `name` (default: the one that this host is) of the topology at `path`, and its plan there.

    Raises TopologyError when the topology is not sound, has no such node, or when the node is neither this
    host nor described by a file (`fabric:`).
    """
    found = draft(path, (), environ)
    if found.topology is None:
        raise TopologyError([*found.problems, *found.unset])
    node = _node(found, name)
    live = root == host.HERE and _is_here(node)
    fabric = look(root) if live or root != host.HERE else _saved(found, node)
    if live and ask is not None:
        fabric = replace(fabric, installed=tuple(_environments(found, node, ask)))
    if live and found.topology.router.kind == "pdctl" and node.name == router_node(found.topology).name:
        fabric = _noted(fabric, built())
    changed = tuple(_changed(found, node, fabric)) if live or root != host.HERE else ()
    holders = listening(*node.ports) if live else []
    return Report(
        node=fabric,
        name=node.name,
        nics_of_gpus=as_told(_in_use(node, fabric)),
        ports=node.ports if live else None,
        ports_taken=tuple(PortUse(holder.port, str(holder)) for holder in holders),
        model=_model(found),
        findings=(*(f"warning: {line}" for line in changed), *_findings(path, environ, {node.name: fabric})),
    )


def out_of_date(
    path: Path, overrides: Sequence[str] = (), *, environ: Mapping[str, str], look: Look = host.read
) -> list[str]:
    """How this host differs from the files that stand in for it in the topology at `path`.

    Nothing is read where no node of this host names a file, or where the topology is not sound.
    """
    found = draft(path, overrides, environ)
    nodes = found.topology.hosts if found.topology is not None else ()
    here = [node for node in nodes if node.fabric is not None and _is_here(node)]
    if not here:
        return []
    fabric = look(host.HERE)
    return list(dict.fromkeys(line for node in here for line in _changed(found, node, fabric)))


def _node(found: Draft, name: str | None) -> Node:
    assert found.topology is not None
    hosts = found.topology.hosts
    names = [node.name for node in hosts]
    if name is not None:
        if name not in names:
            message = f"there is no node {name!r} in {found.source.name}"
            raise TopologyError([Problem(message, hint=close_to(name, names))])
        return hosts[names.index(name)]
    here = [node for node in hosts if _is_here(node)]
    if len(hosts) == 1 or len(here) == 1:
        return (here or list(hosts))[0]
    which = "several nodes are" if here else "no node is"
    message = f"{which} at an address of this host"
    raise TopologyError([Problem(message, hint=f"choose one by --node: {', '.join(names)}")])


def _is_here(node: Node) -> bool:
    """Whether the node's address is one of this host's."""
    return is_loopback(node.address) or node.address in host.addresses()


def _saved(found: Draft, node: Node) -> Fabric:
    if node.fabric is None:
        problem = Problem(
            f"node {node.name} is at {node.address}, which is not this host, and has no `fabric`",
            hint=f"run `pdctl doctor --json > {node.name}.json` there, and write `fabric: {node.name}.json`",
        )
        raise TopologyError([problem])
    fabric, problems = load(Path(found.folder.absolute(node.fabric)))
    if fabric is None:
        raise TopologyError(problems)
    return fabric


def _noted(fabric: Fabric, note: str | None) -> Fabric:
    return fabric if note is None else replace(fabric, notes=(*fabric.notes, note))


def _in_use(node: Node, fabric: Fabric) -> tuple[Pick, ...]:
    """The NICs that a plan gives the node's GPUs: those written for it, else those that follow."""
    gpus = node.gpus if "gpus" in node.model_fields_set else tuple(gpu.index for gpu in fabric.gpus)
    if "nics" not in node.model_fields_set:
        return nic_map(fabric, gpus, node.nics_per_gpu)
    picks = []
    for gpu in fabric.gpus:
        nics = [nic for name in node.nics.near((gpu.index,)) if (nic := fabric.nic(name)) is not None]
        if nics and gpu.index in gpus:
            far = max(distance(gpu, nic, fabric.told) for nic in nics)
            picks.append(Pick(gpu.index, tuple(nic.name for nic in nics), far))
    return tuple(picks)


def _changed(found: Draft, node: Node, fabric: Fabric) -> Iterator[str]:
    """How the node differs from the file that stands in for it, if one does and can be read."""
    if node.fabric is None:
        return
    saved, _ = load(Path(found.folder.absolute(node.fabric)))
    for difference in differences(saved, fabric) if saved is not None else ():
        yield f"{node.fabric} is out of date: {difference}"


def _environments(found: Draft, node: Node, ask: AskVersions) -> Iterator[Installed]:
    """The environments of the pools that may run on `node`, each once."""
    wanted: dict[tuple[str, ...], set[str]] = {}
    for pool in found.pools.values():
        pinned = [name for pin in pool.pin or () for name in pin.span]
        if pool.external is None and node.name in (pinned or pool.nodes or (node.name,)):
            words = tuple(runtime_words(pool.runtime, found.folder)) or (sys.executable,)
            wanted.setdefault(words, set()).update(_distributions(pool.engine, found.folder.base))
    for words, names in wanted.items():
        if names:
            yield _installed(words, sorted(names), ask)


def _distributions(engine: str, base: Path) -> Sequence[str]:
    try:
        adapter = load_adapter(engine, base)
    except PluginError:
        return ()  # told by the plan's own findings
    return tuple(getattr(adapter, "distributions", ()))


def _installed(words: Sequence[str], names: Sequence[str], ask: AskVersions) -> Installed:
    try:
        return Installed(" ".join(words), dict(ask(words, names)))
    except PdctlError as error:
        return Installed(" ".join(words), error=error.message)


def _model(found: Draft) -> dict[str, Any] | None:
    """What is known of the model from its folder, if it is one on this machine."""
    assert found.topology is not None
    path = Path(found.folder.if_path(found.topology.model.path or ""))
    told = config(path) if path.is_absolute() else None
    if told is None:
        return None
    shown = {name: told[name] for name in SHOWN if name in told}
    shape = kv_shape(told)
    return {"path": str(path), **shown, "kv_bytes_per_token": shape and shape.rank_bytes(1)}


def _findings(path: Path, environ: Mapping[str, str], fabrics: Mapping[str, Fabric]) -> Iterator[str]:
    """What is wrong with a plan for the nodes as they were found; keys need not be set for that."""
    keys = dict.fromkeys(REFERENCE.findall(path.read_text()), "not-set-here")
    try:
        plan = plan_file(path, environ={**keys, **environ}, fabrics=fabrics)
    except TopologyError as error:
        yield from (f"error: {problem}" for problem in error.problems)
    else:
        yield from (f"warning: {warning}" for warning in plan.warnings)
