"""From the `engine:` of a pool to its adapter, checked to be one before anything is asked of it."""

from __future__ import annotations

import os
from typing import cast

from orchestrator import plugins
from orchestrator.engines.base import Engine
from orchestrator.errors import PluginError, Problem

GROUP = "pdctl.engines"

_MEMBERS = tuple(name for name in (*Engine.__annotations__, *vars(Engine)) if not name.startswith("_"))


def load_adapter(reference: str, base_dir: str | os.PathLike[str]) -> Engine:
    """The adapter that `reference` names (a registered name, `./file.py:Class` or `module:Class`).

    Raises PluginError when there is none, when it cannot be made, or when it lacks part of the contract.
    """
    found = plugins.resolve(GROUP, reference, base_dir)
    if isinstance(found, type):
        try:
            found = found()
        except Exception as error:  # a plug-in's constructor may raise anything; its author reads this
            message = f"{reference!r} does not start: {type(error).__name__}: {error}"
            raise PluginError([Problem(message)]) from error
    missing = [name for name in _MEMBERS if not hasattr(found, name)]
    if missing:
        message = f"{reference!r} is not an engine adapter: it has no {', '.join(missing)}"
        raise PluginError([Problem(message, hint="the contract is orchestrator/engines/base.py")])
    return cast(Engine, found)
