"""What the data path is configured with, worked out of the plan once per reload."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.errors import BadRequest
from orchestrator.router.clients import Clients
from orchestrator.topology.plan import Limits, Plan, Timeouts
from orchestrator.wire.exchange import Exchange
from orchestrator.wire.server import WireLimits

CLASS_HEADER = b"x-pdctl-class"
"""The client's word for its SLO class."""

NEVER_PASSED = frozenset((b"authorization", b"x-api-key", b"host", b"content-length", b"transfer-encoding"))
"""Headers that no allow-list lets through: the client's key is not the engine's, the framing is our own."""


@dataclass(frozen=True, slots=True)
class Settings:
    """See `orchestrator.topology.plan.RouterPlan`. `passed` and `seen` are lower-case header names: those
    that engines get, and those that policies may read."""

    clients: Clients
    limits: Limits
    timeouts: Timeouts
    engine_key: str | None
    seed: int
    passed: frozenset[bytes]
    seen: frozenset[bytes]
    default_class: str | None
    classes: frozenset[str]
    tenants: Mapping[str, Any]

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
            default_class=router.default_class,
            classes=frozenset(router.slo_classes),
            tenants=router.tenants,
        )

    def slo_class(self, exchange: Exchange, tenant: str | None) -> str | None:
        """The class that a request names, else its tenant's, else the default. Raises BadRequest."""
        named = exchange.header(CLASS_HEADER)
        if named is None:
            of_tenant = self.tenants[tenant].get("slo_class") if tenant is not None else None
            return of_tenant or self.default_class
        name = named.decode("latin-1")
        if name not in self.classes:
            known = ", ".join(sorted(self.classes)) or "none"
            raise BadRequest(f"there is no SLO class {name!r}; known: {known}", reason="unknown-class")
        return name


def wire_limits(limits: Limits) -> WireLimits:
    """The limits that the HTTP server enforces."""
    return WireLimits(
        max_body_bytes=limits.max_body_bytes,
        max_header_bytes=limits.max_header_bytes,
        header_timeout_s=limits.header_timeout_s,
        body_timeout_s=limits.body_timeout_s,
    )
