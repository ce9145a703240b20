"""Prices: what a request costs where, whom it waits for, and what is looked at of a large fleet."""

import pytest
from late import Deck, Fcfs, Fixed, decodes, inf, prefills, unified

from orchestrator.core.late.policies import Added
from orchestrator.core.late.pricing import FEW, TOO_LATE_S
from orchestrator.core.late.queue import Item
from orchestrator.core.slo import SloClass, Target
from orchestrator.core.types import PathKind
from orchestrator.policy.testing import MODEL, make_request


class Table:
    """A deck's pricing, asked about items that nobody queued."""

    def __init__(self, *ends, **kwargs):
        self.deck = Deck(ends, **kwargs)
        self.pricing = self.deck.scheduler._pricing
        self.lane = self.deck.scheduler._board.lane((MODEL, PathKind.CHAT, None))

    def busy(self, name, work_s):
        station = self.lane.station(name)
        station.start(f"on-{name}", station.unit(), self.deck.now_s, work_s, int(work_s * 1000), 0)

    def item(self, tokens=1000, by_s=inf, **fields):
        hits = fields.pop("hits", {})
        request = make_request(prompt_tokens=tokens, **fields)
        cold_s = tokens / 1000
        return Item(
            request, 0.0, cold_s, by_s, inf, tokens=tokens, output_tokens=100, hits=hits, cold_s=cold_s
        )

    def pick(self, item, added=None, claims=None, now_s=0.0, **kwargs):
        free = list(self.lane.idle.values())
        return self.pricing.pick(
            self.lane, item, free, now_s, {} if claims is None else claims, added, **kwargs
        )


class TestPrices:
    def test_the_prefill_is_paid_once_for_itself_and_once_for_the_others(self):
        table = Table(*prefills("p0"), *decodes("d0"))
        best = table.pick(table.item()).best
        assert (best.wait_s, best.work_s, best.exposed_s) == (0.0, 1.0, 0.02)
        assert best.cost_s == pytest.approx(2.02)

    def test_what_is_cached_is_not_paid(self):
        table = Table(*prefills("p0", "p1"), *decodes("d0"))
        best = table.pick(table.item(hits={"p1": 900})).best
        assert (best.station.id, best.work_s) == ("p1", pytest.approx(0.1))

    def test_streams_that_wait_pay_too(self):
        table = Table(*unified("u0"))
        assert table.pick(table.item()).best.cost_s == pytest.approx(2.0)
        table.deck.ask("a", 100)
        table.deck.first("a")
        assert table.pick(table.item()).best.cost_s == pytest.approx(3.0)

    def test_case_34_affinity_has_a_price_in_ms(self):
        """A warm endpoint is worth the milliseconds that its cache saves, and not one more."""
        table = Table(*prefills("p0", "p1"), *decodes("d0"))
        hits = {"p0": 400}
        saved_s = 2 * 0.4  # its own prefill, and the time of those who wait for the machine
        table.busy("p0", saved_s - 0.01)
        assert table.pick(table.item(hits=hits)) is None, "it waits for the warm one"
        table.lane.station("p0").clear()
        table.busy("p0", saved_s + 0.01)
        assert table.pick(table.item(hits=hits)).best.station.id == "p1"

    def test_policies_add_to_the_cost_and_take_out(self):
        table = Table(*prefills("p0", "p1"), *decodes("d0"))
        assert table.pick(table.item(), Added(seconds={"p0": 1.0})).best.station.id == "p1"
        assert table.pick(table.item(), Added(filtered={"p1": "f"})).best.station.id == "p0"
        assert table.pick(table.item(), Added(filtered={"p0": "f", "p1": "f"})) is None

    def test_one_that_would_be_late_is_sent_nowhere_unless_it_is_urgent(self):
        table = Table(*prefills("p0"), *decodes("d0"))
        assert table.pick(table.item(by_s=1.03)).best.late_s == 0.0
        assert table.pick(table.item(by_s=1.01)) is None
        assert table.pick(table.item(by_s=1.01), urgent=True).best.late_s == TOO_LATE_S

    def test_the_tail_counts_where_it_is_asked_for(self):
        table = Table(*prefills("p0"), *decodes("d0"), on_time_quantile=0.9)
        assert table.pick(table.item(by_s=1.1)) is None, "1.02 s and a tenth of it"
        assert table.pick(table.item(by_s=1.13)) is not None

    def test_equals_go_round_in_the_order_given_within_one_pool(self):
        table = Table(*prefills("p0", "p1"), *decodes("d0"), speeds={"p0": 1.01})
        assert table.pick(table.item()).best.station.id == "p0"
        slow = Table(*prefills("p0", "p1"), *decodes("d0"), speeds={"p0": 1.5})
        assert slow.pick(slow.item()).best.station.id == "p1"

    def test_long_work_is_not_handed_ahead(self):
        table = Table(*prefills("p0"), *decodes("d0"), hand_ahead_work_s=0.5)
        table.busy("p0", 0.1)
        near = [table.lane.station("p0")]
        assert table.pricing.pick(table.lane, table.item(400), near, 0.09, {}) is not None
        assert table.pricing.pick(table.lane, table.item(600), near, 0.09, {}) is None


class TestWaiting:
    def table(self):
        table = Table(*prefills("p0", "p1"), *decodes("d0"))
        table.busy("p0", 0.3)
        return table, table.item(hits={"p0": 900})

    def test_whom_it_waits_for_is_claimed_and_remembered(self):
        table, item = self.table()
        claims = {}
        assert table.pick(item, claims=claims) is None
        assert claims == {"p0": pytest.approx(0.1)}
        assert item.waits_for.station.id == "p0"
        again = {}
        assert table.pricing.still_waits(table.lane, item, 0.1, again)
        assert again == claims
        assert table.lane.recheck_s < inf

    def test_claims_of_others_make_it_longer(self):
        table, item = self.table()
        assert table.pick(item, claims={"p0": 2.0}).best.station.id == "p1"
        item.waits_for = None
        table.pick(item)
        assert not table.pricing.still_waits(table.lane, item, 0.1, {"p0": 2.0})

    @pytest.mark.parametrize(
        "what", ["free", "other work", "overdue", "too late", "long enough", "better freed"]
    )
    def test_it_waits_no_more_once_anything_is_different(self, what):
        table, item = self.table()
        now_s = 0.1
        table.pick(item)
        station, other = (table.lane.station(name) for name in ("p0", "p1"))
        if what == "free":
            station.done("on-p0", now_s)
        elif what == "other work":
            station.start("more", station.unit(), now_s, 0.5, 500, 0)
        elif what == "overdue":
            now_s = 9.0
        elif what == "too late":
            item.first_token_by_s = 0.2
        elif what == "long enough":
            item.passed_s = -5.0
        else:
            item.hits["p1"] = 950
            table.busy("p1", 1.0)
            other.done("on-p1", now_s)
        assert not table.pricing.still_waits(table.lane, item, now_s, {})
        assert item.waits_for is None

    def test_one_that_is_freed_and_no_better_changes_nothing(self):
        table, item = self.table()
        table.pick(item)
        table.busy("p1", 1.0)
        table.lane.station("p1").done("on-p1", 0.1)
        assert table.pricing.still_waits(table.lane, item, 0.1, {})

    def test_it_is_looked_at_again_just_when_the_wait_is_worth_it_no_more(self):
        table, item = self.table()
        table.pick(item)
        item.cold_s = 1000.0
        item.passed_s = inf
        item.waits_for = None
        table.lane.recheck_s = inf
        table.pick(item)
        at_s = table.lane.recheck_s
        assert table.pricing.still_waits(table.lane, item, at_s - 0.01, {})
        assert not table.pricing.still_waits(table.lane, item, at_s + 1e-6, {})


class TestRoom:
    def test_room_is_kept_where_it_is_soonest_and_only_if_there_is_none(self):
        table = Table(*prefills("p0"), *decodes("d0", "d1", total=10_000))
        assert table.pricing.to_keep_room(table.lane, table.item(5000)) is None
        ledger = table.deck.scheduler.ledger
        for name, tokens in (("d0", 8000), ("d1", 6000)):
            table.deck.ask(f"on-{name}", tokens)
            assert ledger.inflight(table.deck.route(f"on-{name}").decode).requests == 1
            table.deck.prefilled(f"on-{name}")
        side = table.pricing.to_keep_room(table.lane, table.item(5000))
        assert side.free_tokens == max(s.free_tokens for s in table.lane.decodes.sides.values())
        assert table.pricing.to_keep_room(table.lane, table.item(5000, avoid=(side.id,))).id != side.id
        side.kept_for = table.item(1000)
        assert table.pricing.to_keep_room(table.lane, table.item(5000)).id != side.id

    def test_one_larger_than_a_memory_prefers_another(self):
        table = Table(*prefills("p0"), *decodes("d0", total=4000), *decodes("d1", total=20_000))
        for name in ("a", "b"):
            table.deck.ask(name, 1000 if name == "a" else 19_500)
            table.deck.prefilled(name)
        assert {table.deck.route(n).decode for n in "ab"} == {"d0", "d1"}
        assert table.pricing.to_keep_room(table.lane, table.item(9000)).id == "d1"

    def test_a_promise_of_those_that_decode_there_is_kept_by_a_chunk(self):
        table = Table(*unified("u0", chunk_tokens=200), classes={"t": SloClass("t", itl=Target(0.25))})
        table.deck.ask("a", 100, slo_class="t")
        table.deck.first("a")
        assert table.pick(table.item(5000)) is not None, "0.2 s of prefill between two tokens"
        table.deck.scheduler._board.sides["u0"].bounds["b"] = (0.15, 0.99)
        assert table.pick(table.item(5000)) is None
        assert table.pick(table.item(100)) is not None


class TestLargeFleets:
    def test_only_some_are_priced_and_the_best_holder_is_among_them(self):
        names = [f"p{i}" for i in range(200)]
        table = Table(*prefills(*names), *decodes("d0"))
        hits = {name: 10 + 4 * i for i, name in enumerate(names)}
        item = table.item(hits=dict(sorted(hits.items(), key=lambda one: -one[1])))
        pick = table.pick(item)
        assert pick.best.station.id == "p199"
        assert len(pick.prices) <= FEW

    def test_a_busy_holder_far_down_the_list_is_waited_for(self):
        names = [f"p{i}" for i in range(200)]
        table = Table(*prefills(*names), *decodes("d0"))
        table.busy("p150", 0.2)
        assert table.pick(table.item(hits={"p150": 990})) is None

    def test_the_fastest_is_priced_wherever_it_stands(self):
        names = [f"p{i}" for i in range(100)]
        table = Table(*prefills(*names), *decodes("d0"), speeds={"p77": 0.5})
        assert table.pick(table.item()).best.station.id == "p77"


class TestAdmission:
    def test_the_work_ahead_is_shared_by_all(self):
        table = Table(*prefills("p0", "p1"), *decodes("d0"), order=Fcfs())
        for i in range(4):
            table.deck.ask(f"r{i}", 2000, arrived_s=float(i))
        item = table.item(1000)
        item.key = (1, 9.0, 9)
        told = table.pricing.admission(table.lane, item, 0.0)
        assert told.wait_s == pytest.approx(2.0 + 4.0 / 2)
        assert (told.prefill_s, told.handoff_s) == (1.0, 0.02)
        assert told.tail_s > told.ttft_s
        item.key = (0, 0.0, 9)
        assert table.pricing.admission(table.lane, item, 0.0).wait_s == pytest.approx(2.0)

    def test_where_one_is_free_there_is_no_wait(self):
        table = Table(*prefills("p0"), *decodes("d0"))
        assert table.pricing.admission(table.lane, table.item(), 0.0).wait_s == 0.0
        assert isinstance(table.deck.predictor, Fixed)
