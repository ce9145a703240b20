"""Tables of flags and variables that a topology brings itself, read from the files that its pools name."""

from __future__ import annotations

from pathlib import Path

from orchestrator.engines.capabilities import Capabilities, parse
from orchestrator.errors import Problem
from orchestrator.topology.load import Draft


def tables(found: Draft) -> tuple[dict[str, Capabilities], list[Problem]]:
    """The table of each pool that names one, and what is wrong with those that cannot be read."""
    read: dict[str, Capabilities] = {}
    problems: list[Problem] = []
    for name, pool in found.pools.items():
        if pool.runtime is None or pool.runtime.table is None:
            continue
        path = Path(found.folder.absolute(pool.runtime.table))
        try:
            read[name] = parse(path.read_bytes())
        except (OSError, ValueError) as error:
            why = error.strerror or str(error) if isinstance(error, OSError) else str(error)
            place = ("pools", name, "runtime", "table")
            hint = "`pdctl engines inspect ENGINE --write FILE` makes one"
            problems.append(found.source.problem(place, f"{path}: {why}", hint=hint))
    return read, problems
