"""Policies in late mode: filters take stations out, scorers add seconds, and no fault costs a request."""

from random import Random

from late import Deck, Fixed, Shortest, decodes, inf, prefills, unified

from orchestrator.core.choosing import Step
from orchestrator.core.inflight import Ledger
from orchestrator.core.late.board import Board
from orchestrator.core.late.policies import Policies
from orchestrator.core.late.queue import Item
from orchestrator.core.lateprofile import LateProfile, LateRole, LateSettings
from orchestrator.core.prefix import PrefixIndex
from orchestrator.core.prefixcheck import PrefixCheck
from orchestrator.core.types import PathKind, Role
from orchestrator.policy.testing import MODEL, make_request


class Keep:
    def __init__(self, *names):
        self.names, self.seen = names, []

    def filter(self, request, candidates, context):
        self.seen.append((context.role, [e.id for e in candidates], context.wait_s(candidates[0].id)))
        return [e for e in candidates if e.id in self.names]


class Cost:
    unit = "seconds"

    def __init__(self, *seconds):
        self.seconds = seconds

    def score(self, request, candidates, context):
        return self.seconds


class Broken:
    unit = "seconds"

    def filter(self, request, candidates, context):
        raise RuntimeError("filter")

    score = filter


class Stranger:
    def filter(self, request, candidates, context):
        return unified("stranger")


def ask(prefill=LateRole(), alone=LateRole(), ends=None):
    ledger, errors = Ledger(), []
    board = Board(ledger, Fixed(), lambda path, e: True, LateSettings())
    ends = ends or [*prefills("p0", "p1"), *decodes("d0")]
    ledger.observe(ends)
    board.observe(tuple(ends))
    profile = LateProfile(Step("order", Shortest()), prefill=prefill, unified=alone)
    cached = PrefixCheck(PrefixIndex(), 128)
    policies = Policies(
        profile,
        board,
        ledger,
        Fixed(),
        cached,
        Random(0),
        128,
        lambda name, e: errors.append(str(e)),
    )
    lane = board.lane((MODEL, PathKind.CHAT, None))
    lane.stations[0].foreign_s = 0.5
    return policies.added(lane, Item(make_request(), 0.0, 1.0, inf, inf), 3.0), errors


def test_without_any_nothing_is_asked():
    assert ask() == (None, [])


def test_a_filter_takes_out_and_is_named():
    keep = Keep("p1")
    added, errors = ask(LateRole((Step("keep", keep),)))
    assert (added.filtered, added.seconds, errors) == ({"p0": "keep"}, {}, [])
    assert keep.seen == [(Role.PREFILL, ["p0", "p1"], 0.5)], "it is told what the stations wait"


def test_the_first_that_takes_one_out_is_the_one_named():
    added, _ = ask(LateRole((Step("first", Keep("p1")), Step("second", Keep()))))
    assert added.filtered == {"p0": "first", "p1": "second"}


def test_scorers_add_up_and_are_kept_apart():
    added, _ = ask(LateRole(scorers=(Step("a", Cost(1, 2)), Step("b", Cost(0.5, -1)))))
    assert added.seconds == {"p0": 1.5, "p1": 1.0}
    assert added.parts == {"p0": {"a": 1.0, "b": 0.5}, "p1": {"a": 2.0, "b": -1.0}}


def test_scorers_see_only_what_filters_left():
    added, errors = ask(LateRole((Step("keep", Keep("p1")),), (Step("a", Cost(7)),)))
    assert (added.seconds, errors) == ({"p1": 7.0}, [])


def test_those_that_fail_are_passed_over_counted_and_named():
    filters = (Step("broken", Broken()), Step("odd", Stranger()))
    wrong = (Step("raises", Broken()), Step("short", Cost(1)), Step("nan", Cost(1, inf)))
    added, errors = ask(LateRole(filters, (*wrong, Step("ok", Cost(1, 2)))))
    assert (added.filtered, added.seconds) == ({}, {"p0": 1.0, "p1": 2.0})
    assert added.failed == ["broken", "odd", "raises", "short", "nan"]
    assert len(errors) == 5
    assert "stranger" in errors[1]


def test_each_role_has_its_own():
    ends = [*prefills("p0"), *decodes("d0"), *unified("u0")]
    added, _ = ask(LateRole(scorers=(Step("a", Cost(1)),)), LateRole((Step("none", Keep()),)), ends)
    assert (added.seconds, added.filtered) == ({"p0": 1.0}, {"u0": "none"})


class ByName:
    """A scorer of seconds by endpoint."""

    unit = "seconds"

    def __init__(self, **seconds):
        self.seconds, self.prefills = seconds, []

    def score(self, request, candidates, context):
        self.prefills.append(context.prefill and context.prefill.id)
        return [self.seconds.get(e.id, 0.0) for e in candidates]


def decoding(*, filters=(), scorers=(), **facts):
    """Two decode sides that are alike, and policies that choose among them."""
    role = LateRole(
        tuple(Step(f"f{i}", one) for i, one in enumerate(filters)),
        tuple(Step(f"s{i}", one) for i, one in enumerate(scorers)),
    )
    settings = LateSettings(hand_ahead_s=0.0, unit_tokens=0)
    profile = LateProfile(Step("order", Shortest()), decode=role, settings=settings)
    return Deck([*prefills("p0", **facts), *decodes("d0", "d1")], profile=profile)


def test_a_filter_of_decode_sides_is_held_to_and_told():
    deck = decoding(filters=[Keep("d1")])
    for name in "abc":
        deck.ask(name, 100)
        assert deck.decision(name) == "->p0/d1"
        deck.prefilled(name)
    choice = deck.made["a"][0].explain()[1]
    assert (choice.chosen, choice.filtered) == ("d1", {"d0": "f0"})


def test_scorers_of_decode_sides_add_to_the_step():
    deck = decoding(scorers=[ByName(d0=0.5)])
    for name in "abc":
        deck.ask(name, 100)
        assert deck.decision(name) == "->p0/d1"
        deck.prefilled(name)
    (first, second) = deck.made["a"][0].explain()[1].scored
    assert (first.endpoint, second.endpoint, second.parts["s0"]) == ("d1", "d0", 0.5)


def test_who_has_nobody_left_to_decode_holds_up_nobody():
    class OnlyShort:
        def filter(self, request, candidates, context):
            return candidates if request.prompt_tokens < 1000 else ()

    deck = decoding(filters=[OnlyShort()])
    deck.ask("long", 2000)
    assert deck.decision("long") == "wait"
    deck.ask("short", 100)
    assert deck.decision("short") == "->p0/d0"


def test_a_side_bound_late_is_chosen_by_policies_that_know_the_prefill():
    scorer = ByName(d0=0.5)
    deck = decoding(scorers=[scorer], late_decode=True)
    deck.ask("a", 100)
    deck.prefilled("a")
    assert deck.decision("a") == "->p0/d1"
    assert scorer.prefills[-1] == "p0"


def test_a_broken_policy_of_decode_sides_is_passed_over():
    deck = decoding(filters=[Broken()], scorers=[Broken()])
    deck.ask("a", 100)
    assert deck.decision("a") in ("->p0/d0", "->p0/d1")
    assert deck.made["a"][0].explain()[1].fallbacks == ("f0", "s0")
