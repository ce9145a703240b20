"""The time budget: nothing is timed while all is quick; who stalls is named, and left out for a while."""

import pytest

from orchestrator.clock import FakeClock
from orchestrator.core.choosing import choose
from orchestrator.core.contracts import DeferringOrder, Filter, Order, Picker, Scorer
from orchestrator.core.lateprofile import LateProfile, LateRole
from orchestrator.core.scheduling import SchedulingProfile
from orchestrator.policy.build import build
from orchestrator.policy.guard import STALLED, Budget, Guard
from orchestrator.policy.testing import make_context, make_endpoint, make_request

ENDPOINTS = tuple(make_endpoint(i) for i in "ab")

STALLING = """
class Slow:
    def __init__(self):
        self.calls = 0
        self.asked = lambda: None

    def filter(self, request, candidates, context):
        self.calls += 1
        self.asked()
        return candidates[:1]
"""


class Rig:
    """A profile with one filter of its own behind a guard; `takes_s` is how long a call of it takes."""

    def __init__(self, folder, budget=Budget()):
        (folder / "slow.py").write_text(STALLING)
        self.clock = FakeClock()
        self.told = []
        self.fallbacks = []
        self.takes_s = 0.0
        self.guard = Guard(self.clock.now_s, lambda name, e: self.told.append((name, e)), budget)
        role = {"filters": ["./slow.py:Slow"], "scorers": ["queue-depth"]}
        profile = build({"unified": role}, folder)
        self.slow = profile.unified.filters[0].policy
        self.slow.asked = lambda: self.clock.advance(self.takes_s)
        self.profile = self.guard.watch(profile)
        self._decide = self.guard.timed(self._choose)

    def _choose(self):
        context = make_context(ENDPOINTS, now_s=self.clock.now_s())
        return choose(self.profile.unified, make_request(), ENDPOINTS, context, self._failed)

    def _failed(self, name, error):
        self.fallbacks.append(error)

    def decide(self, takes_s=0.0):
        """The endpoints left by the filter, in one decision during which a call of it takes `takes_s`."""
        self.takes_s = takes_s
        return [s.endpoint for s in self._decide().scored]


@pytest.fixture
def rig(tmp_path):
    return Rig(tmp_path)


def test_while_all_is_quick_a_decision_costs_two_readings_of_the_clock(rig):
    readings = 0

    def now_s():
        nonlocal readings
        readings += 1
        return rig.clock.now_s()

    guard = Guard(now_s, rig.guard._on_error)
    profile = guard.watch(rig.profile)
    context = make_context(ENDPOINTS)
    decide = guard.timed(lambda: choose(profile.unified, make_request(), ENDPOINTS, context, rig._failed))
    for _ in range(10):
        decide()
    assert readings == 20
    assert not guard.watching


def test_a_slow_decision_has_every_policy_timed_from_then_on(rig):
    rig.decide(0.006)
    assert rig.guard.watching
    assert rig.told == []
    assert rig.decide(0.006) == ["a"]
    ((name, error),) = rig.told
    assert name == error.policy == "./slow.py:Slow"
    assert error.reason == STALLED
    assert error.message == "policy ./slow.py:Slow: a call took 6.0 ms, 5 ms are allowed"


def test_as_long_as_allowed_is_not_too_long(rig):
    rig.decide(0.006)
    for _ in range(10):
        rig.decide(0.0049)
    assert rig.told == []


def test_three_in_a_row_leave_it_out_for_a_while(rig):
    rig.decide(0.006)
    for _ in range(3):
        assert rig.decide(0.006) == ["a"]
    assert rig.told[-1][1].message.endswith("are allowed: left out for 30 s")
    calls = rig.slow.calls
    assert rig.decide(0.006) == ["a", "b"]
    assert rig.slow.calls == calls
    assert "it stalled, and is left out for another 30 s" in rig.fallbacks[-1].message
    rig.clock.advance(29.0)
    assert rig.decide() == ["a", "b"]
    rig.clock.advance(1.1)
    assert rig.decide() == ["a"]


def test_a_quick_call_between_begins_the_count_anew(rig):
    rig.decide(0.006)
    for takes_s in (0.006, 0.006, 0.0, 0.006, 0.006, 0.0):
        rig.decide(takes_s)
    assert len(rig.told) == 4
    assert rig.decide() == ["a"]


def test_after_the_while_one_more_is_enough(rig):
    for _ in range(4):
        rig.decide(0.006)
    rig.clock.advance(31.0)
    assert rig.decide(0.006) == ["a"]
    assert rig.decide() == ["a", "b"]


def test_after_it_did_well_again_it_has_all_its_strikes(rig):
    for _ in range(4):
        rig.decide(0.006)
    rig.clock.advance(31.0)
    rig.decide()
    rig.decide(0.006)
    assert rig.decide(0.006) == ["a"]
    assert rig.decide() == ["a"]


def test_a_policy_that_fails_slowly_is_too_slow_as_well(rig):
    def fail():
        rig.clock.advance(0.006)
        raise RuntimeError("gone")

    rig.decide(0.006)
    rig.slow.asked = fail
    for _ in range(3):
        assert rig.decide() == ["a", "b"]
    assert [e.reason for e in rig.fallbacks] == ["policy-failed"] * 3
    assert rig.told[-1][1].message.endswith("left out for 30 s")


def test_it_stops_looking_after_a_minute_without_a_slow_call(rig):
    rig.decide(0.006)
    rig.clock.advance(50.0)
    rig.decide(0.006)
    rig.clock.advance(59.0)
    rig.decide()
    assert rig.guard.watching
    rig.clock.advance(1.1)
    rig.decide()
    assert not rig.guard.watching
    rig.decide(0.006)
    assert len(rig.told) == 1


def test_it_goes_on_looking_while_somebody_is_left_out(tmp_path):
    rig = Rig(tmp_path, Budget(cooldown_s=300.0))
    for _ in range(4):
        rig.decide(0.006)
    rig.clock.advance(299.0)
    assert rig.decide() == ["a", "b"]
    assert rig.guard.watching


def test_a_new_profile_is_watched_and_the_old_one_not_any_more(rig):
    rig.decide(0.006)
    fresh = rig.guard.watch(build("least-requests"))
    rig.decide(0.006)
    assert len(rig.told) == 1
    choose(fresh.unified, make_request(), ENDPOINTS, make_context(ENDPOINTS), rig._failed)
    assert rig.fallbacks == []


def test_another_budget(tmp_path):
    rig = Rig(tmp_path, Budget(call_s=0.001, strikes=1, cooldown_s=5.0))
    rig.decide(0.002)
    rig.decide(0.002)
    assert rig.decide() == ["a", "b"]
    rig.clock.advance(5.1)
    assert rig.decide() == ["a"]


@pytest.mark.parametrize("name", ["default", "round-robin", "predicted-shed", "slo", "slo-shortest"])
def test_a_watched_profile_is_one_like_before(name):
    profile = build(name)
    watched = Guard(FakeClock().now_s, lambda name, error: None).watch(profile)
    assert type(watched) is type(profile)
    for role in ("prefill", "decode", "unified"):
        before, after = getattr(profile, role), getattr(watched, role)
        for kind, contract in (("filters", Filter), ("scorers", Scorer)):
            steps = getattr(after, kind)
            assert [(s.name, s.weight) for s in steps] == [(s.name, s.weight) for s in getattr(before, kind)]
            assert all(isinstance(s.policy, contract) for s in steps)
    if isinstance(watched, SchedulingProfile):
        assert isinstance(watched.prefill.picker.policy, Picker)
    else:
        assert isinstance(watched, LateProfile)
        assert isinstance(watched.order.policy, Order)
        defers = isinstance(profile.order.policy, DeferringOrder)
        assert isinstance(watched.order.policy, DeferringOrder) is defers


def test_an_order_is_timed_too():
    class Slow:
        def key(self, waiting):
            clock.advance(0.006)
            return 0.0

    clock, told = FakeClock(), []
    guard = Guard(clock.now_s, lambda name, error: told.append(name))
    late = build("slo")
    step = type(late.order)("slow", Slow())
    watched = guard.watch(LateProfile(order=step, unified=LateRole()))
    key = guard.timed(lambda: watched.order.policy.key(None))
    key()
    for _ in range(3):
        assert key() == 0.0
    assert told == ["slow"] * 3
    with pytest.raises(Exception, match="it stalled, and is left out"):
        key()
