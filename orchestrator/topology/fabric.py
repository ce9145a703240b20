"""What nodes have, as files that stand in for them: written by `pdctl doctor --json`, named by `fabric:`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from orchestrator.core.fabric import Fabric
from orchestrator.core.nicmap import Pick, nic_map
from orchestrator.errors import Problem
from orchestrator.topology.known import fields_at
from orchestrator.topology.load import Draft
from orchestrator.topology.problems import close_to, translate
from orchestrator.topology.schema import Node, Topology
from orchestrator.topology.source import Place, Source, read
from orchestrator.topology.values import Nics

FORMAT = 1
"""Of the file: another one is refused."""


@dataclass(frozen=True, slots=True)
class PortUse:
    """A port of the node's range that somebody listens on, and who, as far as this user may know."""

    port: int
    holder: str


@dataclass(frozen=True, slots=True)
class GpuNics:
    """The NICs that a GPU is given, and how far the farthest of them is."""

    gpu: int
    nics: tuple[str, ...]
    distance: str


@dataclass(frozen=True, slots=True)
class Report:
    """All that `pdctl doctor` tells; a plan reads `node` of it, the rest is for people.

    `ports` is the node's range, `model` what the model's config.json says (`kv_bytes_per_token` on each
    rank of tp 1, ...), `findings` what is wrong here with the topology's plan.
    """

    node: Fabric
    format: int = FORMAT
    name: str | None = None
    nics_of_gpus: tuple[GpuNics, ...] = ()
    ports: tuple[int, int] | None = None
    ports_taken: tuple[PortUse, ...] = ()
    model: dict[str, Any] | None = None
    findings: tuple[str, ...] = ()


_REPORT: TypeAdapter[Report] = TypeAdapter(Report)
_SCHEMA = _REPORT.json_schema()


def dump(report: Report) -> str:
    """The report as JSON, which `parse` reads."""
    return json.dumps(asdict(report), indent=1, ensure_ascii=False)


def load(path: Path) -> tuple[Fabric | None, list[Problem]]:
    """The node that the file at `path` describes, or every finding about the file."""
    source = read(path)
    if source.problems:
        return None, source.problems
    if source.data.get("format") != FORMAT:
        hint = f"write it anew with `pdctl doctor --json`; this pdctl reads format {FORMAT}"
        message = f"is not of format {FORMAT}, but {source.data.get('format', 'of none')}"
        return None, [source.problem(("format",), message, hint=hint)]
    found = list(_unknown(source, source.data, ()))
    try:
        report = _REPORT.validate_python(source.data)
    except ValidationError as error:
        return None, [*found, *translate(error, source, _SCHEMA)]
    return (None, found) if found else (report.node, [])


def _unknown(source: Source, value: Any, place: Place) -> Iterator[Problem]:
    """A finding for each key that has no meaning: in a file written by hand it would mislead."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _unknown(source, item, (*place, index))
    if not isinstance(value, dict):
        return
    known = fields_at(_SCHEMA, place)
    for key, item in value.items():
        at = (*place, key)
        if known and key not in known:
            yield source.problem(at, "unknown field", hint=close_to(key, known))
        else:
            yield from _unknown(source, item, at)


def fabrics_of(found: Draft) -> tuple[dict[str, Fabric], list[Problem]]:
    """What the nodes of a draft have, by name, as far as they say (`fabric:`); and what is wrong there."""
    fabrics: dict[str, Fabric] = {}
    problems: list[Problem] = []
    files: dict[str, tuple[Fabric | None, list[Problem]]] = {}
    for index, node in enumerate(found.topology.hosts if found.topology is not None else ()):
        place: Place = ("nodes", index)
        if node.fabric is None:
            if node.nics_per_gpu is not None:
                message = "needs `fabric`: without it nothing says which NICs are near which GPU"
                problems.append(found.source.problem((*place, "nics_per_gpu"), message))
            continue
        if node.nics_per_gpu is not None and "nics" in node.model_fields_set:
            message = "has no effect beside `nics`, which says which NICs are used"
            problems.append(found.source.problem((*place, "nics_per_gpu"), message))
        if node.fabric not in files:  # hosts bought together share one
            files[node.fabric] = load(Path(found.folder.absolute(node.fabric)))
        fabric, wrong = files[node.fabric]
        if fabric is not None:
            fabrics[node.name] = fabric
        for problem in wrong:
            if (
                problem.field is None and problem.line is None
            ):  # about the file as a whole: told where the topology names it
                message = f"{node.fabric} {problem.message}"
                problem = found.source.problem((*place, "fabric"), message, hint=problem.hint)
            problems.append(problem)
    return fabrics, problems


def equipped(topology: Topology, fabrics: Mapping[str, Fabric]) -> Topology:
    """`topology` with the GPUs and NICs of its nodes as their fabric has them, where it says nothing."""
    hosts = tuple(_equipped(n, fabrics[n.name]) if n.name in fabrics else n for n in topology.hosts)
    return topology.model_copy(update={"nodes": hosts}) if fabrics else topology


def _equipped(node: Node, fabric: Fabric) -> Node:
    update: dict[str, Any] = {}
    gpus = node.gpus
    if "gpus" not in node.model_fields_set:
        gpus = update["gpus"] = tuple(gpu.index for gpu in fabric.gpus)
    if "nics" not in node.model_fields_set:
        picks = nic_map(fabric, gpus, node.nics_per_gpu)
        update["nics"] = Nics(by_gpu=tuple((pick.gpu, pick.nics) for pick in picks))
    return node.model_copy(update=update)


def as_told(picks: tuple[Pick, ...]) -> tuple[GpuNics, ...]:
    """A map of NICs as a report has it."""
    return tuple(GpuNics(pick.gpu, pick.nics, pick.distance.name) for pick in picks)
