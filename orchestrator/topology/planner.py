"""From a topology file to its plan: reads the file and all it refers to, and tells every finding at once."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from pydantic_core import PydanticCustomError

from orchestrator.core.fabric import Fabric
from orchestrator.core.transfer import KvShape, kv_shape
from orchestrator.core.types import Role
from orchestrator.engines.base import Engine
from orchestrator.errors import ParamError, PdctlError, PluginError, Problem, TopologyError
from orchestrator.policy.build import build as build_policies
from orchestrator.policy.build import make_policy
from orchestrator.policy.profiles import PROFILES, complete
from orchestrator.topology import rules
from orchestrator.topology.adapters import load_adapter
from orchestrator.topology.build import build
from orchestrator.topology.carriage import carried
from orchestrator.topology.fabric import equipped, fabrics_of
from orchestrator.topology.inputs import Inputs, Part
from orchestrator.topology.load import Draft, draft
from orchestrator.topology.lockfile import held
from orchestrator.topology.model import config, vocab_size
from orchestrator.topology.plan import Plan
from orchestrator.topology.problems import close_to
from orchestrator.topology.profiles import Finder, LaunchProfile, shipped_roots
from orchestrator.topology.router_plan import router_node, tls_files
from orchestrator.topology.scheduling_schema import parse_plugin
from orchestrator.topology.schema import Pool
from orchestrator.topology.source import Place
from orchestrator.topology.sources import sources
from orchestrator.topology.tables import tables
from orchestrator.topology.tls import unusable
from orchestrator.topology.words import runtime_words

DEFAULT_FILE = Path("topology.yaml")

PREDICTORS = "pdctl.predictors"

NOT_SAID = "its adapter does not say that they could (`no_local_prefill = None`)"
"""Why decode instances of an adapter may not compute prompts, unless it has a word on that."""

AskVersions = Callable[[Sequence[str], Sequence[str]], Mapping[str, str]]
"""Interpreter words and distribution names to the versions found; raises PdctlError if it does not run."""


@dataclass(slots=True)
class _Found:
    """What the references of a draft led to, as far as they led anywhere."""

    adapters: dict[str, Engine] = field(default_factory=dict)
    profiles: dict[str, LaunchProfile] = field(default_factory=dict)
    scheduling: dict[str, Any] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    files: tuple[str, ...] = ()


def plan_file(
    path: Path,
    overrides: Sequence[str] = (),
    *,
    environ: Mapping[str, str],
    python: str = sys.executable,
    ask: AskVersions | None = None,
    roots: Sequence[Traversable] | None = None,
    fabrics: Mapping[str, Fabric] | None = None,
    node: str | None = None,
    shown_only: bool = False,
) -> Plan:
    """The plan of the topology at `path`, with `overrides` (`a.b=c`) applied.

    `ask` finds out engines' versions in their environments (None: only declared ones are known);
    `roots` are the folders of launch profiles (default: those installed). `fabrics` are nodes as they were
    found, by name, and go over what the topology says of them. `node` is the one whose processes are to be
    run, None for all. Environment variables that are not set are findings too; if the plan is `shown_only`,
    they are warnings, and placeholders stand for them. Raises TopologyError with every finding about the file
    and what it refers to.
    """
    found = draft(path, overrides, environ)
    if node is not None:
        _check_node(found, node)
    references = _follow(found, shipped_roots() if roots is None else roots)
    saved, unreadable = fabrics_of(found)
    known = {**saved, **(fabrics or {})}
    own_tables, unread = tables(found)
    if (problems := [*found.problems, *references.problems, *unreadable, *unread]) or found.topology is None:
        raise _refusal([*problems, *found.unset])
    topology = equipped(found.topology, known)
    versions, warnings = _versions(found, references, python, ask) if ask else ({}, [])
    parts = [
        Part(name, pool, references.adapters[name], references.profiles[name])
        for name, pool in topology.pools.items()
    ]
    state = state_dir(found, node)
    inputs = Inputs(
        topology=topology,
        source=found.source,
        file=str(path.absolute()),
        folder=found.folder,
        state_dir=state,
        parts=carried(topology, parts, known),
        python=python,
        versions=versions,
        secrets=frozenset(found.scope.secrets),
        scheduling=references.scheduling,
        vocab_size=_vocab_size(found),
        found=tuple(warnings),
        fabrics=known,
        kv=_kv(found),
        tls_fault=_tls_fault(found, node),
        tables=own_tables,
        held=held(Path(state), topology.name) if node is None else {},
    )
    plan = _built(inputs, found.unset, shown_only)
    return replace(plan, sources=sources(found, path, references.files), node=node)


def _built(inputs: Inputs, unset: Sequence[Problem], shown_only: bool) -> Plan:
    """The plan of `inputs`; variables that are not set are told with all else, or are its last warnings."""
    try:
        plan = build(inputs)
    except TopologyError as error:
        if unset:
            raise _refusal([*error.problems, *unset]) from error
        raise
    if unset and not shown_only:
        raise _refusal(unset)
    return replace(plan, warnings=(*plan.warnings, *map(str, unset)))


def _refusal(problems: Sequence[Problem]) -> TopologyError:
    return TopologyError(sorted(problems, key=lambda p: (p.file or "", p.line or 0)))


def state_dir(found: Draft, node: str | None = None) -> str:
    """The state directory of a sound draft: the one it names, else the default for its name. Each `node` has
    its own, for a home directory may be shared by all of them."""
    assert found.topology is not None
    if found.topology.state_dir is not None:
        root = found.folder.absolute(found.topology.state_dir)
    else:
        root = str(found.state_home / "pdctl" / found.topology.name)
    return root if node is None else f"{root}@{node}"


def _check_node(found: Draft, node: str) -> None:
    """Raise TopologyError if a sound draft has no such node."""
    names = [n.name for n in found.topology.hosts] if found.topology is not None else [node]
    if node not in names:
        message = f"there is no node {node!r}"
        raise TopologyError([Problem(message, file=found.source.name, hint=close_to(node, names))])


def _vocab_size(found: Draft) -> int | None:
    """As declared, else as the model's folder has it, if the model is one on this machine."""
    assert found.topology is not None
    model = found.topology.model
    if model.vocab_size is not None or model.path is None:
        return model.vocab_size
    path = Path(found.folder.if_path(model.path))
    return vocab_size(path) if path.is_absolute() else None


def _kv(found: Draft) -> KvShape | None:
    """What the model's folder says of its KV, if the model is one on this machine."""
    assert found.topology is not None
    path = Path(found.folder.if_path(found.topology.model.path or ""))
    told = config(path) if path.is_absolute() else None
    return None if told is None else kv_shape(told)


def _tls_fault(found: Draft, node: str | None) -> tuple[str, str] | None:
    """What is wrong with the files of `router.tls`, if the router is to run on this machine."""
    assert found.topology is not None
    files = tls_files(found.topology, found.folder)
    if files is None or node not in (None, router_node(found.topology).name):
        return None
    return unusable(files)


def _follow(found: Draft, roots: Sequence[Traversable]) -> _Found:
    """Resolve what the draft's sound parts refer to: adapters, launch profiles, nodes, scheduling."""
    led = _Found()
    finder = Finder(roots, found.folder.base)
    for name, pool in found.pools.items():
        _follow_pool(found, led, finder, name, pool)
    led.files = finder.files
    _follow_nodes(found, led)
    _follow_scheduling(found, led)
    _follow_predictor(found, led)
    led.problems = list(dict.fromkeys(led.problems))
    return led


def _follow_pool(found: Draft, led: _Found, finder: Finder, name: str, pool: Pool) -> None:
    place: Place = ("pools", name)
    try:
        adapter = load_adapter(pool.engine, found.folder.base)
    except PluginError as error:
        led.problems += [_at(found, (*place, "engine"), p) for p in error.problems]
        return
    try:
        led.adapters[name] = adapter = adapter.bind(pool.options)
    except TopologyError as error:
        for problem in error.problems:
            below = (*place, "options", *(problem.field.split(".") if problem.field else ()))
            led.problems.append(_at(found, below, problem))
    if pool.role not in adapter.roles:
        can = ", ".join(role.value for role in Role if role in adapter.roles)
        message = f"engine {pool.engine} has no role {pool.role.value!r} here; it has {can}"
        why = getattr(adapter, "lacks", {}).get(pool.role)
        led.problems.append(found.source.problem((*place, "role"), message, hint=why))
    elif pool.may_prefill and (why := getattr(adapter, "no_local_prefill", NOT_SAID)) is not None:
        message = f"engine {pool.engine} cannot compute prompts in a decode pool: {why}"
        led.problems.append(found.source.problem((*place, "may_prefill"), message))
    if pool.external is not None:
        led.profiles[name] = LaunchProfile()
        return
    profile, problems = finder.find(pool.profile, adapter.name, pool.role)
    led.profiles[name] = profile
    led.problems += [_at(found, (*place, "profile"), p) for p in problems]


def _follow_nodes(found: Draft, led: _Found) -> None:
    raw = found.source.data.get("nodes")
    listed = raw if isinstance(raw, list) else []
    names = [n["name"] for n in listed if isinstance(n, dict) and isinstance(n.get("name"), str)] or ["local"]
    for index, name in enumerate(names):
        if name in names[:index]:
            message = f"{name!r} is the name of another node already"
            led.problems.append(found.source.problem(("nodes", index, "name"), message))
    router = found.source.data.get("router")
    named = router.get("node") if isinstance(router, dict) else None
    places: list[tuple[Place, str]] = [(("router", "node"), named)] if isinstance(named, str) else []
    for pool_name, pool in found.pools.items():
        places += _nodes_of(pool_name, pool)
    for place, node in places:
        if node not in names:
            message = f"there is no node {node!r}"
            led.problems.append(found.source.problem(place, message, hint=close_to(node, names)))


def _nodes_of(name: str, pool: Pool) -> Iterator[tuple[Place, str]]:
    """Every node that a pool names, and where."""
    for index, node in enumerate(pool.nodes or ()):
        yield ("pools", name, "nodes", index), node
    for index, pin in enumerate(pool.pin or ()):
        for rank, node in enumerate(pin.span):
            below: Place = ("node",) if pin.nodes is None else ("nodes", rank)
            yield ("pools", name, "pin", index, *below), node


def _follow_scheduling(found: Draft, led: _Found) -> None:
    raw = found.source.data.get("scheduling")
    section = raw if isinstance(raw, dict) else {}
    profiles = section.get("profiles")
    own = {k: v for k, v in profiles.items() if isinstance(v, dict)} if isinstance(profiles, dict) else {}
    for name, data in own.items():
        place: Place = ("scheduling", "profiles", name)
        try:
            build_policies(data, found.folder.base)
        except ParamError as error:
            for below, problem in zip(error.paths, error.problems, strict=True):
                led.problems.append(_at(found, (*place, *below), problem))
    chosen = section.get("profile", "default")
    if isinstance(chosen, str) and chosen in own:
        led.scheduling = complete(own[chosen])
    elif isinstance(chosen, str) and chosen in PROFILES:
        led.scheduling = complete(chosen)
    elif isinstance(chosen, str):
        message = f"there is no scheduling profile {chosen!r}"
        hint = close_to(chosen, [*own, *PROFILES])
        led.problems.append(found.source.problem(("scheduling", "profile"), message, hint=hint))


def _follow_predictor(found: Draft, led: _Found) -> None:
    """Make the predictor that is written once, to see that it is there and takes its parameters."""
    section = found.source.data.get("scheduling")
    given = section.get("predictor") if isinstance(section, dict) else None
    if given is None:
        return
    place: Place = ("scheduling", "predictor")
    try:
        written = parse_plugin(given)
    except (ValueError, PydanticCustomError):
        return  # told with the rest of the form
    params = {name: value for name, value in written.items() if name != "use"}
    try:
        make_policy(written["use"], params, found.folder.base, group=PREDICTORS)
    except PluginError as error:
        below = (*place, "use") if isinstance(given, dict) else place
        led.problems += [_at(found, below, problem) for problem in error.problems]
    except ParamError as error:
        for path, problem in zip(error.paths, error.problems, strict=True):
            led.problems.append(_at(found, (*place, *path), problem))


def _at(found: Draft, place: Place, problem: Problem) -> Problem:
    """A reference's finding, at the place in the topology that holds it unless it has a file of its own."""
    if problem.file is not None:
        return problem
    return replace(found.source.problem(place, problem.message, hint=problem.hint), rule=problem.rule)


def _versions(
    found: Draft, led: _Found, python: str, ask: AskVersions
) -> tuple[dict[str, str], list[Problem]]:
    """The engine's version by pool, each environment asked once; a warning where one does not run."""
    versions: dict[str, str] = {}
    warnings: list[Problem] = []
    asked: dict[tuple[tuple[str, ...], tuple[str, ...]], Mapping[str, str]] = {}
    broken: set[tuple[tuple[str, ...], tuple[str, ...]]] = set()
    for name, pool in found.pools.items():
        wanted = tuple(getattr(led.adapters[name], "distributions", ()))
        declared = pool.runtime is not None and pool.runtime.version is not None
        if declared or pool.external is not None or not wanted:
            continue
        words = tuple(runtime_words(pool.runtime, found.folder)) or (python,)
        try:
            if (words, wanted) not in asked:
                asked[words, wanted] = ask(words, wanted)
        except PdctlError as error:
            place: Place = ("pools", name, "runtime")
            message = f"the engine's version is unknown: {error.message}"
            warnings.append(found.source.problem(place, message, rule=rules.RUNTIME))
            asked[words, wanted] = {}
            broken.add((words, wanted))
        answer = asked[words, wanted]
        version = next((answer[d] for d in wanted if d in answer), None)
        if version is not None:
            versions[name] = version
        elif (words, wanted) not in broken:
            warnings.append(_not_installed(found, name, words, wanted))
    return versions, warnings


def _not_installed(found: Draft, name: str, words: Sequence[str], wanted: Sequence[str]) -> Problem:
    return found.source.problem(
        ("pools", name, "runtime"),
        f"there is no {' or '.join(wanted)} in {' '.join(words)}",
        hint=f"set pools.{name}.runtime.python, unless the plan is made for another machine",
        rule=rules.ENGINE_MISSING,
    )
