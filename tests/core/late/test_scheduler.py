"""The late scheduler through its port: one prefill at a time, who goes next, who waits, who is refused.

Covers `alone` too.
"""

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from late import PROMISES, Deck, Fcfs, decodes, prefills, unified

from orchestrator.core.contracts import Assign, Bind, Reject, Spent
from orchestrator.core.slo import Priority, SloClass, Target, Unattainable
from orchestrator.core.types import End, Inflight, Load, PathKind
from orchestrator.errors import AccountingError
from orchestrator.policy.build import build


def pair(**kwargs):
    return Deck([*prefills("p0"), *decodes("d0")], **kwargs)


class TestOnePrefillAtATime:
    def test_the_next_prompt_goes_when_the_last_is_computed(self):
        deck = pair()
        deck.ask("a", 1000)
        deck.ask("b", 1000)
        assert (deck.decision("a"), deck.decision("b")) == ("->p0/d0", "wait")
        deck.at(1.0)
        deck.prefilled("a")
        assert deck.decision("b") == "->p0/d0"

    def test_the_first_token_frees_it_too_where_prefill_has_not_answered(self):
        deck = pair()
        deck.ask("a", 1000)
        deck.ask("b", 1000)
        deck.first("a")
        assert deck.decision("b") == "->p0/d0"

    def test_a_leg_that_ends_early_frees_it(self):
        deck = pair()
        deck.ask("a", 1000)
        deck.ask("b", 1000)
        deck.finish("a", End.CANCELLED)
        assert deck.decision("b") == "->p0/d0"

    def test_every_data_parallel_rank_takes_one(self):
        deck = Deck([*prefills("p0", dp_size=2), *decodes("d0")])
        for name in "abc":
            deck.ask(name, 1000)
        assert [deck.decision(n) for n in "abc"] == ["->p0/d0", "->p0/d0", "wait"]

    def test_short_work_that_is_about_to_end_is_followed_ahead_of_its_end(self):
        deck = pair(hand_ahead_s=0.05)
        deck.ask("a", 400)
        deck.ask("b", 400)
        deck.at(0.349)
        assert deck.decision("b") == "wait"
        deck.at(0.36)
        assert deck.decision("b") == "->p0/d0"
        deck.ask("c", 10)
        deck.at(0.79)
        assert deck.decision("c") == "wait", "two are outstanding"

    def test_long_work_is_not_and_overdue_work_is_not(self):
        deck = pair(hand_ahead_s=0.05)
        deck.ask("a", 4000)
        deck.ask("b", 400)
        deck.at(9.0)
        assert deck.decision("b") == "wait"


class TestOrder:
    def test_the_shortest_uncached_prefill_goes_first(self):
        deck = pair()
        deck.ask("busy", 1000)
        deck.ask("long", 3000)
        deck.ask("short", 100)
        deck.prefilled("busy")
        assert (deck.decision("short"), deck.decision("long")) == ("->p0/d0", "wait")

    @pytest.mark.parametrize("order", [Fcfs(), build("default").order.policy])
    def test_without_classes_nothing_is_hopeless_and_an_order_of_arrival_is_kept(self, order):
        deck = pair(order=order)
        deck.ask("busy", 1000)
        deck.at(0.1)
        deck.ask("long", 3000)
        deck.at(0.2)
        deck.ask("short", 100)
        deck.at(500.0)
        deck.prefilled("busy")
        assert (deck.decision("long"), deck.decision("short")) == ("->p0/d0", "wait")

    def test_what_is_cached_counts_nothing(self):
        deck = pair()
        deck.ask("first", 1280, block_hashes=tuple(range(10)))
        deck.ask("again", 1290, block_hashes=tuple(range(10)))
        deck.ask("other", 500)
        deck.prefilled("first")
        assert deck.decision("again") == "->p0/d0"

    def test_real_time_goes_before_shorter_work(self):
        classes = {
            "rt": SloClass("rt", ttft=Target(50.0), priority=Priority.REALTIME),
            "chat": SloClass("chat", ttft=Target(50.0)),
        }
        deck = pair(classes=classes)
        deck.ask("busy", 1000, slo_class="chat")
        deck.ask("short", 100, slo_class="chat")
        deck.ask("urgent", 3000, slo_class="rt")
        deck.prefilled("busy")
        assert deck.decision("urgent") == "->p0/d0"

    def test_an_order_that_fails_is_passed_over(self):
        class Broken:
            def key(self, waiting):
                raise RuntimeError("no")

        deck = pair(order=Broken())
        deck.ask("busy", 1000)
        deck.ask("long", 3000)
        deck.ask("short", 100)
        deck.prefilled("busy")
        assert deck.decision("short") == "->p0/d0"


class TestPromises:
    def test_what_cannot_be_on_time_any_more_is_refused_at_its_latest_start(self):
        deck = pair(classes=PROMISES)
        deck.ask("busy", 1900, slo_class="chat")
        deck.ask("late", 500, slo_class="chat")
        deck.at(1.47)
        assert deck.decision("late") == "wait"
        deck.at(1.49)
        assert deck.decision("late") == "no:slo-unreachable"
        reject = deck.made["late"][0]
        assert isinstance(reject, Reject)
        assert (reject.http_status, reject.retry_after_s is not None) == (429, True)
        assert "within 2.00 s" in reject.message
        assert reject.explain is not None
        (choice,) = reject.explain()
        assert (choice.chosen, [one.endpoint for one in choice.scored]) == ("", ["p0"])
        assert choice.scored[0].parts["late"] > 0

    def test_what_never_could_be_is_refused_at_once(self):
        deck = pair(classes=PROMISES)
        deck.ask("huge", 5000, slo_class="chat")
        assert deck.decision("huge") == "no:slo-unreachable"

    def test_a_promise_that_grows_with_the_prompt(self):
        deck = pair(classes={"chat": SloClass("chat", ttft=Target(1.5, per_cold_prefill=2.0))})
        deck.ask("huge", 5000, slo_class="chat")
        assert deck.decision("huge") == "->p0/d0"

    def test_a_class_may_queue_what_is_late_behind_all_that_is_on_time(self):
        chat = SloClass("chat", ttft=Target(2.0), unattainable=Unattainable.QUEUE, max_wait_s=60.0)
        deck = pair(classes={"chat": chat})
        deck.ask("busy", 1900, slo_class="chat")
        deck.ask("late", 500, slo_class="chat")
        deck.at(1.8)
        deck.ask("fresh", 600, slo_class="chat")
        deck.prefilled("busy")
        assert (deck.decision("fresh"), deck.decision("late")) == ("->p0/d0", "wait")
        deck.at(2.4)
        deck.prefilled("fresh")
        assert deck.decision("late") == "->p0/d0"

    def test_but_not_longer_than_it_may_wait(self):
        chat = SloClass("chat", ttft=Target(2.0), unattainable=Unattainable.QUEUE, max_wait_s=60.0)
        deck = pair(classes={"chat": chat})
        deck.ask("busy", 1900, slo_class="chat")
        deck.ask("late", 500, slo_class="chat")
        deck.at(59.9)
        assert deck.decision("late") == "wait"
        deck.at(60.1)
        assert deck.decision("late") == "no:queue-timeout"

    def test_best_effort_keeps_its_turn(self):
        chat = SloClass("chat", ttft=Target(2.0), unattainable=Unattainable.BEST_EFFORT)
        deck = pair(classes={"chat": chat})
        deck.ask("busy", 1900, slo_class="chat")
        deck.ask("late", 500, slo_class="chat")
        deck.at(1.8)
        deck.ask("fresh", 600, slo_class="chat")
        deck.prefilled("busy")
        assert deck.decision("late") == "->p0/d0"

    @pytest.mark.parametrize("profile", ["slo", "slo-edf", "slo-shortest"])
    def test_best_effort_that_is_late_goes_behind_whoever_can_be_on_time(self, profile):
        chat = SloClass("chat", ttft=Target(2.0), unattainable=Unattainable.BEST_EFFORT)
        deck = pair(classes={"chat": chat}, order=build(profile).order.policy)
        deck.ask("busy", 1900, slo_class="chat")
        for name in ("late", "later"):
            deck.ask(name, 500, slo_class="chat")
        deck.at(1.8)
        deck.ask("fresh", 600, slo_class="chat")
        deck.prefilled("busy")
        assert deck.decision("fresh") == "->p0/d0"
        deck.prefilled("fresh")
        assert (deck.decision("late"), deck.decision("later")) == ("->p0/d0", "wait")

    def test_a_reserved_share_is_served_beside_shorter_work(self):
        classes = {
            "chat": SloClass("chat", ttft=Target(100.0)),
            "long": SloClass("long", ttft=Target(100.0), reserve=0.5),
        }
        deck = pair(classes=classes)
        deck.ask("busy", 3000, slo_class="chat")
        deck.ask("long", 2000, slo_class="long")
        deck.ask("s1", 500, slo_class="chat")
        deck.at(3.0)
        deck.prefilled("busy")
        deck.ask("s2", 500, slo_class="chat")
        assert deck.decision("s1") == "->p0/d0", "1.5 s saved, 2 s needed"
        deck.at(4.1)
        deck.prefilled("s1")
        assert (deck.decision("long"), deck.decision("s2")) == ("->p0/d0", "wait")


class TestBatch:
    def test_it_fills_gaps_and_leaves_one_endpoint_free(self):
        deck = Deck([*prefills("p0", "p1"), *decodes("d0")], classes=PROMISES)
        deck.ask("earlier", 100, slo_class="chat")
        deck.prefilled("earlier")
        for name in ("b1", "b2"):
            deck.ask(name, 1000, slo_class="bulk")
        assert [deck.decision(n) for n in ("b1", "b2")].count("wait") == 1
        deck.ask("chat", 1000, slo_class="chat")
        assert deck.decision("chat").startswith("->")

    def test_where_nothing_else_comes_it_takes_all(self):
        deck = Deck([*prefills("p0", "p1"), *decodes("d0")], classes=PROMISES)
        for name in ("b1", "b2"):
            deck.ask(name, 1000, slo_class="bulk")
        assert [deck.decision(n) for n in ("b1", "b2")].count("wait") == 0

    def test_a_lone_endpoint_takes_it(self):
        deck = pair(classes=PROMISES)
        deck.ask("b1", 1000, slo_class="bulk")
        assert deck.decision("b1") == "->p0/d0"


class TestWarm:
    def deck(self, **kwargs):
        deck = Deck([*prefills("p0", "p1"), *decodes("d0")], **kwargs)
        deck.ask("first", 1280, block_hashes=tuple(range(10)))
        deck.prefilled("first")
        deck.warm = deck.route("first").prefill
        deck.cold = {"p0": "p1", "p1": "p0"}[deck.warm]
        return deck

    def test_a_request_waits_for_the_endpoint_that_holds_its_prefix(self):
        deck = self.deck()
        deck.ask("busy", 128, block_hashes=(0,))
        assert deck.route("busy").prefill == deck.warm
        deck.ask("again", 1300, block_hashes=tuple(range(10)))
        assert deck.decision("again") == "wait"
        deck.prefilled("busy")
        assert deck.route("again").prefill == deck.warm

    def test_but_not_where_computing_it_elsewhere_is_sooner(self):
        deck = self.deck()
        deck.ask("busy", 6000, block_hashes=(0,))
        assert deck.route("busy").prefill == deck.cold or deck.decision("busy") != "wait"
        deck.ask("again", 200, block_hashes=(0,))
        assert deck.decision("again") != "wait"

    def test_those_who_wait_for_it_count_those_who_wait_before_them(self):
        deck = self.deck()
        deck.ask("busy", 1200, block_hashes=tuple(range(10)))
        names = [f"w{i}" for i in range(20)]
        for name in names:
            deck.ask(name, 1500, block_hashes=tuple(range(10)))
        went = [n for n in names if deck.decision(n) != "wait"]
        assert went, "the line for the warm endpoint grew longer than a cold prefill takes"

    def test_it_may_be_turned_off(self):
        deck = self.deck(wait_for_warm=False)
        deck.ask("busy", 128, block_hashes=(0,))
        deck.ask("again", 1300, block_hashes=tuple(range(10)))
        assert deck.route("again").prefill == deck.cold


class TestDecodeSide:
    def test_without_room_to_decode_nothing_is_prefilled(self):
        deck = Deck([*prefills("p0"), *decodes("d0", total=10_000)])
        deck.ask("a", 6000)
        deck.prefilled("a")
        deck.first("a")
        deck.ask("b", 6000)
        assert deck.decision("b") == "wait"
        deck.finish("a")
        assert deck.decision("b") == "->p0/d0"

    def test_a_smaller_request_that_fits_goes_meanwhile(self):
        deck = Deck([*prefills("p0"), *decodes("d0", total=10_000)], order=Fcfs())
        deck.ask("a", 6000)
        deck.first("a")
        deck.ask("b", 6000)
        deck.at(0.1)
        deck.ask("c", 1000)
        assert (deck.decision("b"), deck.decision("c")) == ("wait", "->p0/d0")

    def test_the_one_with_the_shortest_step_is_taken(self):
        deck = Deck([*prefills("p0", "p1"), *decodes("d0", used=500_000), *decodes("d1")])
        deck.ask("a", 1000)
        assert deck.route("a").decode == "d1"

    def test_a_gap_promised_is_kept_for_those_who_have_it(self):
        tight = SloClass("tight", itl=Target(0.0121))
        deck = Deck([*prefills("p0", "p1"), *decodes("d0")], classes={"tight": tight})
        deck.ask("a", 100, slo_class="tight")
        deck.prefilled("a")
        deck.first("a")
        deck.ask("b", 100)
        assert deck.decision("b") == "wait", "a second stream makes the step 12.2 ms and more"
        deck.finish("a")
        assert deck.decision("b").startswith("->")

    def test_one_to_avoid_is_used_only_where_there_is_no_other(self):
        deck = Deck([*prefills("p0", "p1"), *decodes("d0", "d1")])
        deck.ask("a", 100, avoid=("p0", "d0"))
        assert deck.decision("a") == "->p1/d1"
        only = pair()
        only.ask("a", 100, avoid=("p0", "d0"))
        assert only.decision("a") == "->p0/d0"


class TestLateBinding:
    def deck(self, *, total=10_000):
        facts = {"late_decode": True, "lease_s": 30}
        return Deck([*prefills("p0", **facts), *decodes("d0", "d1", total=total)])

    def test_the_decode_side_is_named_when_prefill_is_done(self):
        deck = self.deck()
        deck.ask("a", 1000)
        (assign,) = deck.made["a"]
        assert isinstance(assign, Assign)
        assert assign.provisional
        deck.prefilled("a")
        bind = deck.made["a"][-1]
        assert isinstance(bind, Bind)
        assert bind.route.prefill == "p0"
        assert deck.scheduler.ledger.inflight(bind.route.decode).kv_tokens == 1100

    def test_it_is_held_until_one_has_room(self):
        deck = self.deck()
        deck.ask("a", 6000)
        deck.ask("b", 6000)
        deck.prefilled("a")
        deck.change("d1", load=Load(0.0, kv_used_tokens=9000, kv_total_tokens=10_000))
        deck.prefilled("b") if deck.decision("b") != "wait" else None
        deck.finish("a")
        assert deck.decision("b").startswith("->")

    def test_never_past_half_the_lease(self):
        deck = self.deck()
        deck.ask("a", 6000)
        full = Load(0.0, running=1, kv_used_tokens=9000, kv_total_tokens=10_000)
        deck.change("d0", load=full)
        deck.change("d1", load=full)
        deck.at(6.0)
        deck.prefilled("a")
        assert len(deck.made["a"]) == 1
        deck.at(20.9)
        assert len(deck.made["a"]) == 1
        deck.at(21.1)
        assert isinstance(deck.made["a"][-1], Spent)
        deck.finish("a", End.FAILED)
        assert deck.scheduler.ledger.inflight("p0") == Inflight()
        deck.ask("again", 6000)
        assert deck.decision("again") == "wait"

    def test_what_is_held_is_lost_with_the_process_that_computed_it(self):
        deck = self.deck()
        deck.ask("a", 6000)
        full = Load(0.0, running=1, kv_used_tokens=9000, kv_total_tokens=10_000)
        deck.observe(deck.endpoints[0], *(replace(e, load=full) for e in deck.endpoints[1:]))
        deck.prefilled("a")
        deck.change("p0", ready=False)
        assert len(deck.made["a"]) == 1
        deck.change("p0", ready=True, incarnation="2")
        spent = deck.made["a"][-1]
        assert isinstance(spent, Spent)
        assert spent.reason == "handoff-lost"
        deck.finish("a", End.FAILED)
        deck.at(99.0)
        assert deck.made["a"][-1] is spent

    def test_what_is_prefilled_and_not_bound_counts_against_the_room_there_is(self):
        deck = self.deck(total=7000)
        facts = {"late_decode": True}
        deck.observe(*prefills("p0", "p1", "p2", **facts), *decodes("d0", total=7000))
        for name in "ab":
            deck.ask(name, 4000)
        assert sorted(deck.decision(n)[:2] for n in "ab") == ["->", "wa"]


class TestAlone:
    def test_a_unified_endpoint_without_streams_beats_a_busy_pair(self):
        deck = Deck([*prefills("p0"), *decodes("d0"), *unified("u0")])
        deck.ask("a", 2000)
        deck.ask("b", 2000)
        assert {deck.decision("a"), deck.decision("b")} == {"->u0", "->p0/d0"}

    def test_streams_that_would_wait_have_a_price(self):
        deck = Deck([*prefills("p0"), *decodes("d0"), *unified("u0")])
        deck.ask("a", 2000)
        assert deck.decision("a") == "->u0", "no hand-off"
        deck.first("a")
        deck.ask("b", 2000)
        assert deck.decision("b") == "->p0/d0"

    def test_a_gap_promised_there_is_not_broken_by_a_prefill(self):
        tight = SloClass("tight", itl=Target(0.05))
        deck = Deck([*unified("u0")], classes={"tight": tight})
        deck.ask("a", 100, slo_class="tight")
        deck.first("a")
        deck.ask("b", 2000)
        assert deck.decision("b") == "wait"
        deck.finish("a")
        assert deck.decision("b") == "->u0"

    def test_case_38_decode_does_its_own_prefill_only_with_headroom(self):
        ends = [*prefills("p0"), *decodes("d0", total=10_000)]
        ends[1].facts = {"may_prefill": True}
        deck = Deck(ends)
        deck.ask("a", 4000)
        deck.first("a")
        deck.ask("b", 9000)
        assert deck.decision("b") == "wait"

    def test_a_shared_prefix_takes_its_memory_once(self):
        load = Load(0.0, kv_total_tokens=12_000)
        deck = Deck([replace(unified("u0")[0], load=load)])
        for name in "abc":
            deck.ask(name, 7 * 1280 + 100, block_hashes=tuple(range(70)))
            if deck.decision(name) == "->u0":
                deck.first(name)
        assert [deck.decision(name) for name in "abc"] == ["->u0"] * 3


class TestUnits:
    def test_short_prompts_go_together_up_to_an_efficient_chunk(self):
        deck = pair(unit_tokens=500)
        deck.ask("busy", 1000)
        for i in range(7):
            deck.ask(f"s{i}", 100)
        deck.prefilled("busy")
        assert [deck.decision(f"s{i}") for i in range(7)] == ["->p0/d0"] * 5 + ["wait"] * 2
        for i in range(4):
            deck.prefilled(f"s{i}")
        assert deck.decision("s5") == "wait"
        deck.prefilled("s4")
        assert deck.decision("s6") == "->p0/d0"


class TestRefusals:
    def test_nothing_ready_is_503(self):
        deck = Deck([])
        deck.ask("a", 100)
        (reject,) = deck.made["a"]
        assert isinstance(reject, Reject)
        assert reject.http_status == 503

    def test_one_whose_endpoint_failed_waits_for_another_with_those_who_waited(self):
        deck = pair()
        deck.ask("sent", 1000)
        deck.ask("waits", 1000)
        deck.finish("sent", End.FAILED, output_tokens=None)
        deck.change("p0", ready=False)
        deck.finish("waits", End.FAILED, output_tokens=None)
        deck.ask("new", 1000)
        deck.ask("again", 1000, avoid=("p0",), slo_class="chat")
        assert [deck.decision(n) for n in ("new", "again")] == ["no:no-capacity", "wait"]
        deck.change("p0", ready=True, incarnation="2")
        assert deck.decision("again") == "->p0/d0"
        deck.change("p0", ready=False)
        deck.ask("last", 1000, avoid=("p0",))
        deck.at(601.0)
        assert deck.decision("last") == "no:queue-timeout"

    def test_a_full_queue_is_429(self):
        deck = pair(max_queue=2)
        for name in "abcd":
            deck.ask(name, 1000)
        assert [deck.decision(n) for n in "abcd"] == ["->p0/d0", "wait", "wait", "no:queue-full"]

    def test_a_wait_without_a_promise_ends_too(self):
        deck = pair()
        deck.ask("busy", 1000)
        deck.ask("a", 1000)
        deck.at(601.0)
        assert deck.decision("a") == "no:queue-timeout"

    def test_no_class_may_wait_longer_than_anybody(self):
        lazy = SloClass("lazy", unattainable=Unattainable.QUEUE, max_wait_s=9999.0)
        deck = pair(classes={"lazy": lazy})
        deck.ask("busy", 1000)
        deck.ask("a", 1000, slo_class="lazy")
        deck.at(601.0)
        assert deck.decision("a") == "no:queue-timeout"

    def test_submitted_twice_is_an_error(self):
        deck = pair()
        deck.ask("a", 1000)
        deck.ask("b", 1000)
        for name in "ab":
            with pytest.raises(AccountingError):
                deck.scheduler.submit(deck.views[name], 0.0)

    def test_who_left_is_forgotten(self):
        deck = pair()
        deck.ask("a", 1000)
        deck.ask("b", 1000)
        deck.cancel("b")
        deck.prefilled("a")
        assert deck.decision("b") == "wait"
        assert deck.scheduler.waiting == 0


class TestCases:
    """What goes wrong where everybody goes by the same report or the same cache."""

    NAMES = ("p0", "p1", "p2", "p3")

    def test_case_31_a_miss_goes_to_who_is_free_and_a_hit_does_not_wait_for_ever(self):
        deck = Deck([*prefills(*self.NAMES), *decodes("d0")])
        shared = tuple(range(10))
        deck.ask("warm", 1290, block_hashes=shared)
        deck.prefilled("warm")
        holder = deck.route("warm").prefill
        deck.ask("long", 9000, block_hashes=shared)
        assert deck.route("long").prefill == holder, "it is free, and holds the prefix"
        deck.ask("hit", 2000, block_hashes=shared)
        for i in range(2):
            deck.ask(f"miss{i}", 2000, block_hashes=(99 + i,))
        went = [deck.route(name).prefill for name in ("long", "hit", "miss0", "miss1")]
        assert sorted(went) == list(self.NAMES)

    def test_case_33_a_burst_between_two_reports_spreads(self):
        deck = Deck([*prefills(*self.NAMES), *decodes("d0", "d1")])
        for i in range(5):
            deck.ask(f"r{i}", 1000)
        assert sorted(deck.route(f"r{i}").prefill for i in range(4)) == list(self.NAMES)
        assert sorted(deck.route(f"r{i}").decode for i in range(4)) == ["d0", "d0", "d1", "d1"]
        assert deck.decision("r4") == "wait"


class TestMedia:
    """Each takes 0.3 s before the prompt is computed."""

    def test_they_are_a_stage_of_the_prediction_and_of_the_price(self):
        deck = pair(classes=PROMISES)
        deck.ask("a", 500, slo_class="chat", media=2)
        (assign,) = deck.made["a"]
        assert (assign.predicted.encode_s, assign.predicted.prefill_s) == pytest.approx((0.6, 0.5))
        assert assign.predicted.ttft_s == pytest.approx(1.1 + assign.predicted.handoff_s)
        assert assign.admitted.encode_s == pytest.approx(0.6)
        (scored,) = assign.explain()[0].scored
        assert (scored.parts["encode"], scored.parts["prefill"]) == pytest.approx((0.6, 0.5))

    def test_an_endpoint_is_busy_with_them_too(self):
        deck = pair()
        deck.ask("a", 500, media=2)
        deck.ask("b", 500)
        assert deck.scheduler._board.stations["p0"].wait_s(0.0) == pytest.approx(1.1)

    def test_one_that_could_be_on_time_but_for_them_is_refused(self):
        deck = pair(classes=PROMISES)
        deck.ask("plain", 900, slo_class="chat")
        deck.ask("many", 900, slo_class="chat", media=9)
        assert deck.decision("plain") == "->p0/d0"
        assert deck.decision("many") == "no:slo-unreachable"

    def test_what_they_took_is_told_to_the_predictor(self):
        deck = pair()
        deck.ask("a", 500, media=2)
        deck.prefilled("a")
        deck.first("a")
        assert deck.predictor.told[0].media == 2


class TestSpare:
    def deck(self, n=8, **kwargs):
        ends = [*prefills(*(f"p{i}" for i in range(n))), *decodes("d0")]
        classes = {"chat": SloClass("chat", ttft=Target(3.0)), "easy": SloClass("easy", ttft=Target(90.0))}
        return Deck(ends, classes=classes, **kwargs)

    def test_long_prefills_leave_an_endpoint_to_short_ones_while_such_come(self):
        deck = self.deck()
        deck.ask("short", 100, slo_class="chat")
        deck.prefilled("short")
        for i in range(8):
            deck.ask(f"long{i}", 4000, slo_class="easy")
        assert [deck.decision(f"long{i}") for i in range(8)].count("wait") == 1
        deck.ask("next", 100, slo_class="chat")
        assert deck.decision("next").startswith("->")

    def test_where_no_short_ones_come_they_take_all(self):
        deck = self.deck()
        for i in range(8):
            deck.ask(f"long{i}", 4000, slo_class="easy")
        assert [deck.decision(f"long{i}") for i in range(8)].count("wait") == 0

    def test_nor_for_short_ones_without_a_promise(self):
        deck = self.deck()
        deck.ask("short", 100)
        deck.prefilled("short")
        for i in range(8):
            deck.ask(f"long{i}", 4000, slo_class="easy")
        assert [deck.decision(f"long{i}") for i in range(8)].count("wait") == 0

    def test_a_small_fleet_keeps_none(self):
        deck = self.deck(n=2)
        deck.ask("short", 100, slo_class="chat")
        deck.prefilled("short")
        for i in range(2):
            deck.ask(f"long{i}", 4000, slo_class="easy")
        assert [deck.decision(f"long{i}") for i in range(2)].count("wait") == 0

    def test_nor_for_short_ones_that_can_wait_until_it_is_over(self):
        deck = self.deck()
        deck.ask("short", 100, slo_class="easy")
        deck.prefilled("short")
        for i in range(8):
            deck.ask(f"long{i}", 4000, slo_class="easy")
        assert [deck.decision(f"long{i}") for i in range(8)].count("wait") == 0

    def test_who_could_wait_least_counts_for_half_a_minute(self):
        deck = self.deck()
        for name, slo_class in (("hurried", "chat"), ("patient", "easy")):
            deck.ask(name, 100, slo_class=slo_class)
            deck.prefilled(name)
        (lane,) = deck.scheduler._board.lanes.values()
        assert [short.slack_s for short in lane.shorts.values()] == pytest.approx([2.9] * 2, abs=0.05)
        deck.at(31.0)
        deck.ask("another", 100, slo_class="easy")
        assert [short.slack_s for short in lane.shorts.values()] == pytest.approx([89.9] * 2, abs=0.05)


class TestFleetChanges:
    def test_who_waits_goes_to_an_endpoint_that_joins(self):
        deck = pair()
        deck.ask("a", 1000)
        deck.ask("b", 1000)
        deck.observe(*prefills("p0", "p1"), *decodes("d0"))
        assert deck.decision("b") == "->p1/d0"

    def test_a_new_incarnation_is_free_and_cold(self):
        deck = pair()
        deck.ask("a", 1280, block_hashes=tuple(range(10)))
        deck.ask("b", 1290, block_hashes=tuple(range(10)))
        deck.change("p0", incarnation="2")
        assert deck.decision("b") == "->p0/d0"
        (assign,) = deck.made["b"]
        assert assign.predicted.cached_tokens == 0

    def test_one_that_answers_late_is_asked_and_believed(self):
        deck = Deck([*prefills("p0", prefill_answers="transferred"), *decodes("d0")])
        deck.ask("a", 1000)
        deck.ask("b", 1000)
        deck.at(1.01)
        assert not deck.polls
        deck.at(1.03)
        assert [poll.endpoint for poll in deck.polls] == ["p0"]
        deck.change("p0", load=Load(1.03, running=1, prefilling=0))
        assert deck.decision("b") == "->p0/d0"

    def test_a_tokenize_request_waits_for_nothing(self):
        deck = pair()
        deck.ask("a", 1000)
        deck.ask("t", 1000, path=PathKind.TOKENIZE)
        assert deck.decision("t").startswith("->")


class TestLearning:
    def test_the_predictor_is_told_of_first_tokens_and_ends(self):
        deck = pair()
        deck.ask("a", 1000)
        deck.at(1.1)
        deck.prefilled("a")
        deck.at(1.2)
        deck.first("a")
        deck.at(2.2)
        deck.finish("a", cached_tokens=128)
        (served,) = deck.predictor.told
        assert (served.prefill_s, served.cached_tokens, served.alone) == (1.1, 0, True)
        assert served.first_token_s == pytest.approx(1.2)
        assert served.admitted.prefill_s == served.dispatched.prefill_s == 1.0
        (decoded,) = deck.predictor.ended
        assert (decoded.tokens, decoded.complete) == (49, True)

    def test_an_answer_that_is_no_stream_teaches_by_what_is_seen_of_it(self):
        deck = pair()
        deck.ask("a", 1000, stream=False)
        deck.at(1.1)
        deck.prefilled("a")
        (served,) = deck.predictor.told
        assert served.prefill_s == 1.1
        assert served.first_token_s == pytest.approx(1.12), "with the hand-off as predicted"
        deck.at(3.1)
        deck.first("a")
        deck.finish("a")
        assert len(deck.predictor.told) == 1
        assert deck.predictor.ended[0].seconds == pytest.approx(1.98)

    def test_nor_does_one_that_is_no_stream_hold_up_a_unified_endpoint_to_its_end(self):
        deck = Deck(unified("u0"))
        deck.ask("a", 1000, stream=False)
        deck.ask("b", 1000, stream=False)
        deck.at(0.9)
        assert deck.decision("b") == "wait"
        deck.at(1.1)
        assert deck.decision("b") == "->u0"
        assert not deck.predictor.told

    def test_a_decision_can_be_explained(self):
        deck = Deck([*prefills("p0", "p1"), *decodes("d0")])
        deck.ask("a", 1000)
        choices = deck.made["a"][0].explain()
        assert [c.chosen for c in choices] == [deck.route("a").prefill, "d0"]
        assert choices[0].unit == "seconds"
        for scored in choices[0].scored:
            assert sum(scored.parts.values()) == pytest.approx(scored.total)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 11), st.integers(1, 4000)), max_size=80))
def test_whatever_happens_each_request_is_decided_once_and_nothing_stays_in_flight(events):
    facts = {"late_decode": True}
    ends = [*prefills("p0", **facts), *prefills("p1"), *decodes("d0", "d1", total=9000), *unified("u0")]
    deck = Deck(ends, classes=PROMISES, unit_tokens=300, hand_ahead_s=0.05)
    over = set()
    for what, who, tokens in events:
        name = f"r{who}"
        sent = name in deck.made and deck.decision(name).startswith("->") and name not in over
        if what == 0 and name not in deck.views:
            deck.ask(name, tokens, slo_class=(None, "chat", "bulk")[tokens % 3])
        elif what == 1 and sent and deck.route(name).prefill:
            deck.prefilled(name)
        elif what == 2 and sent:
            deck.first(name)
        elif what == 3 and sent:
            deck.finish(name, (End.COMPLETED, End.FAILED)[tokens % 2])
            over.add(name)
        elif what == 4 and name in deck.views and name not in deck.made:
            deck.cancel(name)
            over.add(name)
        elif what == 5:
            deck.at(deck.now_s + tokens / 1000)
        elif what == 6:
            deck.change(("p0", "d1", "u0")[tokens % 3], ready=bool(tokens % 2))
    deck.at(deck.now_s + 2000.0)
    for name in deck.views.keys() - over:
        assert name in deck.made, f"{name} was never decided"
        if not isinstance(deck.made[name][0], Reject):
            deck.finish(name)
        assert sum(isinstance(d, Assign | Reject) for d in deck.made[name]) == 1
    for end in ends:
        assert deck.scheduler.ledger.inflight(end.id) == Inflight()
    for lane in deck.scheduler._board.lanes.values():
        assert (lane.waiting, lane.unbound_tokens) == (0, 0)
    assert deck.scheduler.due_s() in (None, inf)
