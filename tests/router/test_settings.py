"""What the data path is configured with: classes, tenants' limits, headers; and who clients are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from orchestrator.core.classes import Chosen
from orchestrator.core.slo import SloClass
from orchestrator.core.tenants import Rate, TenantLimits
from orchestrator.engines.base import HttpCall, Probes
from orchestrator.errors import BadRequest, Unauthorized
from orchestrator.router.settings import Settings, wire_limits
from orchestrator.topology.plan import Credentials, Limits, Plan, RouterPlan


class Said:
    """A request's headers, as the wire server has them."""

    def __init__(self, **headers: str) -> None:
        self._headers = {k.replace("_", "-").encode(): v.encode("latin-1") for k, v in headers.items()}

    def header(self, name: bytes) -> bytes | None:
        return self._headers.get(name)


def settings(policy_headers: tuple[str, ...] = (), **router: Any) -> Settings:
    made = RouterPlan(
        kind="pdctl",
        host="127.0.0.1",
        port=1,
        admin_host="127.0.0.1",
        admin_port=2,
        url="http://127.0.0.1:1",
        admin_url="http://127.0.0.1:2",
        argv=(),
        env={},
        probes=Probes(ready=(), live=HttpCall("GET", "/health")),
        **router,
    )
    plan = Plan("t", "t.yaml", "/", "/", 7, (), made)
    return Settings.of(plan, policy_headers)


def chosen(
    given: Settings, said: Said, fields: Mapping[str, Any] | None = None, tenant: str | None = None
) -> Chosen:
    return given.slo_class(said, fields or {}, tenant, 10)  # type: ignore[arg-type]


CLASSES = {"gold": {"priority": "realtime"}, "iron": {}}


def test_the_header_names_a_class() -> None:
    given = settings(slo_classes=CLASSES)
    assert chosen(given, Said()) == Chosen(None)
    assert chosen(given, Said(x_pdctl_class=" gold ")) == Chosen("gold")
    with pytest.raises(BadRequest, match="did you mean 'gold'"):
        chosen(given, Said(x_pdctl_class="golden"))
    with pytest.raises(BadRequest, match="no SLO class 'é'"):
        chosen(given, Said(x_pdctl_class="é"))
    with pytest.raises(BadRequest, match="no SLO class ''"):
        chosen(given, Said(x_pdctl_class=""))


def test_else_the_body_the_tenant_and_the_default() -> None:
    given = settings(
        slo_classes=CLASSES,
        default_class="iron",
        service_tiers={"priority": "gold"},
        tenants={"a": {"slo_class": "iron"}, "b": {"classes": ["iron"]}},
    )
    assert chosen(given, Said(), {"service_tier": "priority"}) == Chosen("gold")
    assert chosen(given, Said(), {}) == Chosen("iron")
    assert chosen(given, Said(x_pdctl_class="gold"), {}, "a") == Chosen("iron", "gold")
    assert chosen(given, Said(), {"service_tier": "priority"}, "b") == Chosen("iron", "gold")


def test_the_classes_and_limits_of_the_plan() -> None:
    given = settings(slo_classes=CLASSES, tenants={"a": {"max_inflight": 3, "rate": {"per_second": 2.0}}})
    assert given.classes.classes["iron"] == SloClass("iron")
    assert given.tenants == {"a": TenantLimits(3, rate=Rate(2.0))}


def test_headers_for_engines_and_for_policies() -> None:
    given = settings(("X-Session",), pass_headers=("X-Fine", "Authorization"))
    assert given.passed == {b"x-fine"}
    assert given.seen == {b"x-fine", b"x-session"}


def test_a_plan_without_a_router_has_no_settings() -> None:
    with pytest.raises(ValueError, match="has no router"):
        Settings.of(Plan("t", "t.yaml", "/", "/", 7, ()))


def test_limits_of_the_wire() -> None:
    limits = wire_limits(Limits(max_body_bytes=5, max_header_bytes=6, header_timeout_s=7, body_timeout_s=8))
    assert (limits.max_body_bytes, limits.max_header_bytes) == (5, 6)
    assert (limits.header_timeout_s, limits.body_timeout_s) == (7, 8)


def test_clients_are_known_by_their_keys() -> None:
    clients = settings(
        credentials=Credentials(client_keys=("any", "acme-1")), tenants={"acme": {"keys": ["acme-1"]}}
    ).clients
    assert clients.who(Said(authorization="Bearer any")).tenant is None  # type: ignore[arg-type]
    assert clients.who(Said(authorization="bearer acme-1")).tenant == "acme"  # type: ignore[arg-type]
    assert clients.who(Said(x_api_key="acme-1")).tenant == "acme"  # type: ignore[arg-type]
    for said in (Said(), Said(authorization="Basic any"), Said(authorization="Bearer other")):
        with pytest.raises(Unauthorized):
            clients.who(said)  # type: ignore[arg-type]
