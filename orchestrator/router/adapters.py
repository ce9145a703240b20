"""The engine adapters of a plan's instances, each made once."""

from __future__ import annotations

from typing import cast

from orchestrator import plugins
from orchestrator.engines.base import Engine
from orchestrator.topology.plan import Plan


def adapters(plan: Plan) -> dict[str, Engine]:
    """The adapter of each instance by name; instances of one engine and equal options share one.

    Raises PluginError for an engine that does not load.
    """
    made: dict[tuple[str, str], Engine] = {}
    for instance in plan.instances:
        key = (instance.engine, repr(instance.options))
        if key not in made:
            found = plugins.resolve("pdctl.engines", instance.engine, plan.base_dir)
            adapter = cast(Engine, found() if isinstance(found, type) else found)
            made[key] = adapter.bind(instance.options)
    return {i.name: made[i.engine, repr(i.options)] for i in plan.instances}
