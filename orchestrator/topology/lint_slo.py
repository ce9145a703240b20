"""What is wrong between promises, tenants, pools and time-outs, each of which is right by itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from orchestrator.core.slo import NO_PROMISE, Target
from orchestrator.core.types import Role
from orchestrator.errors import Problem
from orchestrator.topology import rules
from orchestrator.topology.inputs import Inputs, Part
from orchestrator.topology.problems import close_to
from orchestrator.topology.schema import Topology
from orchestrator.topology.slo import resolved
from orchestrator.topology.slo_schema import SloClass
from orchestrator.topology.source import Place


def classes(inputs: Inputs) -> Iterator[Problem]:
    """SLO classes that are named exist, and one that stands in for another is the last of its kind."""
    known = resolved(inputs.topology)
    for place, name in _named(inputs.topology):
        if name not in known:
            message = f"there is no SLO class {name!r}"
            yield inputs.source.problem(place, message, hint=close_to(name, known), rule=rules.CLASSES)
    if NO_PROMISE.name in inputs.topology.slo_classes:
        message = f"{NO_PROMISE.name!r} is what requests without a class are called; choose another name"
        yield inputs.source.problem(("slo_classes", NO_PROMISE.name), message, rule=rules.CLASSES)
    for name, slo in known.items():
        use = None if slo.long_prompts is None else known.get(slo.long_prompts.use)
        if use is not None and use.long_prompts is not None:
            place = ("slo_classes", name, "long_prompts", "use")
            message = "has `long_prompts` of its own, which are not looked at again"
            yield inputs.source.problem(place, message, rule=rules.CLASSES)


def _named(topology: Topology) -> Iterator[tuple[Place, str]]:
    """Every place that names a class."""
    scheduling = topology.scheduling
    if scheduling.default_class is not None:
        yield ("scheduling", "default_class"), scheduling.default_class
    for tier, name in (scheduling.service_tiers or {}).items():
        yield ("scheduling", "service_tiers", tier), name
    for index, span in enumerate(scheduling.priorities):
        yield ("scheduling", "priorities", index, "use"), span.use
    for owner, tenant in topology.tenants.items():
        if tenant.slo_class is not None:
            yield ("tenants", owner, "slo_class"), tenant.slo_class
        for index, name in enumerate(tenant.classes or ()):
            yield ("tenants", owner, "classes", index), name
    for owner, slo in topology.slo_classes.items():
        if slo.long_prompts is not None:
            yield ("slo_classes", owner, "long_prompts", "use"), slo.long_prompts.use


def class_pools(inputs: Inputs) -> Iterator[Problem]:
    """The pools of a class exist, and can serve a request between them."""
    parts = {part.name: part for part in inputs.parts}
    for name, slo in inputs.topology.slo_classes.items():
        missing = False
        for index, pool in enumerate(slo.pools or ()):
            place: Place = ("slo_classes", name, "pools", index)
            if pool not in parts:
                missing = True
                hint = close_to(pool, parts)
                yield inputs.source.problem(
                    place, f"there is no pool {pool!r}", hint=hint, rule=rules.CLASS_POOLS
                )
        if slo.pools is not None and not missing:
            why = _cannot_serve([parts[pool] for pool in slo.pools])
            if why is not None:
                place = ("slo_classes", name, "pools")
                yield inputs.source.problem(place, why, rule=rules.CLASS_POOLS)


def _cannot_serve(parts: Sequence[Part]) -> str | None:
    roles = {part.pool.role for part in parts if part.pool.size}
    alone = any(part.pool.size and part.pool.may_prefill for part in parts)
    if Role.UNIFIED in roles or alone or {Role.PREFILL, Role.DECODE} <= roles:
        return None
    if Role.PREFILL in roles:
        return "these compute prompts, but none of them decodes; add a decode pool"
    if Role.DECODE in roles:
        return "these decode, but none of them computes prompts; add a prefill pool"
    return "no instance of these serves requests; name prefill and decode pools, or a unified one"


def promises(inputs: Inputs) -> Iterator[Problem]:
    """Targets leave each other room, and reserved shares leave some for those without."""
    known = resolved(inputs.topology)
    for name, slo in known.items():
        if slo.ttft is not None and slo.e2e is not None and not _leaves_room(slo.ttft, slo.e2e):
            yield _about(inputs, name, "e2e", "leaves no time after the first token: `ttft` is as long")
    reserved = {name: slo.reserve for name, slo in known.items() if slo.reserve}
    if sum(reserved.values()) >= 1:
        shares = " + ".join(f"{share:g} ({name})" for name, share in reserved.items())
        last = list(reserved)[-1]
        yield _about(inputs, last, "reserve", f"{shares} must be less than 1 together")


def _leaves_room(ttft: Target, e2e: Target) -> bool:
    return e2e.seconds > ttft.seconds or e2e.per_cold_prefill > ttft.per_cold_prefill


def waits(inputs: Inputs) -> Iterator[Problem]:
    """No class waits longer than the router lets anything wait, for an endpoint or for an engine."""
    queue_s = inputs.topology.router.timeouts.queue_s
    classes: Mapping[str, SloClass] = resolved(inputs.topology)
    for name, slo in classes.items():
        if slo.max_wait is not None and slo.max_wait > queue_s:
            message = f"is never reached: router.timeouts.queue is {queue_s:g} s"
            yield _about(inputs, name, "max_wait", message)
        # Engines that wait for each other have been told how long the router does.
        stages = {} if slo.timeouts is None else slo.timeouts.model_dump(exclude_none=True)
        for stage, limit_s in stages.items():
            most_s = getattr(inputs.topology.router.timeouts, stage)
            if limit_s > most_s:
                message = f"is over router.timeouts.{stage}, which is {most_s:g} s"
                yield _about(inputs, name, f"timeouts.{stage}", message)


def _about(inputs: Inputs, name: str, field: str, message: str) -> Problem:
    return inputs.source.problem(("slo_classes", name, field), message, rule=rules.PROMISES)
