"""What a model's folder says of the model, as far as requests must be held against it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CONFIG = "config.json"
"""The description that every published model has beside its weights."""

MAX_BYTES = 16 * 1024 * 1024
"""No description is larger; whatever is, is something else."""


def config(folder: Path) -> dict[str, Any] | None:
    """The `config.json` of the model in `folder`; None where there is none that can be read."""
    try:
        with (folder / CONFIG).open("rb") as file:
            told = json.loads(file.read(MAX_BYTES))
    except (OSError, ValueError):
        return None
    return told if isinstance(told, dict) else None


def vocab_size(folder: Path) -> int | None:
    """Tokens in the vocabulary of the model in `folder`; None if its `config.json` does not tell.

    A model that takes images or sound too has the figure in its `text_config`, which engines look at first.
    """
    told = config(folder)
    if told is None:
        return None
    inner = told.get("text_config")
    sizes = [inner.get("vocab_size")] if isinstance(inner, dict) else []
    sizes.append(told.get("vocab_size"))
    return next((size for size in sizes if type(size) is int and size > 0), None)
