"""What one version of an engine knows: flags and variables, their defaults and choices, what went away."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

import orjson

FOLDER = "versions"
"""Beside an adapter: one table for each version that was inspected, `VERSION.json`."""

REPLACED = "replaced.json"
"""Beside the tables, by hand: what earlier versions had, and what came instead."""

_RELEASE = re.compile(r"\d+(?:\.\d+)*")


@dataclass(frozen=True, slots=True)
class Recipe:
    """How an installed engine is asked what it knows; references are `module:name`.

    `parser` is called with an argument parser of `parser_class` and adds the engine's flags to it or gives
    another one back. `variables` is a mapping or an object whose fields are the variables that the engine
    declares, `replaced` a mapping of variables that went away. `scan` are (package, pattern) of names that
    occur in the package's files, for variables that are declared nowhere.
    """

    distributions: tuple[str, ...]
    parser: str
    variables: str
    scan: tuple[tuple[str, str], ...]
    parser_class: str | None = None
    replaced: str | None = None


@dataclass(frozen=True, slots=True)
class Flag:
    """`kind` is `switch`, `list`, `int`, `float`, `json` or `text`. `bare`: its value may be left out.

    `default` is None where there is none, or it depends on the machine. `deprecated` is what to use instead
    (or empty text); a `gone` flag stops the engine.
    """

    kind: str
    default: Any = None
    choices: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    bare: bool = False
    deprecated: str | None = None
    gone: bool = False


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The table of one version.

    `flags` are by their first name; `replaced` are flags (`--name`) and variables that earlier versions had,
    with what came instead.
    """

    version: str
    flags: Mapping[str, Flag]
    variables: Mapping[str, Any]
    replaced: Mapping[str, str] = field(default_factory=dict)

    def flag(self, name: str) -> Flag | None:
        """The flag called `name`, by any of its names or their `no-` forms, or the one whose JSON a dotted
        name is part of."""
        for head in (name, name.partition(".")[0]):
            for plain in (head, head.removeprefix("no-")):
                if plain in self.flags:
                    return self.flags[plain]
                for found in self.flags.values():
                    if plain in found.also:
                        return found
        return None

    def names(self) -> set[str]:
        """Every name of every flag."""
        return {name for first, found in self.flags.items() for name in (first, *found.also)}


@dataclass(frozen=True, slots=True)
class Known:
    """The table that stands for a version: its own (`exact`), or else the nearest one below it, or the lowest
    there is."""

    table: Capabilities
    exact: bool


def parse(data: bytes, replaced: Mapping[str, str] | None = None) -> Capabilities:
    """The table in `data`, as `dump` writes it. Raises ValueError for anything else."""
    told = orjson.loads(data)
    try:
        flags = {name: _flag(flag) for name, flag in told["flags"].items()}
        return Capabilities(
            version=str(told["version"]),
            flags=flags,
            variables={name: variable.get("default") for name, variable in told["variables"].items()},
            replaced={**told["replaced"], **(replaced or {})},
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"is no table of an engine's flags and variables: {error!r}") from error


def _flag(told: Mapping[str, Any]) -> Flag:
    return Flag(
        kind=told["kind"],
        default=told.get("default"),
        choices=tuple(told.get("choices", ())),
        also=tuple(told.get("also", ())),
        bare=told.get("bare", False),
        deprecated=told.get("deprecated"),
        gone=told.get("gone", False),
    )


def dump(told: Mapping[str, Any]) -> bytes:
    """What an inspection told, as a table: one flag or variable a line, so that versions can be compared."""
    sections = [f'"version": {orjson.dumps(release(str(told["version"]))).decode()}']
    for name in ("flags", "variables", "replaced"):
        lines = [
            f"  {orjson.dumps(key).decode()}: {orjson.dumps(told[name][key]).decode()}"
            for key in sorted(told[name])
        ]
        sections.append(f'"{name}": {{\n' + ",\n".join(lines) + "\n}")
    return ("{\n" + ",\n".join(sections) + "\n}\n").encode()


def release(version: str) -> str:
    """A version without what comes behind its numbers: `0.32.0+cpu` is 0.32.0."""
    found = _RELEASE.match(version)
    return found[0] if found else version


def order(version: str) -> tuple[int, ...]:
    """What versions are sorted by; 0.5 is before 0.5.1."""
    found = _RELEASE.match(version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def program() -> str:
    """What an engine's own interpreter is given to run, with a recipe; see `inspected`."""
    return (resources.files("orchestrator.engines") / "inspected.py").read_text()


@cache
def shipped(package: str) -> tuple[Capabilities, ...]:
    """The tables beside the adapter in `package`, the oldest version first."""
    folder = resources.files(package) / FOLDER
    replaced = orjson.loads((folder / REPLACED).read_bytes())
    files = [path for path in folder.iterdir() if path.name.endswith(".json") and path.name != REPLACED]
    tables = (parse(path.read_bytes()) for path in files)
    return tuple(sorted((_with(table, replaced) for table in tables), key=lambda table: order(table.version)))


def _with(table: Capabilities, replaced: Mapping[str, Mapping[str, str]]) -> Capabilities:
    """`table` with what had gone by its version, of what was written down by hand."""
    gone = dict(_gone(table, replaced))
    return Capabilities(table.version, table.flags, table.variables, {**table.replaced, **gone})


def _gone(table: Capabilities, replaced: Mapping[str, Mapping[str, str]]) -> Iterator[tuple[str, str]]:
    for name, entry in replaced.items():
        if order(entry["since"]) <= order(table.version):
            yield name, entry["use"]


def known(package: str, version: str | None) -> Known:
    """The table for a version; for an unknown one (None) the newest, taken for exact."""
    tables = shipped(package)
    if version is None:
        return Known(tables[-1], exact=True)
    below = [table for table in tables if order(table.version) <= order(version)]
    table = below[-1] if below else tables[0]
    return Known(table, exact=order(table.version) == order(version))
