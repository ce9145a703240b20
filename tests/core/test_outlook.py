"""What an immediate scheduler predicts, promises and learns, over the life of its requests."""

from dataclasses import replace
from math import inf
from random import Random

import pytest

from orchestrator.core.contracts import Assign
from orchestrator.core.scheduling import ImmediateScheduler
from orchestrator.core.slo import SloClass, Target
from orchestrator.core.types import (
    End,
    LegEvent,
    LegKind,
    Load,
    Outcome,
    PathKind,
    Role,
    Snapshot,
)
from orchestrator.policy.build import build
from orchestrator.policy.testing import FakePredictor, make_endpoint, make_request

P, D, U = make_endpoint("p", Role.PREFILL), make_endpoint("d", Role.DECODE), make_endpoint("u")

CLASSES = {
    "fast": SloClass("fast", ttft=Target(1.0, per_cold_prefill=2.0), tpot=Target(0.05)),
    "whole": SloClass("whole", e2e=Target(10.0)),
}


class Student(FakePredictor):
    """Keeps what it is told."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.lessons = []

    def served(self, what, now_s):
        self.lessons.append(what)

    def decoded(self, what, now_s):
        self.lessons.append(what)


class Asks:
    """A filter that keeps the contexts it was asked in."""

    def __init__(self):
        self.seen = []

    def filter(self, request, candidates, context):
        waits = {e.id: context.wait_s(e.id) for e in candidates}
        limits = {e.id: context.step_limit_s(e.id) for e in candidates}
        self.seen.append((context, waits, limits))
        return candidates


class Rig:
    def __init__(self, *endpoints, predictor=None, profile="priced"):
        self.predictor = predictor or Student()
        self.asks = Asks()
        profile = build(profile)
        step = type(profile.unified.picker)("asks", self.asks)
        roles = {
            role: replace(getattr(profile, role), filters=(step,))
            for role in ("prefill", "decode", "unified")
        }
        self.made = ImmediateScheduler(
            replace(profile, **roles), rng=Random(0), predictor=self.predictor, classes=CLASSES
        )
        self.observe(*endpoints)

    def observe(self, *endpoints, now_s=0.0):
        self.made.observe(Snapshot(now_s, endpoints), now_s)

    def submit(self, request_id, now_s=0.0, **fields):
        (decision,) = self.made.submit(make_request(id=request_id, **fields), now_s)
        assert isinstance(decision, Assign)
        return decision

    def tell(self, decision, leg, what, now_s):
        route = decision.route
        endpoint = route.prefill if leg is LegKind.PREFILL else route.decode
        assert self.made.progress(LegEvent(decision.request_id, leg, endpoint, what, now_s), now_s) == ()

    def finish(self, decision, now_s, end=End.COMPLETED, **fields):
        self.made.finish(Outcome(decision.request_id, end, 200, route=decision.route, **fields), now_s)

    @property
    def last(self):
        return self.asks.seen[-1]


def test_policies_are_given_the_predictor_and_the_promise():
    rig = Rig(U)
    rig.submit("a", 3.0, arrived_s=2.5, slo_class="fast")
    context, _, _ = rig.last
    assert context.predictor is rig.predictor
    assert context.slo is CLASSES["fast"]
    assert context.first_token_by_s == pytest.approx(2.5 + 1.0 + 2 * 0.1)


def test_without_a_class_nothing_is_promised():
    rig = Rig(U)
    for fields in ({}, {"slo_class": "unheard-of"}):
        rig.submit(str(fields), **fields)
        context, _, limits = rig.last
        assert (context.slo, context.first_token_by_s, limits) == (None, inf, {"u": inf})


def test_media_are_encoded_before_prefill_and_hold_up_those_behind():
    rig = Rig(U, predictor=Student(media_s=0.2))
    first = rig.submit("a", slo_class="fast", media=2)
    told = first.predicted
    assert told.encode_s == pytest.approx(0.4)
    assert told.ttft_s == pytest.approx(0.4 + told.prefill_s + told.handoff_s)
    rig.submit("b", slo_class="fast")
    assert rig.last[1]["u"] == pytest.approx(0.4 + told.prefill_s)
    rig.tell(first, LegKind.UNIFIED, "first_token", 1.0)
    assert rig.predictor.lessons[0].media == 2


def test_classes_may_be_replaced():
    rig = Rig(U)
    assert rig.made.classes is CLASSES
    rig.made.classes = {"fast": SloClass("fast", ttft=Target(3.0))}
    rig.submit("a", slo_class="fast")
    assert rig.last[0].first_token_by_s == 3.0


def test_of_a_bound_on_the_last_token_decoding_is_left_out():
    rig = Rig(U)
    rig.submit("a", slo_class="whole", max_tokens=100)
    context, _, _ = rig.last
    assert context.first_token_by_s == pytest.approx(10.0 - 100 * 0.012)


def test_both_sides_of_a_pair_are_asked_with_it():
    rig = Rig(P, D)
    rig.submit("a", slo_class="fast")
    assert [c.role for c, _, _ in rig.asks.seen] == [Role.PREFILL, Role.DECODE]
    assert all(c.slo is CLASSES["fast"] and c.predictor is rig.predictor for c, _, _ in rig.asks.seen)


def test_an_endpoint_is_waited_for_until_it_has_computed_what_it_was_given():
    rig = Rig(P, D)
    first = rig.submit("a", 10.0, block_hashes=())
    rig.submit("b", 10.05, block_hashes=(), prompt_tokens=3000)
    assert rig.asks.seen[2][1] == {"p": pytest.approx(0.05)}
    rig.submit("c", 10.06, block_hashes=())
    assert rig.asks.seen[4][1] == {"p": pytest.approx(0.04 + 0.3)}
    rig.tell(first, LegKind.PREFILL, "done", 10.07)
    rig.submit("d", 10.07, block_hashes=())
    assert rig.asks.seen[6][1] == {"p": pytest.approx(0.3 + 0.1 - 0.04, abs=0.05)}


def test_what_others_sent_there_counts():
    rig = Rig(U)
    decision = rig.submit("a", block_hashes=())
    rig.tell(decision, LegKind.UNIFIED, "first_token", 0.1)
    rig.observe(replace(U, load=Load(0.2, running=3, prefilling=2)), now_s=0.2)
    rig.submit("b", 0.2)
    assert rig.last[1]["u"] > 0.0


def test_a_new_process_has_nothing_to_compute():
    rig = Rig(U)
    rig.submit("a", prompt_tokens=100_000, block_hashes=())
    rig.observe(replace(U, incarnation="2"), now_s=1.0)
    rig.submit("b", 1.0)
    assert rig.last[1] == {"u": 0.0}


def test_the_strictest_gap_of_those_that_decode_there():
    rig = Rig(P, D)
    decision = rig.submit("a", slo_class="fast")
    rig.submit("b")
    assert rig.last[2] == {"d": 0.05}
    rig.finish(decision, 1.0)
    rig.submit("c", 1.0)
    assert rig.last[2] == {"d": inf}


def test_what_is_predicted_of_the_route_goes_with_it():
    rig = Rig(P, D, predictor=Student(tail=0.5))
    rig.submit("a", 10.0, block_hashes=())
    predicted = rig.submit("b", 10.0, arrived_s=9.5, block_hashes=(), slo_class="fast").predicted
    assert (predicted.at_s, predicted.waited_s, predicted.quantile) == (10.0, 0.5, 0.99)
    assert (predicted.wait_s, predicted.prefill_s, predicted.handoff_s) == pytest.approx((0.1, 0.1, 0.02))
    assert predicted.tail_s == pytest.approx(0.5 + 0.22 * 1.5)
    assert predicted.due_s == pytest.approx(1.2)
    assert predicted.itl_s == pytest.approx(0.012 + 2 * 6e-5 + 2100 * 2e-8)


def test_a_prefix_sent_there_before_is_taken_off():
    rig = Rig(U)
    rig.submit("a")
    assert rig.submit("b").predicted.cached_tokens == 999


def test_it_learns_from_a_first_token_and_an_answer():
    rig = Rig(P, D)
    decision = rig.submit("a", 10.0, slo_class="fast", block_hashes=())
    rig.tell(decision, LegKind.PREFILL, "done", 10.15)
    rig.tell(decision, LegKind.DECODE, "first_token", 10.2)
    assert len(rig.predictor.lessons) == 1
    rig.finish(decision, 11.2, output_tokens=51, cached_tokens=128)
    served, decoded = rig.predictor.lessons
    assert (served.prefill, served.decode, served.prompt_tokens, served.slo_class) == ("p", "d", 1000, "fast")
    assert (served.cached_tokens, served.alone, served.wait_s) == (0, True, 0.0)
    assert (served.prefill_s, served.first_token_s) == pytest.approx((0.15, 0.2))
    assert served.admitted is served.dispatched is decision.predicted
    assert (decoded.endpoint, decoded.tokens, decoded.batch, decoded.complete) == ("d", 50, 1.0, True)
    assert decoded.seconds == pytest.approx(1.0)


def test_one_that_waited_in_the_engine_is_judged_as_one_that_was_queued():
    rig = Rig(U)
    rig.submit("a", block_hashes=())
    decision = rig.submit("b", block_hashes=())
    rig.tell(decision, LegKind.UNIFIED, "first_token", 0.3)
    rig.finish(decision, 0.5, end=End.CANCELLED, output_tokens=3)
    served, decoded = rig.predictor.lessons
    assert (served.dispatched, served.admitted, served.alone) == (None, decision.predicted, False)
    assert served.wait_s == pytest.approx(0.1)
    assert served.prefill_s is None
    assert not decoded.complete


@pytest.mark.parametrize("told", [False, True])
def test_nothing_is_learned_from_what_never_came(told):
    rig = Rig(P, D)
    decision = rig.submit("a")
    if told:
        rig.tell(decision, LegKind.PREFILL, "done", 0.1)
    rig.finish(decision, 1.0, end=End.FAILED)
    assert rig.predictor.lessons == []
    rig.submit("b", 1.0)
    assert rig.asks.seen[2][1] == {"p": 0.0}


def test_a_curve_that_was_learned_anew_counts_at_once():
    rig = Rig(U)
    rig.predictor._token_s, rig.predictor.version = 3e-4, 1
    assert rig.submit("a", block_hashes=()).predicted.prefill_s == pytest.approx(0.3)


def test_what_is_never_handed_off_is_not_predicted():
    rig = Rig(U)
    assert rig.submit("a", path=PathKind.EMBED).predicted is None


def test_without_a_predictor_nothing_is_predicted():
    made = ImmediateScheduler(build("priced"), rng=Random(0), classes=CLASSES)
    made.observe(Snapshot(0.0, (U,)), 0.0)
    (decision,) = made.submit(make_request(slo_class="fast"), 0.0)
    assert decision.predicted is None
    made.progress(LegEvent(decision.request_id, LegKind.UNIFIED, "u", "first_token", 0.1), 0.1)
    made.finish(Outcome(decision.request_id, End.COMPLETED, 200, route=decision.route), 0.2)


def test_predicted_shed_refuses_what_would_be_late():
    """The profile end to end: two prompts fit into a second and a half, the third would wait too long."""
    made = ImmediateScheduler(
        build("predicted-shed"),
        rng=Random(0),
        predictor=Student(),
        classes={"s": SloClass("s", ttft=Target(1.5))},
    )
    made.observe(Snapshot(0.0, (P, D)), 0.0)
    decisions = []
    for i in range(3):
        request = make_request(id=str(i), prompt_tokens=6000, block_hashes=(), slo_class="s")
        decisions += made.submit(request, 0.0)
    assert [isinstance(d, Assign) for d in decisions] == [True, True, False]
    assert "1 by predicted-ttft" in decisions[2].message
    assert (decisions[2].http_status, decisions[2].reason) == (429, "slo-unreachable")
