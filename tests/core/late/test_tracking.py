"""Requests on their way: hand-offs that are held and given up, polls, and what reports free."""

from late import Deck, decodes, inf, prefills, unified

from orchestrator.core.contracts import Bind, Spent
from orchestrator.core.late.tracking import DEFAULT_LEASE_S, HOLD_SHARE
from orchestrator.core.types import End, Load

FULL = Load(0.0, running=1, kv_used_tokens=9900, kv_total_tokens=10_000)
EMPTY = Load(1.0, kv_used_tokens=0, kv_total_tokens=10_000)


def held(names="a", **facts):
    """Finished prefills that no decode side has room for."""
    n = len(names)
    deck = Deck(
        [*prefills(*(f"p{i}" for i in range(n)), late_decode=True, **facts), *decodes("d0", total=90_000)]
    )
    for name in names:
        deck.ask(name, 5000)
    deck.change("d0", load=FULL)
    for name in names:
        deck.prefilled(name)
    assert all(len(deck.made[name]) == 1 for name in names)
    return deck


class TestHeld:
    def test_the_oldest_is_bound_first_when_there_is_room(self):
        deck = held("ab")
        deck.change("d0", load=Load(1.0, running=1, kv_used_tokens=4000, kv_total_tokens=10_000))
        assert [isinstance(deck.made[n][-1], Bind) for n in "ab"] == [True, False]
        deck.finish("a")
        assert isinstance(deck.made["b"][-1], Bind)

    def test_it_is_given_up_at_half_its_lease(self):
        deck = held(lease_s=8)
        assert deck.scheduler.due_s() == 4.0
        deck.at(4.0)
        assert isinstance(deck.made["a"][-1], Spent)
        assert deck.scheduler.due_s() is None

    def test_or_at_half_the_usual_one_where_none_is_told(self):
        assert held(lease_s="soon").scheduler.due_s() == HOLD_SHARE * DEFAULT_LEASE_S

    def test_one_that_ended_meanwhile_is_not(self):
        deck = held()
        deck.finish("a", End.CANCELLED)
        assert deck.scheduler.due_s() is None
        deck.at(100.0)
        assert len(deck.made["a"]) == 1

    def test_nor_one_that_was_bound(self):
        deck = held()
        deck.change("d0", load=EMPTY)
        deck.at(100.0)
        assert [type(d).__name__ for d in deck.made["a"]] == ["Assign", "Bind"]

    def test_one_given_up_is_not_bound_afterwards(self):
        deck = held()
        deck.at(16.0)
        deck.change("d0", load=EMPTY)
        assert isinstance(deck.made["a"][-1], Spent)


class TestPolls:
    def deck(self, *names):
        return Deck([*prefills(*names, prefill_answers="transferred"), *decodes("d0")])

    def test_an_endpoint_is_asked_when_it_should_be_done_and_less_and_less_often(self):
        deck = self.deck("p0")
        deck.ask("a", 1000)
        deck.at(10.0)
        assert 6 <= len(deck.polls) <= 16
        deck.first("a")
        asked = len(deck.polls)
        deck.at(100.0)
        assert len(deck.polls) == asked

    def test_only_the_oldest_prompts_are_done_if_some_are_left(self):
        deck = Deck([*prefills("p0", dp_size=3, prefill_answers="transferred"), *decodes("d0")])
        for name in "abc":
            deck.ask(name, 1000)
        deck.at(1.1)
        deck.change("p0", load=Load(1.1, running=3, prefilling=1))
        for name in "def":
            deck.ask(name, 1000)
        assert [deck.decision(n) == "wait" for n in "def"] == [False, False, True]

    def test_a_report_from_before_the_predicted_end_frees_nothing(self):
        deck = self.deck("p0")
        deck.ask("a", 1000)
        deck.ask("b", 1000)
        deck.at(0.9)
        deck.change("p0", load=Load(0.9, running=0, prefilling=0))
        assert deck.decision("b") == "wait"

    def test_what_others_sent_makes_it_busy(self):
        deck = self.deck("p0", "p1")
        deck.ask("a", 1000)
        at = deck.route("a").prefill
        deck.prefilled("a")
        deck.change(at, load=Load(1.0, running=2, prefilling=2))
        assert deck.scheduler._board.stations[at].foreign_s > 0.0


class TestEnds:
    def test_an_answer_that_is_no_stream_frees_a_lone_endpoint_when_its_prompt_should_be_computed(self):
        deck = Deck(unified("u0"))
        deck.ask("a", 1000, stream=False)
        assert deck.scheduler.due_s() == 1.0
        deck.finish("a")
        deck.at(2.0)
        assert not deck.predictor.told

    def test_events_of_requests_that_are_unknown_change_nothing(self):
        deck = Deck([*prefills("p0"), *decodes("d0")])
        deck.ask("a", 1000)
        deck.finish("a")
        deck.prefilled("a")
        deck.first("a")
        assert deck.scheduler.due_s() is None
        assert not deck.scheduler._tracking.live

    def test_a_promise_ends_with_its_request(self):
        deck = Deck([*prefills("p0"), *decodes("d0")])
        deck.ask("a", 1000)
        side = deck.scheduler._board.sides["d0"]
        assert side.bounds == {}
        assert side.strictest_s == inf
