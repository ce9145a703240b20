"""Lanes: who waits where, and the books of free and busy stations against a naive scan of them."""

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.core.inflight import Ledger, Sums
from orchestrator.core.late.decodes import Decodes, DecodeSide
from orchestrator.core.late.lanes import FORGET, Lane
from orchestrator.core.late.queue import Item
from orchestrator.core.late.station import Station
from orchestrator.core.prediction import Curve, Step
from orchestrator.core.slo import NO_PROMISE, Priority, SloClass
from orchestrator.core.types import Load, Role
from orchestrator.policy.testing import make_endpoint, make_request

BULK = SloClass("bulk", priority=Priority.BATCH, reserve=0.1)


def lane_of(*names, slots=1, **kwargs):
    stations = [Station(make_endpoint(n, Role.PREFILL), Curve(0.001), True, slots) for n in names]
    sides = [DecodeSide(make_endpoint("d0", Role.DECODE, load=Load(0.0, 1, 0, 8000, 10_000)), Step(0.01))]
    signature = ("m", frozenset(names), frozenset({"d0"}), frozenset())
    return Lane(signature, stations, Decodes(Ledger(), sides), **kwargs)


def item(number, slo=NO_PROMISE, **fields):
    usual = {"arrived_s": float(number), "work_s": 1.0, "first_token_by_s": inf, "latest_start_s": inf}
    return Item(make_request(id=f"r{number}"), slo=slo, key=(1, float(number), number), **{**usual, **fields})


class TestWaiting:
    def test_each_waits_where_it_belongs(self):
        lane = lane_of("p0")
        plain, bulk, late = item(1), item(2, BULK), item(3, late=True)
        for one in (plain, bulk, late):
            lane.add(one)
        assert (lane.queue.head(9), lane.batch.head(9), lane.kept.head(9)) == ([plain], [bulk], [late])
        assert lane.waiting == 3
        assert lane.reserved["bulk"].first is bulk
        for one in (plain, bulk, late):
            lane.remove(one)
            assert not one.queued
        assert (lane.waiting, lane.reserved["bulk"].first) == (0, None)

    @pytest.mark.parametrize("slo", [NO_PROMISE, BULK])
    def test_who_is_put_aside_comes_back_to_its_place(self, slo):
        lane = lane_of("p0")
        one, other = item(1, slo), item(2, slo)
        lane.add(one)
        lane.add(other)
        lane.put_aside(one)
        assert lane.waiting == 2
        assert list(lane.aside.values()) == [one]
        line = lane.batch if slo is BULK else lane.queue
        assert line.head(9) == [other]
        lane.put_aside(other)
        lane.put_aside(one)
        assert list(lane.aside.values()) == [other, one], "who was asked last is last"
        lane.take_back(one)
        assert line.head(9) == [one]
        lane.remove(other)
        assert lane.waiting == 1

    def test_one_that_waits_moves_with_its_key_and_one_put_aside_takes_it_along(self):
        lane = lane_of("p0")
        one, other = item(1), item(2)
        for each in (one, other):
            lane.add(each)
        lane.move(one, (1, 9.0, 1))
        assert lane.queue.head(2) == [other, one]
        lane.put_aside(other)
        lane.move(other, (1, 10.0, 2))
        lane.take_back(other)
        assert lane.queue.head(2) == [one, other]

    def test_room_is_kept_for_one_and_ends_with_its_wait(self):
        lane, one = lane_of("p0"), item(1, tokens=5000, output_tokens=100)
        lane.add(one)
        side = lane.decodes.sides["d0"]
        side.refresh(Sums())
        lane.keep_room(one, side)
        assert (side.kept_for, side.kept_tokens) == (one, 5100)
        lane.remove(one)
        assert (side.kept_for, lane.keeps) == (None, None)

    def test_where_memory_is_not_what_is_short_all_is_kept(self):
        lane, one = lane_of("p0"), item(1, tokens=500)
        side = lane.decodes.sides["d0"]
        side.refresh(Sums())
        lane.keep_room(one, side)
        assert side.kept_tokens == inf
        lane.leave()
        assert side.kept_for is None


class TestStations:
    def test_who_has_been_idle_longest_is_first(self):
        lane = lane_of("p0", "p1", "p2")
        lane.stations[0].start("a", 1, 0.0, 1.0, 1000, 0)
        assert list(lane.idle) == ["p1", "p2"]
        lane.stations[0].done("a", 1.0)
        assert list(lane.idle) == ["p1", "p2", "p0"]

    def test_those_freed_since_are_told_the_last_first(self):
        lane = lane_of("p0", "p1", "p2")
        was = lane.freed
        assert list(lane.freed_since(was)) == []
        for station in lane.stations[:2]:
            station.start("a", 1, 0.0, 1.0, 1000, 0)
        for station in lane.stations[:2]:
            station.done("a", 1.0)
        assert [s.id for s in lane.freed_since(was)] == ["p1", "p0"]

    def test_a_lane_that_left_hears_nothing(self):
        lane = lane_of("p0")
        lane.leave()
        lane.stations[0].start("a", 1, 0.0, 1.0, 1000, 0)
        assert lane.idle

    def test_whether_there_is_any_other(self):
        lane = lane_of("p0", "p1")
        assert lane.only_to_avoid(("p0", "p1", "d0"))
        assert not lane.only_to_avoid(("p0",))

    def test_notes_of_a_lane_that_nobody_asks_do_not_pile_up(self):
        lane = lane_of("p0", "p1", ahead_s=0.05, ahead_work_s=0.5)
        for number in range(2000):
            lane.stations[0].start(f"r{number}", number, number / 100, 0.01, 10, 0)
            if number % 50:
                lane.stations[0].done(f"r{number}", number / 100)
            else:
                lane.stations[0].clear()
        assert len(lane._ends) <= FORGET * 2 + 1
        assert len(lane._aheads) <= FORGET * 2 + 1


moves = st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.integers(1, 40)), max_size=120)


@settings(max_examples=150, deadline=None)
@given(moves, st.integers(1, 2))
def test_free_and_busy_ones_are_those_that_a_scan_finds(events, slots):
    ahead_s, short_s = 0.05, 0.3
    lane = lane_of("p0", "p1", "p2", "p3", slots=slots, ahead_s=ahead_s, ahead_work_s=short_s)
    now_s, ticked_s = 0.0, -inf
    for number, (which, starts, ms) in enumerate(events):
        now_s += ms / 1000
        station = lane.stations[which]
        if starts and (station.idle or number % 5 == 0):
            station.start(f"r{number}", station.unit(), now_s, ms / 100, ms, 0)
        elif station.running:
            station.done(next(iter(station.running)), now_s)
        busy = [s for s in lane.stations if s.units]
        assert set(lane.idle) == {s.id for s in lane.stations if s.idle}
        on_time = [s.ends_s for s in busy if s.ends_s >= now_s]
        first_s = lane.first_end_s()
        assert first_s <= min(on_time, default=inf)
        assert first_s == inf or first_s in [s.ends_s for s in busy]
        near = lane.nearly_free(now_s, ahead_s, short_s)
        assert {s.id for s in near} == {s.id for s in busy if s.nearly_free(now_s, ahead_s, short_s)}
        if number % 3 == 0:
            ticked_s = now_s
        due = [s.ends_s - ahead_s for s in busy if not s.idle and s.short(short_s)]
        found = lane.next_ahead_s(ticked_s)
        assert found <= min((at_s for at_s in due if at_s > ticked_s), default=inf)
        assert found == inf or found in [s.ends_s - ahead_s for s in busy]
