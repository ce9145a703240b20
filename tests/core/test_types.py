"""What an endpoint derives from its load, its facts and the work in flight."""

from dataclasses import replace

import pytest

from orchestrator.core.types import Inflight, Load, Role, Route, Snapshot
from orchestrator.policy.testing import MODEL, make_endpoint


def test_without_a_report_only_the_routers_own_counts():
    endpoint = make_endpoint(inflight=Inflight(2, 10, 300))
    assert (endpoint.requests, endpoint.kv_used_tokens) == (2, 300)
    assert endpoint.kv_total_tokens is None
    assert endpoint.kv_free_tokens() is None


@pytest.mark.parametrize(
    ("load", "facts", "total"),
    [
        (Load(0.0, kv_total_tokens=1000), {"kv_total_tokens": 5}, 1000),
        (Load(0.0), {"kv_total_tokens": 5}, 5),
        (None, {"kv_total_tokens": 5}, 5),
        (None, {"kv_total_tokens": "many"}, None),
    ],
)
def test_capacity_is_reported_or_discovered(load, facts, total):
    assert make_endpoint(load=load, facts=facts).kv_total_tokens == total


def test_a_changed_copy_derives_anew():
    endpoint = make_endpoint(load=Load(0.0, running=1, waiting=2, kv_used_tokens=10, kv_total_tokens=100))
    assert (endpoint.requests, endpoint.kv_free_tokens()) == (3, 90)
    busier = replace(endpoint, inflight=Inflight(4, 0, 200))
    assert (busier.requests, busier.kv_free_tokens()) == (7, -110)


def test_ready_endpoints_of_a_role():
    snapshot = Snapshot(
        0.0,
        (
            make_endpoint("a", Role.PREFILL),
            make_endpoint("b", Role.PREFILL, ready=False),
            make_endpoint("c", Role.PREFILL, model="other"),
            make_endpoint("d", Role.DECODE),
        ),
    )
    assert [e.id for e in snapshot.ready(MODEL, Role.PREFILL)] == ["a"]


def test_a_route_with_two_sides_is_disaggregated():
    assert Route(decode="d", prefill="p").disaggregated
    assert not Route(decode="u").disaggregated
