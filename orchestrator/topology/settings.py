"""Flags and variables with their origins, and how a later layer goes over an earlier one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from orchestrator.engines.base import Setting
from orchestrator.engines.flags import as_object
from orchestrator.topology.values import flag_name

Settings = Mapping[str, Setting]


def as_settings(
    values: Mapping[str, Any], origin: Callable[[str], str], *, flags: bool
) -> dict[str, Setting]:
    """`values` with an origin each (asked by the name as written); flags under their plain names."""
    return {flag_name(k) if flags else k: Setting(v, origin(k)) for k, v in values.items()}


def layered(*layers: Settings) -> dict[str, Setting]:
    """The layers merged, later ones over earlier ones; mappings (JSON text too) key by key.

    A None stays, so that it can also take away what an adapter would set by itself.
    """
    merged: dict[str, Setting] = {}
    for layer in layers:
        for name, setting in layer.items():
            below = merged.get(name)
            old, new = (as_object(below.value) if below else None), as_object(setting.value)
            if below is not None and old is not None and new is not None:
                merged[name] = Setting(_deep(old, new), f"{below.origin} + {setting.origin}")
            else:
                merged[name] = setting
    return merged


def _deep(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = _deep(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged
