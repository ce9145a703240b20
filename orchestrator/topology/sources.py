"""The files that a plan was made from, each with a hash of what was in it: what a lockfile remembers."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from orchestrator.topology.load import Draft
from orchestrator.topology.model import CONFIG

_PLUGIN = re.compile(r"(?P<file>(?:\.{1,2}|~)?/.+\.py):[A-Za-z_.]+")
"""A reference to a class in a file, wherever a topology has one."""


def sources(found: Draft, topology_file: Path, profiles: Iterable[str]) -> dict[str, str]:
    """SHA-256 by path: the topology, the launch `profiles` that were read, plug-in files, what nodes are said
    to have, and the model's description where that is on this machine. What cannot be read is left out."""
    files = [topology_file.absolute(), *map(Path, profiles)]
    files += [
        Path(found.folder.absolute(f["file"])) for f in map(_PLUGIN.fullmatch, _texts(found.source.data)) if f
    ]
    if found.topology is not None:
        files += [Path(found.folder.absolute(n.fabric)) for n in found.topology.hosts if n.fabric is not None]
        model = Path(found.folder.if_path(found.topology.model.path or ""))
        files += [model / CONFIG] if model.is_absolute() else []
    hashes: dict[str, str] = {}
    for file in dict.fromkeys(files):
        with suppress(OSError):
            hashes[str(file)] = hashlib.sha256(file.read_bytes()).hexdigest()
    return hashes


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)
