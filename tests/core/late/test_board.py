"""The board: lanes by who may serve a kind, kept in step with the endpoints."""

from late import Fixed, decodes, inf, prefills, unified

from orchestrator.core.inflight import Ledger
from orchestrator.core.late.board import Board, kind
from orchestrator.core.late.queue import Item
from orchestrator.core.lateprofile import LateSettings
from orchestrator.core.prediction import Curve
from orchestrator.core.slo import SloClass
from orchestrator.core.types import PathKind, Role
from orchestrator.policy.testing import MODEL, make_endpoint, make_request

CHAT = (MODEL, PathKind.CHAT, None)


def board(*endpoints, serves=lambda path, endpoint: True, predictor=None, **settings):
    made = Board(Ledger(), predictor or Fixed(), serves, LateSettings(**settings))
    made.observe(tuple(endpoints))
    return made


def ids(lane):
    return [s.id for s in lane.stations], list(lane.decodes.sides)


class TestLanes:
    def test_kinds_that_may_use_the_same_share_a_lane(self):
        made = board(*prefills("p0"), *decodes("d0"))
        assert made.lane(CHAT) is made.lane((MODEL, PathKind.COMPLETION, None))
        assert ids(made.lane(CHAT)) == (["p0"], ["d0"])

    def test_kinds_that_may_not_have_lanes_of_their_own_beside_each_other(self):
        made = board(*unified("u0", "u1"), serves=lambda path, e: path is PathKind.CHAT or e.id == "u0")
        chat, completion = made.lane(CHAT), made.lane((MODEL, PathKind.COMPLETION, None))
        assert ids(completion) == (["u0"], [])
        assert set(made.beside(chat)) == {chat, completion}
        assert list(made.models()) == [made.beside(chat)]

    def test_a_class_waits_for_its_pools_alone(self):
        made = board(*prefills("p0"), *decodes("d0"), make_endpoint("u9", Role.UNIFIED, pool="big"))
        assert ids(made.lane((MODEL, PathKind.CHAT, frozenset({"big"})))) == (["u9"], [])

    def test_prefill_without_decode_is_no_route(self):
        assert not board(*prefills("p0")).lane(CHAT).usable
        assert ids(board(*prefills("p0"), *unified("u0")).lane(CHAT)) == (["u0"], [])

    def test_who_may_prefill_is_a_side_and_a_station(self):
        end = make_endpoint("d0", Role.DECODE, facts={"may_prefill": True})
        lane = board(*prefills("p0"), end).lane(CHAT)
        assert ids(lane) == (["p0", "d0"], ["d0"])
        assert [s.disaggregated for s in lane.stations] == [True, False]

    def test_models_that_nobody_serves_leave_nothing_behind(self):
        made = board(*unified("u0"))
        for i in range(100):
            assert not made.lane((f"model-{i}", PathKind.CHAT, None)).usable
        assert (made.lanes, list(made.models())) == ({}, [])

    def test_but_those_in_which_somebody_waits_are_kept(self):
        made = board()
        lane = made.lane(CHAT, keep=True)
        assert not lane.usable
        assert made.lane(CHAT) is lane
        assert made.beside(lane) == (lane,)

    def test_what_is_not_bound_counts_where_the_sides_are_shared(self):
        other = make_endpoint("d1", Role.DECODE, pool="big")
        made = board(*prefills("p0"), make_endpoint("p1", Role.PREFILL, pool="big"), *decodes("d0"), other)
        whole, big = made.lane(CHAT), made.lane((MODEL, PathKind.CHAT, frozenset({"big"})))
        usual = made.lane((MODEL, PathKind.CHAT, frozenset({"prefill", "decode"})))
        big.unbound_tokens, usual.unbound_tokens = 100, 7
        assert [made.unbound_tokens(lane) for lane in (whole, big, usual)] == [107, 100, 7]

    def test_of_which_kind_an_item_is(self):
        slo = SloClass("long", pools=frozenset({"big"}))
        item = Item(make_request(), 0.0, 1.0, inf, inf, slo=slo)
        assert kind(item) == (MODEL, PathKind.CHAT, frozenset({"big"}))


class TestObserving:
    def test_a_report_changes_no_lane(self):
        made = board(*prefills("p0"), *decodes("d0"))
        lane = made.lane(CHAT)
        assert not made.observe((*prefills("p0"), *decodes("d0", used=500)))
        assert made.lane(CHAT) is lane

    def test_who_is_ready_does_and_what_runs_there_stays(self):
        made = board(*prefills("p0", "p1"), *decodes("d0"))
        lane = made.lane(CHAT)
        lane.station("p0").start("a", 1, 0.0, 1.0, 1000, 0)
        gone = make_endpoint("p1", Role.PREFILL, ready=False)
        assert made.observe((*prefills("p0"), gone, *decodes("d0")))
        assert ids(made.lane(CHAT)) == (["p0"], ["d0"])
        assert not made.lane(CHAT).idle
        assert lane.stations[0].watchers == [made.lane(CHAT)]

    def test_so_do_ranks_that_become_known(self):
        made = board(*prefills("p0"), *decodes("d0"))
        made.lane(CHAT)
        assert made.observe((*prefills("p0", dp_size=2), *decodes("d0")))
        assert made.lane(CHAT).stations[0].slots == 2

    def test_who_left_is_forgotten(self):
        made = board(*prefills("p0"), *decodes("d0"))
        made.observe(tuple(decodes("d0")))
        assert (list(made.stations), list(made.sides)) == ([], ["d0"])

    def test_an_endpoint_of_another_role_is_another_station(self):
        made = board(*prefills("x"), *decodes("d0"))
        before = made.stations["x"]
        made.observe((*unified("x"), *decodes("d0")))
        assert made.stations["x"] is not before
        assert not made.stations["x"].disaggregated


class TestPricesKept:
    def test_curves_are_read_again_when_the_predictor_has_learned(self):
        predictor = Fixed()
        made = board(*prefills("p0", "p1"), *decodes("d0"), predictor=predictor)
        lane = made.lane(CHAT)
        assert lane.fastest == Curve(0.001)
        predictor.speeds = {"p0": 3.0, "p1": 2.0}
        made.refresh()
        assert lane.fastest == Curve(0.001), "not before it says so"
        predictor.version += 1
        made.refresh()
        assert lane.fastest == Curve(0.002)
        assert [s.id for s in lane.ranked] == ["p1", "p0"]

    def test_pairs_too(self):
        predictor = Fixed()
        made = board(*prefills("p0"), *decodes("d0"), predictor=predictor)
        lane = made.lane(CHAT)
        assert made.least_exposed_s(lane, 100) == 0.02
        assert list(lane.pairs) == [("p0", "d0")]
        predictor.version += 1
        made.refresh()
        assert not lane.pairs

    def test_units_are_so_large_that_what_each_costs_does_not_show(self):
        class Costly(Fixed):
            def prefill(self, endpoint):
                return Curve(0.0001, fixed_s=0.002)

        told = make_endpoint("p1", Role.PREFILL, facts={"prior": {"unit_tokens": 900}})
        made = board(*prefills("p0"), told, predictor=Costly(), unit_tokens=50)
        assert made.stations["p0"].unit_tokens == 400, "2 ms are 5 % of 40 ms"
        assert made.stations["p1"].unit_tokens == 900

    def test_other_settings_are_taken_at_once(self):
        made = board(*prefills("p0"), *decodes("d0"), overcommit=1.0)
        lane = made.lane(CHAT)
        made.adopt(LateSettings(overcommit=1.5, hand_ahead_s=0.2, unit_tokens=77))
        assert (lane.ahead_s, made.sides["d0"].overcommit, made.stations["p0"].unit_tokens) == (0.2, 1.5, 77)
