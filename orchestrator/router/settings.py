"""What the data path is configured with, worked out of the plan once per reload."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.core.classes import NOTHING, Chosen, ClassRules
from orchestrator.core.tenants import TenantLimits
from orchestrator.router.clients import Clients
from orchestrator.topology.plan import Limits, Plan, Timeouts
from orchestrator.topology.slo import class_rules, stage_timeouts, tenant_limits
from orchestrator.wire.exchange import Exchange
from orchestrator.wire.limits import WireLimits

CLASS_HEADER = b"x-pdctl-class"
"""The client's word for its SLO class."""

EXPLAIN_HEADER = b"x-pdctl-explain"
"""`1`: the answer is to tell of its decision."""

NEVER_PASSED = frozenset((b"authorization", b"x-api-key", b"host", b"content-length", b"transfer-encoding"))
"""Headers that no allow-list lets through: the client's key is not the engine's, the framing is our own."""


@dataclass(frozen=True, slots=True)
class Settings:
    """See `orchestrator.topology.plan.RouterPlan`. `passed` and `seen` are lower-case header names: those
    that engines get, and those that policies may read. `classes` chooses each request's SLO class (they are
    in `classes.classes`), `tenants` bounds those that have limits. `headers`: see `plan.Decisions`."""

    clients: Clients
    limits: Limits
    timeouts: Timeouts
    engine_key: str | None
    seed: int
    passed: frozenset[bytes]
    seen: frozenset[bytes]
    classes: ClassRules
    tenants: Mapping[str, TenantLimits]
    headers: str = "on_request"
    continuation: bool = False
    class_timeouts: Mapping[str, Timeouts] = field(default_factory=dict)
    """Of SLO classes that have some of their own."""

    @classmethod
    def of(cls, plan: Plan, policy_headers: Collection[str] = ()) -> Settings:
        """The settings of a plan that has a router. `policy_headers` are what its policies read."""
        router = plan.router
        if router is None:
            raise ValueError(f"the plan {plan.name!r} has no router")
        passed = frozenset(name.lower().encode() for name in router.pass_headers) - NEVER_PASSED
        return cls(
            clients=Clients(router.credentials.client_keys, router.tenants),
            limits=router.limits,
            timeouts=router.timeouts,
            engine_key=router.credentials.engine_key,
            seed=plan.seed,
            passed=passed,
            seen=passed | frozenset(name.lower().encode() for name in policy_headers),
            classes=class_rules(router),
            tenants=tenant_limits(router),
            headers=router.decisions.headers,
            continuation=router.continuation,
            class_timeouts=stage_timeouts(router),
        )

    def explains(self, exchange: Exchange) -> bool:
        """Whether the answer to a request tells of its decision."""
        if self.headers == "on_request":
            return exchange.header(EXPLAIN_HEADER) == b"1"
        return self.headers == "always"

    @property
    def shortest_s(self) -> float:
        """The shortest deadline of any stage of any class, a hang included."""
        stages = [
            (t.prefill_s, t.first_token_s, t.inter_token_s, t.total_s, t.hang_s)
            for t in (self.timeouts, *self.class_timeouts.values())
        ]
        return min(map(min, stages))

    def continues(self, slo_class: str | None) -> bool:
        """Whether a stream of this class goes on elsewhere if its engine fails in the middle."""
        slo = None if slo_class is None else self.classes.classes.get(slo_class)
        return self.continuation if slo is None else slo.continuation

    def slo_class(
        self, exchange: Exchange, fields: Mapping[str, Any], tenant: str | None, prompt_tokens: int
    ) -> Chosen:
        """The class of a request; `fields` are its body's. Raises BadRequest."""
        named, rules = exchange.header(CLASS_HEADER), self.classes
        if named is None and rules.idle:
            return NOTHING
        return rules.choose(
            None if named is None else named.decode("latin-1").strip(), fields, tenant, prompt_tokens
        )


def wire_limits(limits: Limits, max_connections: int | None = None) -> WireLimits:
    """The limits that the HTTP server enforces."""
    return WireLimits(
        max_body_bytes=limits.max_body_bytes,
        max_header_bytes=limits.max_header_bytes,
        header_timeout_s=limits.header_timeout_s,
        body_timeout_s=limits.body_timeout_s,
        max_connections=max_connections,
    )
