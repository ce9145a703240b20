"""The words that any launched process begins with, and the marking of those that hold a secret."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from orchestrator.engines.base import Word
from orchestrator.topology.inputs import Inputs
from orchestrator.topology.load import Folder
from orchestrator.topology.source import Place
from orchestrator.topology.strict import Runtime

PDCTL = "pdctl"
"""Origin of the words that are pdctl's own."""

SHORT_SECRET = 8
"""Characters below which a secret may well be part of an innocent word."""


def run_by(inputs: Inputs, runtime: Runtime | None, place: Place, words: Sequence[Word]) -> tuple[Word, ...]:
    """`words` behind the Python that runs them: the runtime's at `place`, else pdctl's own."""
    before = runtime_words(runtime, inputs.folder)
    if before:
        origin = f"topology {inputs.source.origin((*place, 'runtime'))}"
        return (*(Word(word, origin) for word in before), *words)
    # -P keeps a package of ours from being shadowed by a folder of its name where pdctl is started.
    safe_path = () if words and words[0].text == "-P" else (Word("-P", PDCTL),)
    return (Word(inputs.python, PDCTL), *safe_path, *words)


def runtime_words(runtime: Runtime | None, folder: Folder) -> list[str]:
    """What runs Python in a runtime; empty where that is pdctl's own interpreter."""
    if runtime is not None and runtime.python is not None:
        return [folder.program(runtime.python)]
    if runtime is not None and runtime.command is not None:
        return [folder.if_path(runtime.command[0]), *runtime.command[1:], "python3"]
    return []


def marked(words: tuple[Word, ...], secrets: frozenset[str]) -> tuple[Word, ...]:
    """`words`, those marked secret that a secret is in, wherever it came through."""
    return tuple(replace(word, secret=True) if _holds_secret(word.text, secrets) else word for word in words)


def _holds_secret(text: str, secrets: frozenset[str]) -> bool:
    """Whether a secret is in `text`; one so short that it is part of ordinary words must be all of it."""
    return text in secrets or any(s in text for s in secrets if len(s) >= SHORT_SECRET)


def marked_env(env: Mapping[str, Word], secrets: frozenset[str]) -> dict[str, Word]:
    """`env` in the order of its names, its values marked as `marked` does."""
    names = sorted(env)
    return dict(zip(names, marked(tuple(env[name] for name in names), secrets), strict=True))
