"""Waiting for a busy endpoint: for how long it is worth it, and what is claimed. More is in test_pricing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from late import inf, prefills

from orchestrator.core.inflight import Ledger
from orchestrator.core.late import waits
from orchestrator.core.late.decodes import Decodes
from orchestrator.core.late.lanes import Lane
from orchestrator.core.late.queue import Item, Wait
from orchestrator.core.late.station import Station
from orchestrator.core.prediction import Curve
from orchestrator.policy.testing import make_request


def lane_of(work_s=1.0):
    station = Station(prefills("p0")[0], Curve(0.001), True)
    lane = Lane(("m", frozenset(), frozenset(), frozenset()), [station], Decodes(Ledger(), ()))
    station.start("on", 1, 0.0, work_s, 1000, 0)
    return lane, station


def item(**fields):
    return Item(make_request(), 0.0, 1.0, inf, inf, tokens=1000, **fields)


def test_a_wait_is_claimed_and_remembered_only_if_it_is_to_be():
    lane, station = lane_of()
    for keep in (True, False):
        one, claims = item(cold_s=9.0), {}
        waits.begin(lane, one, Wait(station, 0.0, 0.1, 0.05, 0.0, 3.0, lane.freed), 0.0, claims, keep=keep)
        assert claims == {"p0": 0.05}
        assert (one.waits_for is not None) is keep
        assert one.passed_s == 0.0


@given(
    st.floats(0.1, 5.0), st.floats(0.0, 2.0), st.floats(0.01, 8.0), st.floats(0.0, 3.0), st.floats(1.0, 20.0)
)
def test_it_ends_just_when_the_lane_asks_to_look_again(work_s, rest_s, spare_s, claimed_s, cold_s):
    """No sooner, or the warm endpoint is left for nothing; no later, or one that hangs is waited for."""
    lane, station = lane_of(work_s)
    one, claims = item(cold_s=cold_s), {"p0": claimed_s}
    wait = Wait(station, 0.0, rest_s, 0.05, 0.0, work_s + claimed_s + rest_s + spare_s, lane.freed)
    waits.begin(lane, one, wait, 0.0, dict(claims), keep=True)
    at_s = lane.recheck_s
    assert at_s > 0.0
    before_s = at_s - 1e-3
    if before_s > 0.0 and before_s < work_s:
        assert waits.goes_on(lane, one, before_s, dict(claims), 2.0)
    one.waits_for = wait
    if at_s > waits.RECHECK_S:
        goes_on = waits.goes_on(lane, one, at_s + 1e-6, dict(claims), 2.0)
        assert not goes_on or at_s + 1e-6 < work_s


def test_fewer_claims_ahead_make_it_longer_without_asking_every_moment():
    lane, station = lane_of()
    one = item(cold_s=100.0)
    wait = Wait(station, 0.0, 0.1, 0.05, 0.0, 4.0, lane.freed)
    waits.begin(lane, one, wait, 0.0, {"p0": 2.0}, keep=True)
    soon_s, lane.recheck_s = lane.recheck_s, inf
    assert waits.goes_on(lane, one, soon_s, {}, 2.0)
    assert lane.recheck_s > soon_s + 1.0


def test_work_that_is_longer_than_any_patience_is_waited_for_as_long_as_it_takes_cold():
    lane, station = lane_of(50.0)
    one = item(cold_s=30.0)
    waits.begin(lane, one, Wait(station, 0.0, 0.1, 0.05, 0.0, 90.0, lane.freed), 0.0, {}, keep=True)
    assert lane.recheck_s == pytest.approx(30.0)
    assert waits.goes_on(lane, one, 29.9, {}, 2.0)
    assert not waits.goes_on(lane, one, 30.1, {}, 2.0)
