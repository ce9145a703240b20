"""A late profile's data: its defaults, and that it is a value."""

from dataclasses import replace

from orchestrator.core.choosing import Step
from orchestrator.core.lateprofile import LateProfile, LateRole, LateSettings
from policies.orders.fcfs import FirstCome as Fcfs


def test_the_defaults_keep_one_prefill_outstanding_and_hand_ahead_only_behind_short_work():
    usual = LateSettings()
    assert 0.02 <= usual.hand_ahead_s <= 0.1
    assert usual.hand_ahead_s < usual.hand_ahead_work_s <= 0.5
    assert usual.wait_for_warm
    assert usual.others == 1.0


def test_spares_grow_with_the_prefill_and_leave_something_to_it():
    spare = LateSettings().spare
    assert list(spare) == sorted(spare)
    assert all(over_s > 0.0 and 0.0 < share < 1.0 for over_s, share in spare)


def test_a_changed_copy_leaves_the_profile_as_it_was():
    profile = LateProfile(Step("fcfs", Fcfs()))
    other = replace(profile, settings=replace(profile.settings, max_queue=7))
    assert (profile.settings.max_queue, other.settings.max_queue) == (10_000, 7)


def test_without_policies_every_role_is_open():
    profile = LateProfile(Step("fcfs", Fcfs()))
    assert profile.prefill == profile.decode == profile.unified == LateRole()
    assert profile.headers == frozenset()
