"""SLO classes and tenants on their way from the topology through the plan to what the core works with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from orchestrator.core.classes import ClassRules, LongPrompts, PriorityRange, TenantClasses
from orchestrator.core.slo import Priority, SloClass, Target, Unattainable
from orchestrator.core.tenants import Rate, TenantLimits
from orchestrator.topology import slo_schema
from orchestrator.topology.plan import RouterPlan, Timeouts
from orchestrator.topology.schema import Topology

SHIPPED: Mapping[str, slo_schema.SloClass] = {
    name: slo_schema.SloClass.model_validate(written)
    for name, written in {
        # A person waits within a conversation. MLPerf's interactive scenario of Llama 2 70B asks for 450 ms
        # and 40 ms at P99; a prompt of any length gets its own prefill once on top.
        "realtime": {
            "priority": "realtime",
            "ttft": {"p99": "500ms", "per_cold_prefill": 1},
            "itl": {"p99": "40ms"},
        },
        # A person reads along, at 5 to 8 tokens a second; 25 a second are as many as anyone skims. The first
        # token as the study of scheduling policies bounds it, which a prompt of any length can meet.
        "interactive": {
            "priority": "interactive",
            "ttft": {"p99": "1.5s", "per_cold_prefill": 2},
            "tpot": {"p99": "40ms"},
        },
        # Nobody looks on. Within the quarter of an hour for which a connection is kept open.
        "batch": {"priority": "batch", "e2e": {"p95": "15m"}, "unattainable": "queue"},
    }.items()
}
"""The classes that every topology has; docs/slo.md explains their numbers."""

SHIPPED_TIERS: Mapping[str, str] = {"flex": "batch", "priority": "realtime"}
"""SLO class by `service_tier`, for a topology that writes `slo_classes`; `auto`, `default` and `scale` are
what a client gets anyway."""


def resolved(topology: Topology) -> dict[str, slo_schema.SloClass]:
    """Every class of the topology: those shipped, with what is written over them, and its own."""
    classes = dict(SHIPPED)
    for name, written in topology.slo_classes.items():
        shipped = SHIPPED.get(name)
        if shipped is not None:
            update = {field: getattr(written, field) for field in written.model_fields_set}
            written = shipped.model_copy(update=update)
        classes[name] = written
    return classes


def tiers(topology: Topology) -> dict[str, str]:
    """SLO class by `service_tier`: as written, else the shipped one where classes are written."""
    given = topology.scheduling.service_tiers
    if given is not None:
        return dict(given)
    return dict(SHIPPED_TIERS) if "slo_classes" in topology.model_fields_set else {}


def class_data(slo: slo_schema.SloClass, queue_s: float, continuation: bool = False) -> dict[str, Any]:
    """A class as plain data of the plan. `queue_s` is the longest that anything may wait, `continuation` the
    router's own setting."""
    targets = {name: getattr(slo, name) for name in ("ttft", "itl", "tpot", "e2e")}
    stages = {} if slo.timeouts is None else slo.timeouts.model_dump(exclude_none=True)
    timeouts = {"timeouts": {f"{stage}_s": limit_s for stage, limit_s in stages.items()}} if stages else {}
    return {
        **timeouts,
        **{name: None if target is None else asdict(target) for name, target in targets.items()},
        "priority": slo.priority,
        "unattainable": slo.unattainable,
        "pools": None if slo.pools is None else sorted(set(slo.pools)),
        "reserve": slo.reserve,
        "max_wait_s": queue_s if slo.max_wait is None else slo.max_wait,
        "continuation": continuation if slo.continuation is None else slo.continuation,
        **({} if slo.slices is None else {"slices_s": slo.slices}),
        "long_prompts": None if slo.long_prompts is None else slo.long_prompts.model_dump(),
    }


def tenant_data(tenant: slo_schema.Tenant) -> dict[str, Any]:
    """A tenant as plain data of the plan, its keys in the clear."""
    rate = tenant.rate
    return {
        "keys": [key.get_secret_value() for key in tenant.keys],
        "slo_class": tenant.slo_class,
        "classes": None if tenant.classes is None else list(dict.fromkeys(tenant.classes)),
        "max_inflight": tenant.max_inflight,
        "max_queued": tenant.max_queued,
        "rate": None
        if rate is None
        else {"per_second": rate.per_second, "burst": rate.burst or max(1, round(rate.per_second))},
    }


def slo_class(name: str, data: Mapping[str, Any]) -> SloClass:
    """The class of a plan as the core takes it; what `data` leaves out is as the core has it."""
    given: dict[str, Any] = {}
    for time in ("ttft", "itl", "tpot", "e2e"):
        if data.get(time) is not None:
            given[time] = Target(**data[time])
    if data.get("pools") is not None:
        given["pools"] = frozenset(data["pools"])
    if "priority" in data:
        given["priority"] = Priority[data["priority"].upper()]
    if "unattainable" in data:
        given["unattainable"] = Unattainable(data["unattainable"])
    given |= {
        field: data[field] for field in ("reserve", "max_wait_s", "continuation", "slices_s") if field in data
    }
    return SloClass(name, **given)


def stage_timeouts(router: RouterPlan) -> dict[str, Timeouts]:
    """The deadlines of the classes that have some of their own."""
    return {
        name: replace(router.timeouts, **data["timeouts"])
        for name, data in router.slo_classes.items()
        if data.get("timeouts")
    }


def slo_classes(router: RouterPlan) -> dict[str, SloClass]:
    """Every class of a plan by name."""
    return {name: slo_class(name, data) for name, data in router.slo_classes.items()}


def class_rules(router: RouterPlan) -> ClassRules:
    """What chooses the class of each request."""
    long_prompts = {
        name: LongPrompts(**data["long_prompts"])
        for name, data in router.slo_classes.items()
        if data.get("long_prompts")
    }
    tenants = {
        name: TenantClasses(
            default=tenant.get("slo_class"),
            allowed=tuple(tenant["classes"]) if tenant.get("classes") else None,
        )
        for name, tenant in router.tenants.items()
    }
    return ClassRules(
        slo_classes(router),
        default=router.default_class,
        tiers=router.service_tiers,
        priorities=tuple(_priorities(data) for data in router.priorities),
        tenants=tenants,
        long_prompts=long_prompts,
    )


def _priorities(data: Mapping[str, Any]) -> PriorityRange:
    bounds = {name: data[name] for name in ("at_least", "at_most") if data.get(name) is not None}
    return PriorityRange(data["use"], **bounds)


def tenant_limits(router: RouterPlan) -> dict[str, TenantLimits]:
    """What each tenant of a plan may have at once and send."""
    return {
        name: TenantLimits(
            max_inflight=tenant.get("max_inflight"),
            max_queued=tenant.get("max_queued"),
            rate=Rate(**tenant["rate"]) if tenant.get("rate") else None,
        )
        for name, tenant in router.tenants.items()
    }
