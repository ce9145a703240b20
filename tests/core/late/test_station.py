"""A station: units and slots, when it will be free, and when to ask it."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.late.station import (
    OVERDUE_S,
    OVERDUE_SHARE,
    POLL_FIRST_S,
    POLL_MOST_S,
    Station,
    computes_alone,
    slots_of,
)
from orchestrator.core.prediction import Curve
from orchestrator.core.types import Role
from orchestrator.policy.testing import make_endpoint


def station(slots=1):
    return Station(make_endpoint("p0", Role.PREFILL), Curve(0.001), True, slots)


class Seen:
    def __init__(self):
        self.idle = []

    def moved(self, station):
        self.idle.append(station.idle)


def test_it_is_free_until_every_slot_has_a_unit():
    one = station(slots=2)
    for name, idle in (("a", True), ("b", False)):
        one.start(name, one.unit(), 0.0, 1.0, 1000, 0)
        assert one.idle is idle
    one.done("a", 1.0)
    assert one.idle


def test_a_unit_is_one_however_many_prompts_are_in_it():
    one, unit = station(), 1
    for name in "abc":
        one.start(name, unit, 0.0, 0.1, 100, 0)
    assert not one.idle
    one.done("a", 0.1)
    one.done("c", 0.2)
    assert not one.idle
    assert one.done("b", 0.3) is not None
    assert one.idle
    assert one.done("b", 0.3) is None


def test_it_waits_for_what_it_runs_and_grows_late_with_time():
    one = station()
    assert one.wait_s(0.0) == 0.0
    one.start("a", 1, 0.0, 2.0, 2000, 0)
    assert one.wait_s(0.5) == 1.5
    assert one.wait_s(2.0) == OVERDUE_S
    assert one.wait_s(12.0) == pytest.approx(OVERDUE_S + 10 * OVERDUE_SHARE)


def test_what_others_gave_it_counts_even_while_it_is_free():
    one = station()
    one.foreign_s = 0.7
    assert one.wait_s(0.0) == 0.7
    one.start("a", 1, 0.0, 1.0, 1000, 0)
    assert one.wait_s(0.0) == 1.7


def test_only_a_short_unit_that_is_about_to_end_is_followed_ahead():
    one = station()
    one.start("a", 1, 0.0, 0.4, 400, 0)
    assert not one.nearly_free(0.3, 0.05, 0.5)
    assert one.nearly_free(0.36, 0.05, 0.5)
    assert one.nearly_free(one.ends_s - 0.05, 0.05, 0.5), "at the very moment"
    assert not one.nearly_free(0.36, 0.05, 0.3), "it is not short"
    assert not one.nearly_free(0.41, 0.05, 0.5), "an overdue one is not about to end"
    one.start("b", 2, 0.36, 0.1, 100, 0)
    assert not one.nearly_free(0.45, 0.05, 0.5), "two are outstanding"


def test_only_what_runs_by_itself_has_its_time_for_itself():
    one = station()
    one.start("a", 1, 0.0, 1.0, 1000, 0)
    assert one.done("a", 1.0).alone
    one.start("b", 2, 1.0, 1.0, 1000, 0)
    one.start("c", 3, 1.5, 1.0, 1000, 0)
    assert not one.done("b", 2.0).alone
    assert not one.done("c", 3.0).alone


def test_it_is_asked_twice_as_late_each_time_and_for_hours_if_need_be():
    one = station()
    one.start("a", 1, 0.0, 1.0, 1000, 0)
    assert one.poll_at_s == 1.0 + POLL_FIRST_S
    one.polled(1.02)
    assert one.poll_at_s == pytest.approx(1.02 + 2 * POLL_FIRST_S)
    for _ in range(5000):
        one.polled(one.poll_at_s)
    assert one.poll_at_s < 1.0 + 5001 * POLL_MOST_S
    one.done("a", 5000.0)
    assert one.poll_at_s == inf


def test_a_restart_loses_all():
    one = station()
    one.foreign_s = 3.0
    one.start("a", 1, 0.0, 1.0, 1000, 0)
    one.clear()
    assert (one.idle, one.wait_s(0.5), one.poll_at_s, one.longest_s) == (True, 0.0, inf, 0.0)
    assert one.done("a", 1.0) is None


def test_whoever_watches_is_told_of_every_move():
    one, seen = station(), Seen()
    one.watchers.append(seen)
    one.start("a", 1, 0.0, 1.0, 1000, 0)
    one.done("a", 1.0)
    one.clear()
    assert seen.idle == [False, True, True]


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.integers(1, 30)), max_size=60), st.integers(1, 3)
)
def test_its_books_equal_what_is_counted_anew(events, slots):
    one, runs, now_s = station(slots), {}, 0.0
    for number, (starts, which, ms) in enumerate(events):
        now_s += ms / 1000
        if starts:
            unit = one.unit() if which else max(one.last_unit, 1)
            one.start(f"r{number}", unit, now_s, ms / 100, ms, 0)
            runs[f"r{number}"] = (unit, ms / 100)
        elif runs:
            name = sorted(runs)[which % len(runs)]
            one.done(name, now_s)
            del runs[name]
        assert one.idle is (len({unit for unit, _ in runs.values()}) < slots)
        assert one.longest_s == max((work_s for _, work_s in runs.values()), default=0.0)
        assert one.short(0.5) is (sum(work_s for _, work_s in runs.values()) <= 0.5)
        assert one.wait_s(now_s) >= 0.0
        if not runs:
            assert one.ends_s <= now_s


def test_ranks_and_stages_are_slots():
    assert slots_of(make_endpoint("p0")) == 1
    assert slots_of(make_endpoint("p0", facts={"dp_size": 2, "pp_size": 3})) == 6
    assert slots_of(make_endpoint("p0", facts={"dp_size": "many"})) == 1


def test_unified_ones_and_decode_ones_that_may_prefill_compute_alone():
    assert computes_alone(make_endpoint("u0", Role.UNIFIED))
    assert computes_alone(make_endpoint("d0", Role.DECODE, facts={"may_prefill": True}))
    assert not computes_alone(make_endpoint("d0", Role.DECODE))
    assert not computes_alone(make_endpoint("p0", Role.PREFILL))
