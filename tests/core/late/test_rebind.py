"""Decode sides that could not be reached, and requests that engines failed (tracking, scheduler)."""

from late import PROMISES, Deck, decodes, prefills

from orchestrator.core.types import Inflight


class TestReboundDecode:
    """A decode side that could not be reached: another one, with the same sums."""

    def bound(self) -> Deck:
        deck = Deck([*prefills("p0", late_decode=True), *decodes("d0", "d1")])
        deck.ask("a", 1000)
        deck.prefilled("a")
        return deck

    def test_another_is_named_and_all_is_counted_there(self):
        deck = self.bound()
        first = deck.route("a").decode
        deck.rebind("a", first)
        second = deck.route("a").decode
        assert {first, second} == {"d0", "d1"}
        assert deck.scheduler.ledger.inflight(first).requests == 0
        assert deck.scheduler.ledger.inflight(second).requests == 1
        deck.first("a")
        deck.finish("a")
        for name in ("p0", "d0", "d1"):
            assert deck.scheduler.ledger.inflight(name) == Inflight()
        assert all(not lane.unbound_tokens for lane in deck.scheduler._board.lanes.values())

    def test_one_that_is_over_or_unknown_changes_nothing(self):
        deck = self.bound()
        deck.finish("a")
        deck.rebind("a", "d0")
        assert len(deck.made["a"]) == 2

    def test_without_another_it_is_held_until_one_comes_or_the_lease_is_half_over(self):
        deck = Deck([*prefills("p0", late_decode=True), *decodes("d0")])
        deck.ask("a", 1000)
        deck.prefilled("a")
        deck.change("d0", ready=False)
        deck.rebind("a", "d0")
        assert len(deck.made["a"]) == 2
        deck.at(100.0)
        assert deck.decision("a") == "spent"
        deck.finish("a")
        assert deck.scheduler.ledger.inflight("d0") == Inflight()
        assert all(not lane.unbound_tokens for lane in deck.scheduler._board.lanes.values())


def test_one_that_an_engine_failed_is_not_refused_for_being_late():
    deck = Deck([*prefills("p0"), *decodes("d0")], classes=PROMISES)
    deck.ask("long", 10_000)
    deck.ask("again", 1000, slo_class="chat", avoid=("p9",))
    deck.at(9.0)
    assert deck.decision("again") == "wait"
    deck.prefilled("long")
    assert deck.decision("again") == "->p0/d0"
