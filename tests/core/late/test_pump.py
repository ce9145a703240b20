"""The pump: keys, which requests are looked at, gaps for batch, and units of short prompts."""

import pytest
from late import PROMISES, Deck, Fcfs, decodes, prefills

from orchestrator.core.slo import Priority, SloClass, Target


def pair(n=1, **kwargs):
    return Deck([*prefills(*(f"p{i}" for i in range(n))), *decodes("d0")], **kwargs)


def went(deck, names):
    return [name for name in names if deck.decision(name) != "wait"]


class TestKeys:
    class Order:
        def __init__(self, key):
            self._key = key

        def key(self, waiting):
            return self._key(waiting)

    def keys(self, key):
        deck = pair(order=self.Order(key))
        deck.ask("busy", 1000)
        deck.ask("a", 700)
        deck.ask("b", 300)
        deck.prefilled("busy")
        return went(deck, "ab")

    def test_the_lowest_goes_first(self):
        assert self.keys(lambda w: -w.work_s) == ["a"]
        assert self.keys(lambda w: w.work_s) == ["b"]

    def test_equals_go_in_order_of_arrival(self):
        assert self.keys(lambda w: 0) == ["a"]

    def test_what_is_no_number_is_the_work_instead(self):
        assert self.keys(lambda w: float("nan")) == ["b"]
        assert self.keys(lambda w: "first") == ["b"]

    def test_an_infinite_one_is_the_last(self):
        assert self.keys(lambda w: float("inf") if w.work_s > 0.5 else 0.0) == ["b"]

    def test_priority_goes_before_any_key(self):
        classes = {"rt": SloClass("rt", priority=Priority.REALTIME)}
        deck = pair(order=self.Order(lambda w: w.work_s), classes=classes)
        deck.ask("busy", 1000)
        deck.ask("a", 10)
        deck.ask("b", 900, slo_class="rt")
        deck.prefilled("busy")
        assert went(deck, "ab") == ["b"]


class TestHeads:
    def test_whose_work_has_shrunk_goes_before_shorter_ones(self):
        deck = pair()
        deck.ask("first", 1280, block_hashes=tuple(range(10)))
        deck.ask("twin", 1290, block_hashes=tuple(range(10)))
        deck.ask("warmer", 1300, block_hashes=tuple(range(20, 30)))
        deck.ask("short", 300)
        deck.prefilled("first")
        assert went(deck, ("twin", "short")) == ["twin"], "10 of its tokens are not cached"

    def test_arrival_order_holds_where_nothing_is_promised(self):
        deck = pair(n=2, order=Fcfs())
        names = []
        for i in range(40):
            deck.at(0.01 * i)
            deck.ask(f"r{i}", 50 + 997 * i % 400)
            names.append(f"r{i}")
        done = 0
        while len(went(deck, names)) < len(names):
            assert went(deck, names) == names[: len(went(deck, names))]
            deck.prefilled(names[done])
            done += 1

    def test_no_more_than_so_many_are_looked_at(self):
        deck = Deck([*prefills("p0"), *decodes("d0", total=10_000)], order=Fcfs(), candidates=3)
        deck.ask("busy", 5000)
        deck.first("busy")
        for i in range(3):
            deck.ask(f"large{i}", 6000, arrived_s=float(i))
        deck.ask("small", 100, arrived_s=9.0)
        assert deck.decision("small") == "wait"
        deck.cancel("large2")
        deck.observe()
        assert deck.decision("small") == "->p0/d0"


class TestBatch:
    def test_one_that_belongs_elsewhere_lets_the_next_go(self):
        deck = pair(n=3, classes=PROMISES, batch_reserve=0)
        deck.ask("warm", 2560, block_hashes=tuple(range(20)), slo_class="bulk")
        deck.prefilled("warm")
        deck.ask("again", 256, block_hashes=(0, 1), slo_class="bulk")
        deck.ask("follows", 2600, block_hashes=tuple(range(20)), slo_class="bulk")
        deck.ask("other", 500, slo_class="bulk")
        assert deck.decision("follows") == "wait"
        assert deck.decision("other") != "wait"

    @pytest.mark.parametrize(("reserve", "most"), [(1, 3), (2, 2), (9, 1), (0, 4)])
    def test_it_leaves_the_reserve_and_never_all_while_others_come(self, reserve, most):
        deck = pair(n=4, classes=PROMISES, batch_reserve=reserve)
        deck.ask("earlier", 10, slo_class="chat")
        deck.prefilled("earlier")
        names = [f"b{i}" for i in range(6)]
        for name in names:
            deck.ask(name, 1000, slo_class="bulk")
        assert len(went(deck, names)) == most
        deck.at(29.0)
        assert len(went(deck, names)) == most
        deck.at(31.0)
        assert len(went(deck, names)) == 4, "nobody else has come for half a minute"


class TestUnits:
    def test_each_member_is_priced_with_its_promise(self):
        deck = pair(unit_tokens=1000, classes={"chat": SloClass("chat", ttft=Target(0.5))})
        deck.ask("busy", 200)
        deck.ask("a", 300, slo_class="chat")
        deck.ask("b", 310, slo_class="chat")
        deck.at(0.15)
        deck.prefilled("busy")
        assert went(deck, "ab") == ["a", "b"]

    def test_a_long_one_is_no_unit(self):
        deck = pair(unit_tokens=500)
        deck.ask("busy", 1000)
        deck.ask("a", 600)
        deck.ask("b", 650)
        deck.prefilled("busy")
        assert went(deck, "ab") == ["a"]

    def test_what_is_cached_takes_no_place_in_it(self):
        deck = pair(unit_tokens=300)
        deck.ask("warm", 1280, block_hashes=tuple(range(10)))
        deck.ask("a", 100)
        deck.ask("b", 1380, block_hashes=tuple(range(10)))
        deck.prefilled("warm")
        assert went(deck, "ab") == ["a", "b"]
