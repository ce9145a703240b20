"""Limits of tenants: what is refused and why, when to come back, and that books close at zero."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.contracts import Reject
from orchestrator.core.tenants import Rate, TenantLimits, Tenants, TenantsElsewhere


def make(**limits: object) -> Tenants:
    return Tenants({"a": TenantLimits(**limits)})  # type: ignore[arg-type]


def reason(refused: Reject | None) -> str | None:
    return None if refused is None else refused.reason


def test_whoever_has_no_limits_is_not_counted() -> None:
    tenants = Tenants({"a": TenantLimits(), "b": TenantLimits(max_inflight=1)})
    assert not tenants.idle
    assert tenants.submit("1", None, 0.0) is None
    assert tenants.submit("2", "a", 0.0) is None
    assert tenants.submit("3", "stranger", 0.0) is None
    assert tenants.held == 0
    assert Tenants({"a": TenantLimits()}).idle


def test_inflight_counts_until_the_end() -> None:
    tenants = make(max_inflight=2)
    assert [reason(tenants.submit(i, "a", 0.0)) for i in "123"] == [None, None, "tenant-inflight"]
    tenants.assigned("1", 1.0)
    assert reason(tenants.submit("3", "a", 1.0)) == "tenant-inflight", "running ones count as well"
    tenants.finished("1", 2.0)
    assert tenants.submit("3", "a", 2.0) is None
    assert tenants.held == 2


def test_the_queue_counts_only_what_waits() -> None:
    tenants = make(max_queued=1)
    assert tenants.submit("1", "a", 0.0) is None
    refused = tenants.submit("2", "a", 0.0)
    assert refused is not None
    assert (refused.reason, refused.http_status, refused.request_id) == ("tenant-queue", 429, "2")
    assert refused.message == "tenant a has 1 requests waiting, the most it may have"
    tenants.assigned("1", 1.0)
    tenants.assigned("1", 1.0)
    assert tenants.submit("2", "a", 1.0) is None
    tenants.finished("2", 2.0)
    assert tenants.submit("3", "a", 2.0) is None, "one that left while it waited makes room too"


def test_a_second_attempt_is_the_same_request() -> None:
    tenants = make(max_inflight=1, rate=Rate(1.0))
    assert tenants.submit("1", "a", 0.0) is None
    tenants.assigned("1", 0.1)
    assert tenants.submit("1", "a", 0.2) is None
    tenants.finished("1", 1.0)
    tenants.finished("1", 1.0)
    assert tenants.held == 0
    assert tenants.submit("2", "a", 1.0) is None


def test_a_burst_and_then_the_rate() -> None:
    tenants = make(rate=Rate(2.0, burst=3))
    assert [reason(tenants.submit(str(i), "a", 0.0)) for i in range(4)] == [None] * 3 + ["tenant-rate"]
    assert reason(tenants.submit("5", "a", 0.25)) == "tenant-rate", "half a token"
    assert tenants.submit("6", "a", 0.5) is None
    assert reason(tenants.submit("7", "a", 0.5)) == "tenant-rate"
    assert [reason(tenants.submit(f"x{i}", "a", 100.0)) for i in range(4)] == [None] * 3 + ["tenant-rate"]


def test_those_refused_are_told_successive_moments() -> None:
    tenants = make(rate=Rate(0.5))
    assert tenants.submit("1", "a", 0.0) is None
    told = [tenants.submit(str(i), "a", 0.0) for i in range(2, 6)]
    assert [r.retry_after_s for r in told if r] == [2.0, 4.0, 6.0, 8.0]
    last = [tenants.submit(f"y{i}", "a", 0.0) for i in range(100)][-1]
    assert last is not None
    assert last.retry_after_s == 60.0, "no promise reaches further"


def test_when_to_come_back_follows_from_what_ended() -> None:
    tenants = make(max_inflight=2)
    for i in range(40):
        tenants.submit(str(i), "a", float(i))
        tenants.finished(str(i), i + 20.0)
    tenants.submit("x", "a", 100.0)
    tenants.submit("y", "a", 100.0)
    told = [tenants.submit(f"z{i}", "a", 100.0) for i in range(2)]
    assert [r.retry_after_s for r in told if r] == pytest.approx([10.0, 20.0]), "two, of 20 s each"


def test_what_is_refused_uses_up_no_rate() -> None:
    tenants = make(max_inflight=1, rate=Rate(1.0, burst=2))
    assert tenants.submit("1", "a", 0.0) is None
    assert [reason(tenants.submit(f"x{i}", "a", 0.0)) for i in range(5)] == ["tenant-inflight"] * 5
    tenants.finished("1", 0.0)
    assert tenants.submit("2", "a", 0.0) is None


def test_new_limits_keep_what_is_counted() -> None:
    tenants = make(max_inflight=5, rate=Rate(1.0))
    tenants.submit("1", "a", 0.0)
    tenants.replace({"a": TenantLimits(max_inflight=1, rate=Rate(9.0, burst=9))})
    assert reason(tenants.submit("2", "a", 0.0)) == "tenant-inflight"
    tenants.finished("1", 1.0)
    assert tenants.submit("2", "a", 1.0) is None, "a new rate begins with its burst"
    tenants.replace({})
    assert tenants.submit("3", "a", 1.0) is None
    tenants.finished("2", 2.0)
    assert tenants.held == 0


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["submit", "assigned", "finished"]),
        st.sampled_from("12345"),
        st.sampled_from("ab"),
        st.floats(0, 5),
    ),
    max_size=60,
)


@given(EVENTS)
def test_bounds_hold_and_the_books_close(events: list[tuple[str, str, str, float]]) -> None:
    limits = TenantLimits(max_inflight=3, max_queued=2, rate=Rate(1.0, burst=4))
    tenants = Tenants({"a": limits, "b": limits})
    now_s, waiting, running = 0.0, {"a": set(), "b": set()}, {"a": set(), "b": set()}
    for what, request_id, tenant, gap_s in events:
        now_s += gap_s
        if what == "submit":
            known = any(request_id in s for group in (waiting, running) for s in group.values())
            refused = tenants.submit(request_id, tenant, now_s)
            assert refused is None or refused.retry_after_s is not None
            if refused is None and not known:
                waiting[tenant].add(request_id)
        else:
            (tenants.assigned if what == "assigned" else tenants.finished)(request_id, now_s)
            for name in "ab":
                if request_id in waiting[name] and what == "assigned":
                    running[name].add(request_id)
                waiting[name].discard(request_id)
                if what == "finished":
                    running[name].discard(request_id)
        for name in "ab":
            assert len(waiting[name]) <= 2
            assert len(waiting[name]) + len(running[name]) <= 3
        assert tenants.held == sum(len(s) for group in (waiting, running) for s in group.values())
    for request_id in "12345":
        tenants.finished(request_id, now_s)
    assert tenants.held == 0
    now_s += 100.0
    for name in "ab":
        assert tenants.submit(f"last-{name}", name, now_s) is None


def test_where_they_are_counted_elsewhere_only_the_end_is_told() -> None:
    over: list[str] = []
    tenants = TenantsElsewhere(over.append)
    tenants.replace({"a": TenantLimits(max_inflight=1)})
    assert tenants.idle
    assert [tenants.submit(i, "a", 0.0) for i in "12"] == [None, None]
    tenants.assigned("1", 1.0)
    tenants.finished("1", 2.0)
    assert over == ["1"]
