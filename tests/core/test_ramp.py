"""What an endpoint that is new may be given at once, and that both schedulers keep to it (ramp, fleet)."""

from __future__ import annotations

from late import Deck, decodes, prefills

from orchestrator.core.fleet import Fleet
from orchestrator.core.ramp import RAMP_FROM, RAMP_S, allowance
from orchestrator.core.types import Role
from orchestrator.policy.testing import make_endpoint


def test_it_doubles_each_second_and_then_there_is_no_bound() -> None:
    assert allowance(0.0) == RAMP_FROM
    assert allowance(1.0) == 2 * RAMP_FROM
    assert allowance(RAMP_S) is None
    assert allowance(100.0, tried=False) == 1


def test_case_45_a_backlog_does_not_fall_on_a_decode_side_that_is_new() -> None:
    deck = Deck([*prefills(*(f"p{n}" for n in range(8))), *decodes("d0")])
    deck.change("d0", cap=3)
    for n in range(8):
        deck.ask(f"r{n}", 100)
    assert sum(deck.decision(f"r{n}") != "wait" for n in range(8)) == 3
    deck.change("d0", cap=5)
    assert sum(deck.decision(f"r{n}") != "wait" for n in range(8)) == 5
    deck.change("d0", cap=None)
    assert sum(deck.decision(f"r{n}") != "wait" for n in range(8)) == 8


def test_pairs_that_are_kept_apart_are_not_bound() -> None:
    deck = Deck([*prefills("p0", "p1"), *decodes("d0", "d1")])
    deck.change("p0", shuns=frozenset({"d0", "d1"}))
    deck.change("p1", shuns=frozenset({"d0"}))
    for n in range(4):
        deck.ask(f"r{n}", 100)
        if deck.decision(f"r{n}") != "wait":
            assert deck.decision(f"r{n}") == "->p1/d1"
            deck.prefilled(f"r{n}")
            deck.finish(f"r{n}")


def test_a_hand_off_is_not_bound_to_a_decode_side_its_prefill_is_kept_from() -> None:
    deck = Deck([*prefills("p0", late_decode=True), *decodes("d0", "d1")])
    deck.ask("a", 100)
    deck.change("p0", shuns=frozenset({"d0"}))
    deck.prefilled("a")
    assert deck.decision("a") == "->p0/d1"


def test_a_limited_fleet_leaves_out_who_is_full_or_kept_from_all() -> None:
    p0 = make_endpoint("p0", Role.PREFILL, shuns=frozenset({"d0", "d1"}))
    p1 = make_endpoint("p1", Role.PREFILL, shuns=frozenset({"d0"}))
    d0, d1 = make_endpoint("d0", Role.DECODE, cap=0), make_endpoint("d1", Role.DECODE)
    limited = Fleet((p0, p1), (d0, d1), ()).limited()
    assert limited == Fleet((p1,), (d1,), ())
    alone = make_endpoint("u0", Role.UNIFIED, cap=0)
    assert Fleet(single=(alone,)).limited().single == (alone,), "the last of a role stays"
