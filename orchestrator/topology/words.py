"""The words that any launched process begins with, and the marking of those that hold a secret."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from orchestrator.engines.base import Word
from orchestrator.topology.inputs import Inputs
from orchestrator.topology.load import Folder
from orchestrator.topology.source import Place
from orchestrator.topology.strict import Runtime

PDCTL = "pdctl"
"""Origin of the words that are pdctl's own."""


def interpreter(inputs: Inputs, runtime: Runtime | None, place: Place) -> tuple[Word, ...]:
    """The Python that runs what follows: the runtime's at `place`, else pdctl's own."""
    words = runtime_words(runtime, inputs.folder)
    if words:
        origin = f"topology {inputs.source.origin((*place, 'runtime'))}"
        return tuple(Word(word, origin) for word in words)
    # -P keeps a package of ours from being shadowed by a folder of its name where pdctl is started.
    return (Word(inputs.python, PDCTL), Word("-P", PDCTL))


def runtime_words(runtime: Runtime | None, folder: Folder) -> list[str]:
    """What runs Python in a runtime; empty where that is pdctl's own interpreter."""
    if runtime is not None and runtime.python is not None:
        return [folder.program(runtime.python)]
    if runtime is not None and runtime.command is not None:
        return [folder.if_path(runtime.command[0]), *runtime.command[1:], "python3"]
    return []


def marked(words: tuple[Word, ...], secrets: frozenset[str]) -> tuple[Word, ...]:
    """`words`, those marked secret that a secret is in, wherever it came through."""
    return tuple(replace(w, secret=True) if any(s in w.text for s in secrets) else w for w in words)


def marked_env(env: Mapping[str, Word], secrets: frozenset[str]) -> dict[str, Word]:
    """`env` in the order of its names, its values marked as `marked` does."""
    names = sorted(env)
    return dict(zip(names, marked(tuple(env[name] for name in names), secrets), strict=True))
