"""A program for an engine's own environment: prints as JSON the flags and variables that it knows.

It is run by that environment's interpreter and imports nothing of pdctl's. Its one argument is a recipe as
JSON (`capabilities.Recipe`); the answer is the last line of its output.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

SOURCES = {".py", ".so", ".rs"}
"""Files that are searched for the names of variables: some are read in passing, and declared nowhere."""


def main(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """What the recipe's engine knows. Raises ImportError or AttributeError where the recipe does not fit."""
    parser_class = _named(recipe["parser_class"]) if recipe["parser_class"] else argparse.ArgumentParser
    parser = parser_class()
    made = _named(recipe["parser"])(parser)
    variables: dict[str, Any] = {name: {} for name in sorted(set(_mentioned(recipe["scan"])))}
    variables |= dict(_declared(_named(recipe["variables"])))
    replaced = _named(recipe["replaced"]) if recipe["replaced"] else {}
    return {
        "version": _version(recipe["distributions"]),
        "flags": dict(sorted(_flags(made if isinstance(made, argparse.ArgumentParser) else parser))),
        "variables": dict(sorted(variables.items())),
        "replaced": {name: _instead(how) for name, how in sorted(replaced.items())},
    }


def _named(reference: str) -> Any:
    module, _, path = reference.partition(":")
    found: Any = importlib.import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    return found


def _version(distributions: list[str]) -> str:
    for name in distributions:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    raise ImportError(f"no {' or '.join(distributions)} is installed here")


def _flags(parser: argparse.ArgumentParser) -> Iterator[tuple[str, dict[str, Any]]]:
    for action in parser._actions:
        names = [word[2:].replace("_", "-") for word in action.option_strings if word.startswith("--")]
        names = [name for name in dict.fromkeys(names) if not name.startswith("no-")] or names
        if names and names[0] != "help":
            yield names[0], _flag(action, names[1:], getattr(parser, "_deprecated", ()))


def _flag(action: argparse.Action, others: list[str], deprecated: Any) -> dict[str, Any]:
    told: dict[str, Any] = {"kind": _kind(action)}
    if action.nargs == "?":
        told["bare"] = True
    if action.choices is not None:
        ordered = isinstance(action.choices, list | tuple | dict)
        told["choices"] = [str(one) for one in (action.choices if ordered else sorted(action.choices))]
    if _tellable(action.default) and action.default is not argparse.SUPPRESS:
        told["default"] = action.default
    if others:
        told["also"] = others
    kind = type(action).__name__
    if kind.startswith("Deprecated") or action in deprecated:
        new = getattr(action, "new_flag", None) or getattr(action, "error_message", None)
        told["deprecated"] = str(new or "")
        told["gone"] = getattr(action, "error_message", None) is not None
    return told


def _kind(action: argparse.Action) -> str:
    """`switch`, `list`, `int`, `float`, `json` or `text`; the last is also said where it cannot be told."""
    if action.nargs == 0:
        return "switch"
    if action.nargs in ("*", "+") or isinstance(action.nargs, int):
        return "list"
    if action.type in (int, float):
        return "int" if action.type is int else "float"
    return "json" if "json" in str(getattr(action.type, "__qualname__", "")).lower() else "text"


def _declared(known: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Variables that the engine declares: a mapping to what reads each, or fields of an object."""
    if isinstance(known, Mapping):
        for name, read in known.items():
            try:
                yield name, _with_default(read())
            except Exception:  # noqa: BLE001 - reading one may ask for a device that is not here
                yield name, {}
        return
    for kind in type(known).__mro__:
        for name, field in vars(kind).items():
            if hasattr(field, "default") and name.isupper():
                yield name, _with_default(field.default)


def _with_default(value: Any) -> dict[str, Any]:
    return {"default": value} if _tellable(value) else {}


def _tellable(value: Any) -> bool:
    """Whether a default is plain data, and nothing of the machine that it was read on."""
    if isinstance(value, list):
        return all(_tellable(item) for item in value)
    if isinstance(value, str):
        return len(value) < 100 and not value.startswith(("/", "~")) and os.path.expanduser("~") not in value
    return value is None or isinstance(value, bool | int | float)


def _mentioned(scan: list[list[str]]) -> Iterator[str]:
    """Every name of a pattern that occurs in the files of a package, by (package, pattern)."""
    for package, pattern in scan:
        name = re.compile(rf"(?<![A-Za-z0-9_]){pattern}[A-Z0-9_]*[A-Z0-9](?![A-Za-z0-9_])".encode())
        found = importlib.util.find_spec(package)
        for folder in (found.submodule_search_locations or ()) if found else ():
            for path in Path(folder).rglob("*"):
                if path.suffix in SOURCES and path.is_file():
                    yield from (match.decode() for match in name.findall(path.read_bytes()))


def _instead(how: Any) -> str:
    parts = [getattr(how, "replacement", None), getattr(how, "note", None)]
    return " ".join(str(part) for part in parts if part)


if __name__ == "__main__":
    answer = json.dumps(main(json.loads(sys.argv[1])))
    print("\n" + answer, flush=True)
    os._exit(0)  # engines start threads on import, which end in noise or not at all
