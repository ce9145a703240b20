"""Reads a topology file: its text, `--set` overrides, secrets from the environment, and the typed form."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from orchestrator.errors import Problem, TopologyError
from orchestrator.topology.known import EXTENSION, interpolates_at, json_schema
from orchestrator.topology.problems import close_to, translate
from orchestrator.topology.schema import Pool, Topology
from orchestrator.topology.source import Place, Source, parse_value, read
from orchestrator.topology.values import REFERENCE, Scope, unset

_PATH = re.compile(r"(\.\.?|~)?(/.*)?")


@dataclass(frozen=True, slots=True)
class Folder:
    """What relative paths of a file are relative to, and where `~` leads."""

    base: Path
    home: Path

    def absolute(self, text: str) -> str:
        """`text` as an absolute path, without looking whether anything is there."""
        if text == "~" or text.startswith("~/"):
            return str(Path(self.home, text[2:]))
        joined = Path(self.base, text)
        parts: list[str] = []
        for part in joined.parts:
            # Not resolve(): a symbolic link may lead elsewhere on another node.
            if part == ".." and parts[1:]:
                parts.pop()
            elif part != "..":
                parts.append(part)
        return str(Path(*parts))

    def program(self, text: str) -> str:
        """`text` made absolute if there is a slash in it; a bare name is looked up by the system."""
        return self.absolute(text) if "/" in text else text

    def if_path(self, text: str) -> str:
        """`text` made absolute if it is written as a path (`./`, `../`, `/`, `~`), else as it is."""
        return self.absolute(text) if text and _PATH.fullmatch(text) else text


@dataclass(slots=True)
class Draft:
    """A topology file as far as it could be read: what is right of it, and every finding so far.

    `topology` is None when anything was wrong; `pools` holds the pools that are right by themselves,
    so that they can be looked into further and all findings be told at once. `unset` are the findings
    about environment variables: the topology is whole but for them, with placeholders in their stead.
    """

    source: Source
    folder: Folder
    state_home: Path
    scope: Scope
    topology: Topology | None = None
    pools: dict[str, Pool] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    unset: list[Problem] = field(default_factory=list)


def draft(path: Path, overrides: Sequence[str] = (), environ: Mapping[str, str] | None = None) -> Draft:
    """The file at `path` with `overrides` (`a.b=c`) applied; nothing is raised for what is wrong in it.

    `environ` is what `${env:NAME}`, `~` and `$XDG_STATE_HOME` are looked up in.
    """
    environ = {} if environ is None else environ
    source = read(path)
    home = Path(environ.get("HOME") or "/")
    xdg = Path(environ.get("XDG_STATE_HOME") or "")
    found = Draft(
        source=source,
        folder=Folder(path.absolute().parent, home),
        state_home=xdg if xdg.is_absolute() else home / ".local" / "state",
        scope=Scope(environ, placeholders=True),
    )
    unreadable = not source.data and bool(source.problems)
    for override in overrides:
        _override(source, override)
    found.problems = source.problems
    if not unreadable:
        _validate(found)
    return found


def load(path: Path, overrides: Sequence[str] = (), environ: Mapping[str, str] | None = None) -> Topology:
    """The topology at `path` in its typed form. Raises TopologyError with every finding about its form."""
    found = draft(path, overrides, environ)
    if found.topology is None or found.unset:
        raise TopologyError([*found.problems, *found.unset])
    return found.topology


def _validate(found: Draft) -> None:
    source, schema = found.source, json_schema(Topology)
    data = {k: v for k, v in source.data.items() if not k.startswith(EXTENSION)}
    try:
        topology = Topology.model_validate(data, context=found.scope)
        found.pools = dict(topology.pools)
    except ValidationError as error:
        topology = None
        found.problems += translate(error, source, schema)
        found.pools = _sound_pools(data, found.scope)
    for place, text in _texts(data, ()):
        if interpolates_at(schema, place):
            for name in dict.fromkeys(REFERENCE.findall(text)):
                if why := unset(name, found.scope):
                    found.unset.append(source.problem(place, why, hint=f"export {name}=..."))
        elif REFERENCE.search(text):
            message = "${env:...} is filled in for secrets and env alone"
            found.problems.append(source.problem(place, message, hint="use --set for anything else"))
    found.problems = _without_strays(source, found.problems)
    if not found.problems:
        found.topology = topology


def _without_strays(source: Source, problems: list[Problem]) -> list[Problem]:
    """One finding about a pool that only `--set` speaks of, instead of all that it lacks."""
    pools = source.data.get("pools")
    names = list(pools) if isinstance(pools, dict) else []
    # `--set pools.X.instances=4` makes X where there is none, so the place is longer than X's own.
    strays = {n: w for n in names if (w := source.overridden.get(("pools", n), "")).count(".") > 1}
    kept = list(problems)
    for name, written in strays.items():
        lacks = [
            p for p in kept if p.message == "is required" and (p.field or "").startswith(f"pools.{name}.")
        ]
        if lacks:
            hint = close_to(name, [n for n in names if n not in strays])
            message = f"there is no pool {name!r} in the file"
            kept = [p for p in kept if p not in lacks]
            kept.append(Problem(message, file=f"--set {written}", hint=hint))
    return kept


def _sound_pools(data: Mapping[str, Any], scope: Scope) -> dict[str, Pool]:
    raw = data.get("pools")
    sound = {}
    for name, pool in raw.items() if isinstance(raw, dict) else ():
        try:
            sound[name] = Pool.model_validate(pool, context=scope)
        except ValidationError:
            continue
    return sound


def _texts(value: Any, place: Place) -> Iterator[tuple[Place, str]]:
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _texts(item, (*place, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _texts(item, (*place, index))


def _override(source: Source, override: str) -> None:
    """Apply one `a.b=c` to the data; a finding if it does not fit."""

    dotted, equals, text = override.partition("=")

    def refuse(message: str, hint: str | None = None) -> None:
        source.problems.append(Problem(message, file=f"--set {dotted or '=...'}", hint=hint))

    steps = dotted.strip().split(".")
    if not equals or not all(steps):
        return refuse("is not of the form a.b=value")
    try:
        value = parse_value(text)
    except ValueError as error:
        return refuse(f"the value {error}", hint="quote it for YAML and for the shell")
    at: Any = source.data
    place: Place = ()
    for step in steps[:-1]:
        key = _key(at, step)
        if key is None:
            return refuse(_misfit(at, place, step))
        place = (*place, key)
        if isinstance(at, dict) and at.get(str(key)) is None:
            at[str(key)] = {}
            source.overridden[place] = dotted
        at = at[key]
    key = _key(at, steps[-1], may_append=True)
    if key is None:
        return refuse(_misfit(at, place, steps[-1]))
    if isinstance(at, list) and key == len(at):
        at.append(value)
    else:
        at[key] = value
    source.overridden[(*place, key)] = dotted
    return None


def _key(at: Any, step: str, may_append: bool = False) -> str | int | None:
    if isinstance(at, dict):
        return step
    if isinstance(at, list) and step.isdecimal() and int(step) < len(at) + may_append:
        return int(step)
    return None


def _misfit(at: Any, place: Place, step: str) -> str:
    where = ".".join(map(str, place)) or "the file"
    if isinstance(at, list):
        return f"{where} is a list of {len(at)}: {step!r} is not one of its indices"
    return f"{where} has no settings below it: it is {at!r}"
