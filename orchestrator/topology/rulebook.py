"""Every lint rule that there is, from all who declare some: the topology, and the engines' adapters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress

from orchestrator import plugins
from orchestrator.core.rules import Rule, by_name
from orchestrator.engines.base import Engine
from orchestrator.errors import PluginError
from orchestrator.topology import fabric_rules, rules
from orchestrator.topology.adapters import GROUP, load_adapter

OWN: tuple[tuple[Rule, ...], ...] = (rules.RULES, fabric_rules.OWN)
"""Tuples of rules that are about no engine; a module with rules of its own adds its tuple here."""


def rulebook(adapters: Iterable[Engine] = ()) -> dict[str, Rule]:
    """Every rule by name: of the topology, of the adapters that are registered, and of `adapters`.

    Raises ValueError when two that differ have one name.
    """
    speakers = (*_registered(), *adapters)
    return by_name(rule for group in (*OWN, *map(rules_of, speakers)) for rule in group)


def _registered() -> Iterator[Engine]:
    for name in plugins.known(GROUP):
        # One that does not load has no rules, and is refused where a topology uses it.
        with suppress(PluginError):
            yield load_adapter(name, ".")


def rules_of(adapter: Engine) -> tuple[Rule, ...]:
    """The rules that an adapter declares in `rules`; one that declares none may still speak by any name."""
    return tuple(getattr(adapter, "rules", ()))
