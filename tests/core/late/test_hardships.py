"""The late scheduler where things go wrong: endpoints flap, requests fit nowhere, policies err."""

from math import inf

from hypothesis import given, settings
from hypothesis import strategies as st
from late import PROMISES, Deck, Fcfs, PutsOff, Shortest, decodes, prefills, unified

from orchestrator.core.choosing import Step
from orchestrator.core.contracts import Assign, Bind, Reject, Spent
from orchestrator.core.lateprofile import LateProfile, LateRole, LateSettings
from orchestrator.core.slo import Priority, SloClass, Target, Unattainable
from orchestrator.core.types import End, Inflight, Load, PathKind, Role
from orchestrator.policy.testing import make_endpoint


def pair(**kwargs):
    return Deck([*prefills("p0"), *decodes("d0")], **kwargs)


class TestFlapping:
    def test_who_waits_while_nothing_is_ready_goes_when_something_is(self):
        deck = pair()
        deck.ask("a", 1000)
        deck.ask("b", 1000)
        deck.change("p0", ready=False)
        deck.change("d0", ready=False)
        deck.at(10.0)
        deck.change("d0", ready=True)
        deck.prefilled("a")
        assert deck.decision("b") == "wait"
        deck.change("p0", ready=True)
        assert deck.decision("b") == "->p0/d0"

    def test_but_no_longer_than_it_may_wait(self):
        deck = pair(classes=PROMISES)
        for name in "abc":
            deck.ask(name, 500, slo_class="chat" if name == "c" else None)
        deck.change("p0", ready=False)
        deck.at(2.1)
        assert deck.decision("c") == "no:slo-unreachable"
        deck.at(599.0)
        assert deck.decision("b") == "wait"
        deck.at(601.0)
        assert deck.decision("b") == "no:queue-timeout"
        assert deck.scheduler.due_s() is None

    def test_a_request_under_way_frees_its_endpoint_in_the_lane_that_took_the_place_of_its_own(self):
        deck = Deck([*prefills("p0", "p1"), *decodes("d0")])
        for name in "abcd":
            deck.ask(name, 1000)
        on = {deck.route(n).prefill: n for n in "ab"}
        deck.change("p1", ready=False)
        deck.prefilled(on["p1"])
        assert [deck.decision(n) for n in "cd"] == ["wait", "wait"], "p1 gets nothing more"
        deck.prefilled(on["p0"])
        assert [deck.decision(n) for n in "cd"] == ["->p0/d0", "wait"]
        deck.change("p1", ready=True)
        assert deck.decision("d") == "->p1/d0"

    def test_nothing_is_decided_twice_when_lanes_are_rebuilt(self):
        deck = pair(classes=PROMISES)
        for i in range(6):
            deck.ask(f"r{i}", 300, slo_class="chat")
        for ready in (False, True) * 3:
            deck.change("p0", ready=ready)
            deck.at(deck.now_s + 0.1)
        deck.at(100.0)
        for i in range(1, 6):
            assert len(deck.made[f"r{i}"]) == 1
        assert deck.scheduler.waiting == 0

    def test_a_finished_prefill_that_is_held_gets_its_decode_side_after_a_rebuild(self):
        facts = {"late_decode": True, "lease_s": 30}
        full = Load(0.0, running=1, kv_used_tokens=9500, kv_total_tokens=10_000)
        deck = Deck([*prefills("p0", **facts), *decodes("d0", total=10_000)])
        deck.ask("a", 6000)
        deck.change("d0", load=full)
        deck.prefilled("a")
        assert len(deck.made["a"]) == 1
        deck.observe(*deck.endpoints, *prefills("p1", **facts))
        deck.change("d0", load=Load(1.0, kv_used_tokens=0, kv_total_tokens=10_000))
        assert isinstance(deck.made["a"][-1], Bind)

    def test_what_is_not_bound_yet_counts_in_the_lane_after_a_rebuild(self):
        facts = {"late_decode": True}
        deck = Deck([*prefills("p0", "p1", **facts), *decodes("d0", total=7000)])
        deck.ask("a", 4000)
        deck.observe(*deck.endpoints, *prefills("p2", **facts))
        deck.ask("b", 4000)
        assert deck.decision("b") == "wait"
        deck.finish("a", End.FAILED)
        assert deck.decision("b").startswith("->")

    def test_an_endpoint_that_left_and_came_back_owes_nothing(self):
        deck = Deck([*prefills("p0"), *decodes("d0", "d1")])
        deck.ask("a", 1000)
        before = deck.endpoints
        deck.observe(*before[1:])
        deck.observe(*before)
        deck.ask("b", 1000)
        assert deck.decision("b").startswith("->p0/")
        deck.prefilled("a")
        deck.finish("a")
        deck.ask("c", 1000)
        assert deck.decision("c") == "wait", "what the old p0 computed frees nothing of the new one"

    def test_a_reloaded_profile_knows_what_is_cached_since(self):
        deck = pair()
        for i in range(50):
            deck.ask(f"warm{i}", 200, block_hashes=(i,))
        deck.ask("big", 1280, block_hashes=tuple(range(100, 110)))
        deck.ask("twin", 1290, block_hashes=tuple(range(100, 110)))
        deck.ask("other", 800)
        deck.scheduler.profile = LateProfile(
            Step("order", Shortest()), settings=LateSettings(hand_ahead_s=0.0, unit_tokens=0)
        )
        for i in range(50):
            deck.prefilled(f"warm{i}")
        deck.prefilled("other")
        assert deck.decision("big") == "->p0/d0"
        deck.ask("middle", 300)
        deck.prefilled("big")
        assert (deck.decision("twin"), deck.decision("middle")) == ("->p0/d0", "wait"), "10 tokens are new"

    def test_a_reload_takes_a_new_hand_ahead(self):
        deck = pair()
        deck.ask("a", 400)
        deck.ask("b", 400)
        deck.scheduler.profile = LateProfile(
            Step("order", Shortest()), settings=LateSettings(hand_ahead_s=0.05, unit_tokens=0)
        )
        deck.at(0.36)
        assert deck.decision("b") == "->p0/d0"


class TestPools:
    def fleet(self):
        return [
            make_endpoint("p0", Role.PREFILL, pool="small"),
            make_endpoint("p1", Role.PREFILL, pool="big"),
            make_endpoint("d0", Role.DECODE, pool="decode"),
        ]

    def test_a_class_whose_pools_have_no_decode_side_is_told_so(self):
        classes = {"long": SloClass("long", pools=frozenset({"big"}))}
        deck = Deck(self.fleet(), classes=classes)
        deck.ask("a", 1000, slo_class="long")
        assert deck.decision("a") == "no:no-capacity"

    def test_requests_that_wait_for_their_pool_hold_up_no_others(self):
        classes = {"long": SloClass("long", pools=frozenset({"big", "decode"}))}
        deck = Deck(self.fleet(), classes=classes, order=Fcfs())
        deck.ask("free", 10)
        deck.ask("free2", 10)
        for i in range(40):
            deck.ask(f"long{i}", 1000, slo_class="long")
        deck.ask("chat", 500)
        by = {deck.route(n).prefill: n for n in ("free", "free2")}
        deck.prefilled(by["p0"])
        assert deck.decision("chat") == "->p0/d0"

    def test_classes_that_share_an_endpoint_take_turns_by_the_order(self):
        classes = {"long": SloClass("long", pools=frozenset({"big", "decode"}))}
        deck = Deck(self.fleet()[1:], classes=classes, order=Fcfs())
        deck.ask("busy", 1000)
        for i, slo in enumerate(("long", None, "long", None)):
            deck.at(0.1 * (i + 1))
            deck.ask(f"r{i}", 1000, slo_class=slo)
        order = []
        last = "busy"
        for _ in range(4):
            deck.prefilled(last)
            (last,) = (
                n for n in (f"r{i}" for i in range(4)) if n not in order and deck.decision(n) != "wait"
            )
            order.append(last)
        assert order == ["r0", "r1", "r2", "r3"]

    def test_kinds_that_share_an_endpoint_free_it_for_each_other(self):
        deck = Deck([*unified("u0"), *unified("u1")])
        deck.scheduler._board._serves = lambda path, e: path is PathKind.CHAT or e.id == "u0"
        deck.ask("chat", 1000)
        deck.ask("chat2", 1000)
        deck.ask("completion", 1000, path=PathKind.COMPLETION)
        deck.first(next(n for n in ("chat", "chat2") if deck.route(n).decode == "u0"))
        assert deck.decision("completion") == "->u0"

    def test_what_waits_in_pools_that_vanish_ends_in_time(self):
        classes = {"long": SloClass("long", pools=frozenset({"big", "decode"}), max_wait_s=20.0)}
        deck = Deck(self.fleet(), classes=classes)
        for i in range(3):
            deck.ask(f"long{i}", 1000, slo_class="long")
        deck.change("p1", ready=False)
        deck.ask("late", 1000, slo_class="long")
        assert deck.decision("late") == "no:no-capacity"
        deck.at(21.0)
        assert [deck.decision(f"long{i}") for i in range(3)] == ["->p1/d0"] + ["no:queue-timeout"] * 2


class TestMemory:
    def small(self, deck, name, tokens=1900):
        deck.ask(name, tokens)
        return name

    def test_a_request_larger_than_any_memory_goes_when_a_side_is_empty(self):
        deck = Deck([*prefills("p0"), *decodes("d0", total=10_000)])
        deck.ask("a", 1000)
        deck.first("a")
        deck.ask("huge", 50_000)
        assert deck.decision("huge") == "wait"
        deck.finish("a")
        assert deck.decision("huge") == "->p0/d0"

    def churn(self, deck, steps, tokens):
        """Small requests come and go, two of which are always there; True if `big` was sent meanwhile."""
        alive = ["s0", "s1"]
        for i in range(2, steps):
            deck.at(deck.now_s + 0.2)
            deck.ask(f"s{i}", tokens)
            first = alive.pop(0)
            deck.finish(first)
            alive.append(f"s{i}")
            for name in [n for n in (*alive, "big") if deck.decision(n) != "wait"]:
                deck.prefilled(name)
                deck.first(name)
            alive = [n for n in alive if deck.decision(n) != "wait"] + [
                n for n in alive if deck.decision(n) == "wait"
            ]
            if deck.decision("big") != "wait":
                return True
            if deck.decision(alive[0]) == "wait":
                return False
        return False

    def start(self, ends, big, **kwargs):
        deck = Deck(ends, order=Fcfs(), **kwargs)
        for name in ("s0", "s1"):
            deck.ask(name, 3000)
            deck.first(name)
        deck.at(0.1)
        deck.ask("big", big)
        assert deck.decision("big") == "wait"
        return deck

    def test_smaller_ones_overtake_a_request_without_room_for_a_second_and_no_longer(self):
        deck = self.start([*prefills("p0"), *decodes("d0", total=10_000)], 6000)
        deck.ask("s2", 3000)
        assert deck.decision("s2") == "->p0/d0", "there is room for it"
        deck.at(1.0)
        deck.finish("s0")
        deck.prefilled("s2")
        deck.ask("s3", 3000)
        assert deck.decision("s3") == "->p0/d0", "it has not been overtaken for a second yet"
        deck.prefilled("s3")
        deck.at(1.2)
        deck.finish("s1")
        deck.ask("s4", 3000)
        assert deck.decision("s4") == "wait", "the room is kept"
        deck.finish("s2")
        assert deck.decision("big") == "->p0/d0"
        deck.prefilled("big")
        deck.finish("s3")
        assert deck.decision("s4") == "->p0/d0"

    def test_room_that_is_kept_is_free_again_when_who_it_is_for_leaves(self):
        deck = self.start([*prefills("p0"), *decodes("d0", total=10_000)], 6000)
        deck.ask("s2", 1000)
        deck.prefilled("s2")
        deck.at(1.2)
        deck.ask("s3", 2000)
        deck.finish("s1")
        assert deck.decision("s3") == "wait"
        deck.cancel("big")
        assert deck.decision("s3") == "->p0/d0"

    def test_on_unified_endpoints_too(self):
        load = Load(0.0, kv_used_tokens=0, kv_total_tokens=10_000)
        deck = self.start([make_endpoint("u0", Role.UNIFIED, load=load)], 6000)
        assert self.churn(deck, 30, 3000)

    def test_one_larger_than_all_memory_is_not_overtaken_for_ever_either(self):
        deck = self.start([*prefills("p0"), *decodes("d0", "d1", total=10_000)], 60_000)
        deck.ask("s2", 1000)
        deck.at(1.5)
        deck.prefilled("s2")
        deck.ask("s3", 1000)
        for name in ("s0", "s1", "s2", "s3"):
            if deck.decision(name) != "wait":
                deck.finish(name)
        assert deck.decision("big").startswith("->p0/")

    def test_the_rest_of_the_fleet_goes_on_while_room_is_kept_on_one(self):
        deck = self.start([*prefills("p0"), *decodes("d0", "d1", total=10_000)], 9000)
        deck.ask("s2", 100)
        deck.prefilled("s2")
        deck.at(1.5)
        deck.ask("s3", 100)
        if deck.decision("s3") == "wait":
            deck.first("s2")
        assert deck.decision("s3").startswith("->p0/")


class TestAvoid:
    def test_a_retry_waits_for_another_endpoint_rather_than_go_back_to_the_one_that_failed(self):
        deck = Deck([*prefills("p0", "p1"), *decodes("d0", "d1")])
        deck.ask("busy", 5000)
        busy = deck.route("busy").prefill
        failed = {"p0": "p1", "p1": "p0"}[busy]
        deck.ask("again", 1000, avoid=(failed,))
        assert deck.decision("again") == "wait"
        deck.prefilled("busy")
        assert deck.route("again").prefill == busy

    def test_so_does_a_decode_side(self):
        deck = Deck([*prefills("p0"), *decodes("d0", total=10_000), *decodes("d1", total=10_000)])
        deck.ask("a", 9000)
        deck.prefilled("a")
        other = {"d0": "d1", "d1": "d0"}[deck.route("a").decode]
        deck.ask("again", 5000, avoid=(other,))
        assert deck.decision("again") == "wait"
        deck.finish("a")
        assert deck.route("again").decode != other


class TestPolicies:
    class Affinity:
        """Tenants have endpoints of their own."""

        def filter(self, request, candidates, context):
            return [e for e in candidates if request.tenant in (None, e.id)]

    class Sticky:
        unit = "seconds"

        def score(self, request, candidates, context):
            return [1e6 if e.id == "p1" else 0.0 for e in candidates]

    def deck(self, role, **kwargs):
        profile = LateProfile(
            Step("order", Fcfs()), prefill=role, settings=LateSettings(hand_ahead_s=0.0, unit_tokens=0)
        )
        return Deck([*prefills("p0", "p1"), *decodes("d0")], profile=profile, **kwargs)

    def test_those_whom_filters_leave_nowhere_to_go_hold_up_nobody(self):
        deck = self.deck(LateRole(filters=(Step("affinity", self.Affinity()),)))
        for i in range(40):
            deck.ask(f"t{i}", 1000, tenant="p9")
        deck.ask("other", 1000)
        assert deck.decision("other").startswith("->")
        deck.observe(*deck.endpoints, *prefills("p9"))
        assert deck.decision("t0") == "->p9/d0"
        deck.prefilled("t0")
        assert sum(deck.decision(f"t{i}") != "wait" for i in range(40)) == 2
        deck.at(700.0)
        assert all(deck.decision(f"t{i}") != "wait" for i in range(40))
        assert deck.scheduler.waiting == 0

    def test_a_scorer_with_enormous_seconds_is_obeyed_and_not_taken_for_lateness(self):
        deck = self.deck(LateRole(scorers=(Step("sticky", self.Sticky()),)), classes=PROMISES)
        deck.ask("a", 500, slo_class="chat")
        assert deck.decision("a") == "->p0/d0"
        deck.change("p0", ready=False)
        deck.ask("b", 500, slo_class="chat")
        assert deck.decision("b") == "->p1/d0"


class TestShedding:
    def test_of_classes_that_cannot_all_be_kept_the_lower_ones_are_refused_and_told_when_to_come_back(self):
        classes = {
            "rt": SloClass("rt", ttft=Target(3.5), priority=Priority.REALTIME),
            "chat": SloClass("chat", ttft=Target(3.5)),
        }
        deck = pair(classes=classes)
        deck.ask("busy", 1000)
        for name in ("chat0", "rt0", "chat1", "rt1", "chat2"):
            deck.ask(name, 1000, slo_class=name.rstrip("012"))
        for at_s, done in ((1.0, "busy"), (2.0, "rt0"), (3.0, "rt1")):
            deck.at(at_s)
            deck.prefilled(done)
        assert [deck.decision(f"rt{i}") for i in range(2)] == ["->p0/d0"] * 2
        for name in ("chat0", "chat1", "chat2"):
            (reject,) = deck.made[name]
            assert (reject.http_status, reject.reason) == (429, "slo-unreachable")
            assert reject.retry_after_s >= 1.0


class TestReserves:
    def test_a_share_that_was_used_is_used_up(self):
        classes = {"chat": SloClass("chat"), "long": SloClass("long", reserve=0.25)}
        deck = pair(classes=classes)
        deck.ask("first", 400, slo_class="chat")
        for i in range(100):
            deck.ask(f"chat{i}", 400, slo_class="chat")
            deck.ask(f"long{i}", 1200, slo_class="long")
        spent = {"chat": 0.0, "long": 0.0}
        running, tokens = "first", 400
        for _ in range(60):
            deck.at(deck.now_s + tokens / 1000)
            before = {n for n in deck.views if deck.decision(n) != "wait"}
            deck.prefilled(running)
            deck.finish(running)
            (running,) = {n for n in deck.views if deck.decision(n) != "wait"} - before
            tokens = deck.views[running].prompt_tokens
            spent[running.rstrip("0123456789")] += tokens
        assert 0.2 <= spent["long"] / sum(spent.values()) <= 0.3

    def test_several_classes_get_theirs(self):
        classes = {
            "chat": SloClass("chat"),
            "long": SloClass("long", reserve=0.2),
            "bulk": SloClass("bulk", reserve=0.2, priority=Priority.BATCH, max_wait_s=10_000),
        }
        deck = pair(classes=classes)
        deck.ask("first", 400, slo_class="chat")
        for i in range(120):
            deck.ask(f"chat{i}", 400, slo_class="chat")
            deck.ask(f"long{i}", 1200, slo_class="long")
            deck.ask(f"bulk{i}", 800, slo_class="bulk")
        spent = {"chat": 0.0, "long": 0.0, "bulk": 0.0}
        running, tokens = "first", 400
        for _ in range(90):
            deck.at(deck.now_s + tokens / 1000)
            before = {n for n in deck.views if deck.decision(n) != "wait"}
            deck.prefilled(running)
            deck.finish(running)
            (running,) = {n for n in deck.views if deck.decision(n) != "wait"} - before
            tokens = deck.views[running].prompt_tokens
            spent[running.rstrip("0123456789")] += tokens
        shares = {name: s / sum(spent.values()) for name, s in spent.items()}
        assert 0.13 <= shares["long"] <= 0.27
        assert 0.13 <= shares["bulk"] <= 0.27


class TestWarmWaits:
    def warm(self, **kwargs):
        deck = Deck([*prefills("p0", "p1"), *decodes("d0")], **kwargs)
        deck.ask("first", 1280, block_hashes=tuple(range(10)))
        deck.prefilled("first")
        warm = deck.route("first").prefill
        deck.ask("busy", 128, block_hashes=(0,))
        assert deck.route("busy").prefill == warm
        deck.ask("again", 1300, block_hashes=tuple(range(10)))
        assert deck.decision("again") == "wait"
        return deck, warm

    def test_an_endpoint_that_hangs_is_waited_for_no_longer_than_is_worth_it(self):
        deck, warm = self.warm()
        deck.at(0.5)
        assert deck.decision("again") == "wait"
        deck.at(20.0)
        assert deck.route("again").prefill != warm

    def test_who_is_overtaken_again_and_again_waits_no_longer_than_its_prefill_takes(self):
        deck, warm = self.warm()
        running = "busy"
        for i in range(50):
            deck.ask(f"s{i}", 128, block_hashes=(0,))
            deck.at(deck.now_s + 0.05)
            deck.prefilled(running)
            if deck.decision("again") != "wait":
                break
            running = f"s{i}"
            assert deck.route(running).prefill == warm
        assert 1.25 < deck.now_s < 1.5, "its prefill takes 1.3 s from nothing"
        assert deck.route("again").prefill != warm


class TestAnswers:
    def test_reports_out_of_order_free_nobody(self):
        deck = Deck([*prefills("p0", prefill_answers="transferred"), *decodes("d0")])
        deck.ask("a", 1000)
        deck.ask("b", 1000)
        deck.ask("c", 1000)
        deck.at(1.03)
        deck.change("p0", load=Load(1.03, running=1, prefilling=0))
        assert deck.decision("b") == "->p0/d0"
        deck.change("p0", load=Load(1.02, running=1, prefilling=0))
        deck.change("p0", load=Load(0.5, running=1, prefilling=1))
        assert deck.decision("c") == "wait"

    def test_an_old_report_says_nothing_of_what_others_send_now(self):
        deck = Deck([*prefills("p0", "p1", prefill_answers="transferred"), *decodes("d0")])
        deck.ask("a", 1000)
        at = deck.route("a").prefill
        deck.change(at, load=Load(0.5, running=1, prefilling=1))
        deck.prefilled("a")
        deck.observe()
        assert deck.scheduler._board.stations[at].foreign_s == 0.0

    def test_a_new_process_with_requests_under_way_keeps_no_books_of_the_old(self):
        deck = pair(classes={"tight": SloClass("tight", itl=Target(0.1))})
        deck.ask("a", 1000, slo_class="tight")
        deck.ask("b", 1000)
        deck.change("p0", incarnation="2")
        assert deck.decision("b") == "->p0/d0"
        deck.prefilled("a")
        deck.first("a")
        deck.ask("c", 1000)
        assert deck.decision("c") == "wait", "b still runs"
        deck.finish("a", End.FAILED)
        deck.finish("b")
        assert deck.decision("c") == "->p0/d0"
        deck.finish("c")
        for name in ("p0", "d0"):
            assert deck.scheduler.ledger.inflight(name) == Inflight()
        assert not deck.scheduler._board.sides["d0"].bounds

    def test_n_answers_need_room_for_each(self):
        deck = Deck([*prefills("p0"), *decodes("d0", total=2000)])
        deck.ask("a", 100)
        deck.first("a")
        deck.ask("many", 100, n=19)
        assert deck.decision("many") == "wait"
        deck.ask("few", 100, n=4)
        assert deck.decision("few") == "->p0/d0"

    def test_slots_are_handed_one_ahead_between_them(self):
        deck = Deck([*prefills("p0", dp_size=2), *decodes("d0")], hand_ahead_s=0.05)
        for name in "abcd":
            deck.ask(name, 100)
        assert [deck.decision(n) != "wait" for n in "abcd"] == [True, True, False, False]
        deck.at(0.2)
        assert [deck.decision(n) != "wait" for n in "abcd"] == [True, True, True, False]
        deck.prefilled("a")
        deck.prefilled("b")
        assert deck.decision("d") != "wait"


class TestBatchClasses:
    def test_one_that_rejects_is_refused_at_its_latest_start(self):
        bulk = SloClass("bulk", e2e=Target(5.0), priority=Priority.BATCH)
        deck = pair(classes={"bulk": bulk})
        deck.ask("busy", 4000)
        deck.ask("b", 1000, slo_class="bulk")
        deck.at(3.5)
        assert deck.decision("b") == "no:slo-unreachable"

    def test_one_that_queues_goes_late(self):
        bulk = SloClass("bulk", e2e=Target(5.0), priority=Priority.BATCH, unattainable=Unattainable.QUEUE)
        deck = pair(classes={"bulk": bulk})
        deck.ask("busy", 4000)
        deck.ask("b", 1000, slo_class="bulk")
        deck.at(6.0)
        deck.prefilled("busy")
        assert deck.decision("b") == "->p0/d0"


class TestLongRuns:
    def test_nothing_is_remembered_of_requests_that_went(self):
        """A reminder of each would be kept for the ten minutes that it could have waited."""
        deck = pair()
        for i in range(5000):
            deck.ask(f"r{i}", 10)
            deck.prefilled(f"r{i}")
            deck.finish(f"r{i}")
        (lane,) = deck.scheduler._board.lanes.values()
        assert len(lane.deadlines) < 600
        assert len(lane._ends) < 100
        assert not deck.scheduler._admitted

    def test_nor_of_endpoints_that_left(self):
        deck = pair()
        for i in range(50):
            deck.observe(*prefills(f"q{i}"), *decodes(f"e{i}"))
            deck.ask(f"r{i}", 10)
        assert len(deck.scheduler._board.sides) == 2
        assert len(deck.scheduler._board.stations) == 1


CLASSES = {
    **PROMISES,
    "tight": SloClass("tight", itl=Target(0.0125), max_wait_s=40.0),
    "big": SloClass("big", pools=frozenset({"big", "pool"}), reserve=0.2, unattainable=Unattainable.QUEUE),
    "nowhere": SloClass("nowhere", pools=frozenset({"none"})),
}


FACTS = {"late_decode": True, "lease_s": 8}

FLEET = [
    *prefills("p0", **FACTS),
    *prefills("p1", dp_size=2, prefill_answers="transferred"),
    make_endpoint("p2", Role.PREFILL, pool="big"),
    *decodes("d0", "d1", total=9000),
    make_endpoint("d2", Role.DECODE, pool="big", facts={"may_prefill": True, "kv_total_tokens": 20_000}),
    *unified("u0"),
]


class Storm:
    """Things that may happen to a request, the `who`-th, or to an endpoint; `x` is any number."""

    def __init__(self, defers):
        order = PutsOff(lambda queue: queue[len(queue) // 2 :]) if defers else None
        self.deck = Deck(FLEET, classes=CLASSES, unit_tokens=300, hand_ahead_s=0.05, order=order, max_queue=9)
        self.over = set()
        self.deeds = (
            self.ask, self.prefilled, self.first, self.finish, self.cancel, self.pass_time,
            self.flap, self.leave_or_come, self.restart, self.report,
        )  # fmt: skip

    def do(self, what, who, x):
        self.deeds[what](who, x)
        for name, made in list(self.deck.made.items()):
            if isinstance(made[-1], Spent):
                self.end(name, End.FAILED)

    def under_way(self, who):
        name = f"r{who}"
        made = self.deck.made.get(name, ())
        return name if name not in self.over and any(isinstance(d, Assign) for d in made) else None

    def end(self, name, end):
        if name not in self.over:
            self.over.add(name)
            self.deck.finish(name, end)

    def ask(self, who, x):
        if f"r{who}" not in self.deck.views:
            self.deck.ask(
                f"r{who}",
                x,
                slo_class=(None, *CLASSES)[x % 6],
                stream=bool(x % 3),
                n=1 + x % 2,
                avoid=("p0", "d0", "u0")[: x % 4],
            )

    def prefilled(self, who, x):
        name = self.under_way(who)
        if name and self.deck.route(name).prefill:
            self.deck.prefilled(name)

    def first(self, who, x):
        if name := self.under_way(who):
            self.deck.first(name)

    def finish(self, who, x):
        if name := self.under_way(who):
            self.end(name, (End.COMPLETED, End.FAILED)[x % 2])

    def cancel(self, who, x):
        name = f"r{who}"
        if name in self.deck.views and name not in self.deck.made:
            self.deck.cancel(name)
            self.over.add(name)

    def pass_time(self, who, x):
        self.deck.at(self.deck.now_s + x / 1000)

    def change(self, number, **fields):
        if self.deck.endpoints:
            self.deck.change(self.deck.endpoints[number % len(self.deck.endpoints)].id, **fields)

    def flap(self, who, x):
        self.change(who, ready=bool(x % 2))

    def leave_or_come(self, who, x):
        other, here = FLEET[who % len(FLEET)].id, {e.id for e in self.deck.endpoints}
        self.deck.observe(*[e for e in FLEET if (e.id in here) != (e.id == other)] or FLEET)

    def restart(self, who, x):
        self.change(who, incarnation=str(x % 3))

    def report(self, who, x):
        self.change(x, load=Load(self.deck.now_s - who, who % 3, who % 2, x, 12_000, prefilling=who % 3))


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 14), st.integers(1, 12_000)), max_size=90),
    st.booleans(),
)
def test_whatever_breaks_each_request_is_decided_once_and_nothing_stays(events, defers):
    """Endpoints of every kind come, go, restart, fill up, and report late; classes, pools and retries too."""
    storm = Storm(defers)
    deck = storm.deck
    for event in events:
        storm.do(*event)
        assert deck.scheduler.waiting == len(deck.views.keys() - deck.made.keys() - storm.over)
    deck.at(deck.now_s + 2000.0)
    for name in deck.views.keys() - storm.over:
        assert name in deck.made, f"{name} was never decided"
        if not isinstance(deck.made[name][0], Reject):
            deck.finish(name)
    for made in deck.made.values():
        assert sum(isinstance(d, Assign | Reject) for d in made) == 1
        assert sum(isinstance(d, Bind) for d in made) <= 1
    board = deck.scheduler._board
    for end in FLEET:
        assert deck.scheduler.ledger.inflight(end.id) == Inflight()
    for lane in board.lanes.values():
        assert (lane.waiting, lane.unbound_tokens, lane.keeps) == (0, 0, None)
    for side in board.sides.values():
        assert (side.bounds, side.kept_for) == ({}, None)
    assert not any(station.running for station in board.stations.values())
    assert deck.scheduler.due_s() in (None, inf)
