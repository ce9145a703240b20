"""When an engine hangs, and when it is only slow, or waits for its peer."""

from __future__ import annotations

from math import inf

import pytest

from orchestrator.core.hang import COLD_PATIENCE, PATIENCE, Overdue, Signs, hung

NOW_S = 100.0


def verdict(*legs: Overdue, **heard: float) -> set[str]:
    return set(hung(legs, lambda endpoint: heard.get(endpoint, -inf), NOW_S))


def test_silence_beyond_the_limit_is_a_hang() -> None:
    leg = Overdue("p0", 70.0, 15.0)
    assert hung([leg], lambda _: 75.0, NOW_S) == {"p0": 25.0}
    assert verdict(leg, p0=90.0) == set(), "it answers others: slow with this one, but alive"
    assert verdict(leg, p0=0.0) == {"p0"}


def test_of_several_overdue_legs_one_is_enough() -> None:
    assert verdict(Overdue("d0", 50.0, 1000.0), Overdue("d0", 50.0, 20.0)) == {"d0"}


def test_decode_is_not_blamed_for_a_prefill_that_has_done_nothing() -> None:
    prefill = Overdue("p0", 70.0, 15.0, "d0", feeds=True)
    decode = Overdue("d0", 70.0, 15.0, "p0")
    assert verdict(prefill, decode) == {"p0"}
    assert verdict(prefill, decode, p0=69.0, d0=69.0) == {"p0"}


def test_prefill_is_not_blamed_for_a_decode_that_does_not_fetch() -> None:
    prefill = Overdue("p0", 70.0, 15.0, "d0", feeds=True)
    decode = Overdue("d0", 70.0, 15.0, "p0")
    assert verdict(prefill, decode, p0=71.0) == {"d0"}
    assert verdict(prefill, decode, p0=71.0, d0=99.0) == {"p0"}, "decode lives, so prefill is at fault"


def test_a_prefill_that_hangs_after_others_is_found_by_those_sent_since() -> None:
    before = Overdue("p0", 60.0, 15.0, "d0", feeds=True)
    since = Overdue("p0", 71.0, 15.0, "d0", feeds=True)
    assert verdict(before, since, p0=70.0) == {"p0"}


@pytest.mark.parametrize("predicted_s", [0.0, 1.0, 60.0])
def test_case_39_patience_grows_with_the_prediction_and_before_the_first_answer(predicted_s: float) -> None:
    signs = Signs()
    assert signs.patience_s(15.0, predicted_s) == max(15.0 * COLD_PATIENCE, PATIENCE * predicted_s)
    signs.heard(1.0, 2.0)
    assert signs.patience_s(15.0, predicted_s) == max(15.0, PATIENCE * predicted_s)


def test_the_newest_answered_leg_is_the_one_sent_last() -> None:
    signs = Signs()
    signs.heard(5.0, 6.0)
    signs.heard(3.0, 7.0)
    assert (signs.newest_s, signs.heard_s) == (5.0, 7.0)
