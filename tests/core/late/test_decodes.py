"""Decode sides: memory, gap promises, kept room, and who is best; never against a bound."""

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.core.decisions import Waiting
from orchestrator.core.inflight import Ledger, Sums
from orchestrator.core.late.decodes import AVOIDED, GAPS, NO_ROOM, SAME, SAME_S, Decodes, DecodeSide
from orchestrator.core.late.gaps import Gaps
from orchestrator.core.prediction import Step
from orchestrator.core.slo import NO_GAP
from orchestrator.core.types import Inflight, Load, Role, Route
from orchestrator.policy.testing import FakePredictor, make_endpoint, make_request

STEP = Step(0.010, 0.001, 1e-6)


def somebody():
    return Waiting(make_request(), 0.0, 0.1, inf, inf)


def side(name="d0", step=STEP, **fields):
    return DecodeSide(make_endpoint(name, Role.DECODE, **fields), step)


def told(used, total, *, running=0, seen=Inflight()):
    return {
        "load": Load(0.0, running, kv_used_tokens=used, kv_total_tokens=total),
        "inflight_at_load": seen,
    }


class TestMemory:
    def test_what_is_told_is_corrected_by_what_came_and_went_since(self):
        one = side(**told(5000, 10_000, running=3, seen=Inflight(2, 0, 4000)))
        one.refresh(Sums(3, 0, 5500))
        assert (one.batch, one.tokens, one.free_tokens) == (4, 6500, 3500)
        one.refresh(Sums(1, 0, 2000))
        assert (one.batch, one.tokens, one.free_tokens) == (2, 3000, 7000)

    def test_it_is_never_less_than_the_router_gave_itself(self):
        one = side(**told(0, 10_000))
        one.refresh(Sums(2, 0, 6000))
        assert (one.batch, one.free_tokens) == (2, 4000)

    def test_more_may_be_promised_than_there_is(self):
        one = side(**told(9000, 10_000, running=1))
        one.overcommit = 1.2
        one.refresh(Sums())
        assert one.free_tokens == 3000

    def test_an_empty_one_takes_anything_and_so_does_one_that_does_not_tell(self):
        for one in (side(**told(0, 10_000)), side()):
            one.refresh(Sums())
            assert one.free_tokens == inf


class TestKeptRoom:
    def one(self, free):
        one = side(**told(10_000 - free, 10_000, running=1))
        one.refresh(Sums())
        return one

    def test_it_is_for_one_and_whoever_is_past_asking(self):
        one, mine = self.one(5000), somebody()
        one.kept_for, one.kept_tokens = mine, 4000
        assert one.room(mine) == one.room(None) == 5000
        assert one.room(somebody()) == 1000

    def test_one_kept_for_a_request_larger_than_itself_takes_no_other_when_empty(self):
        one = side(**told(0, 10_000))
        one.refresh(Sums())
        one.kept_for, one.kept_tokens = somebody(), inf
        assert one.room(somebody()) == -inf
        assert one.room(one.kept_for) == inf


class TestBest:
    def decodes(self, *sides):
        return Decodes(Ledger(), sides)

    def test_the_shortest_step_wins(self):
        assert self.decodes(side("slow", Step(0.02)), side("fast", Step(0.01))).best(100, NO_GAP).id == "fast"

    def test_those_that_are_the_same_take_turns(self):
        decodes = self.decodes(*(side(f"d{i}", Step(0.01 + i * 1e-5)) for i in range(3)))
        went = []
        for _ in range(6):
            best = decodes.best(100, NO_GAP)
            decodes.use(best)
            went.append(best.id)
        assert sorted(went[:3]) == sorted(went[3:]) == ["d0", "d1", "d2"]

    def test_one_to_avoid_only_where_there_is_no_other_at_all(self):
        full = side("full", **told(9000, 10_000, running=1))
        decodes = self.decodes(full, side("free", Step(0.5)))
        assert decodes.best(5000, NO_GAP, ("free",)) is None
        assert decodes.best(5000, NO_GAP, ("free", "full")).id == "free"

    def test_what_changed_is_looked_at_again(self):
        ledger = Ledger()
        decodes = Decodes(ledger, [side("d0"), side("d1", Step(0.0108, 0.001))])
        assert decodes.best(100, NO_GAP).id == "d0"
        request = make_request(prompt_tokens=1000)
        ledger.start(request, Route("d0", "p0"), 0.0)
        decodes.changed("d0")
        decodes.changed("stranger")
        assert decodes.best(100, NO_GAP).id == "d1"
        ledger.finish(request.id)
        decodes.changed("d0")
        assert decodes.best(100, NO_GAP).id == "d0"

    def test_room_and_steps_of_all_together(self):
        full = side("full", **told(9000, 10_000, running=1))
        decodes = self.decodes(full, side("half", Step(0.02, 0.001), **told(5000, 10_000, running=1)))
        assert decodes.room(somebody()) == 6000
        assert decodes.most_room() == 10_000
        assert decodes.least_step_s() == pytest.approx(0.01 + 2 * 0.001 + 0.009)
        assert self.decodes().least_step_s() == 0.0
        assert self.decodes().most_room() == 0.0
        assert self.decodes(side()).most_room() == inf

    def test_who_is_ruled_out_is_told_with_the_reason(self):
        tight = side("tight")
        tight.bounds["r"] = (0.0115, 0.99)
        busy = make_request(id="busy", prompt_tokens=10)
        ledger = Ledger()
        ledger.start(busy, Route("tight", "p0"), 0.0)
        decodes = Decodes(
            ledger, [tight, side("full", **told(9999, 10_000, running=1)), side("a"), side("b")]
        )
        assert decodes.best(100, NO_GAP, ("a",)).id == "b"
        out = dict(decodes.ruled_out(100, NO_GAP, ("a",), None))
        assert out == {"tight": GAPS, "full": NO_ROOM, "a": AVOIDED}


class TestTails:
    """A gap is promised at a quantile; so is the step held against it."""

    class Predictor(FakePredictor):
        def itl_tail_s(self, endpoint, predicted_s, quantile):
            return predicted_s * {0.5: 0.0, 0.9: 0.2, 0.99: 0.4}[quantile]

    def one(self):
        busy = side(step=Step(0.010, 0.001))
        busy.gaps = Gaps(self.Predictor())
        busy.refresh(Sums(9, 0, 0))
        return busy

    def test_a_step_within_the_bound_in_the_median_breaks_it_in_the_tail(self):
        one = self.one()
        assert one.step_s(1, 0) == pytest.approx(0.020)
        assert not one.risks_gaps(0, (0.022, 0.5))
        assert not one.breaks_gaps(0, (0.022, 0.9))
        assert one.risks_gaps(0, (0.022, 0.9))
        assert one.risks_gaps(0, (0.027, 0.99))
        assert not one.risks_gaps(0, (0.029, 0.99))

    def test_so_it_does_for_those_that_decode_there(self):
        one = self.one()
        for gap, breaks in (((0.022, 0.5), False), ((0.022, 0.9), True)):
            one.bounds = {"r": gap, "s": (1.0, 0.99)}
            one.refresh(Sums(9, 0, 0))
            assert one.risks_gaps(0, NO_GAP) is breaks
            assert not one.breaks_gaps(0, NO_GAP)

    def test_one_that_keeps_the_tail_is_preferred_and_not_waited_for(self):
        ledger, gaps = Ledger(), Gaps(self.Predictor())
        sides = [side("a", Step(0.020)), side("b", Step(0.022)), side("c", Step(0.026))]
        for number, one in enumerate(sides):
            one.gaps = gaps
            ledger.start(make_request(id=str(number)), Route(one.id, "p0"), 0.0)
        sides[0].bounds["strict"] = (0.025, 0.99)
        decodes = Decodes(ledger, sides)
        assert decodes.best(0, (0.035, 0.99)).id == "b"
        assert decodes.best(0, (0.026, 0.99)).id == "a"
        assert decodes.best(0, (0.019, 0.99)) is None


fleets = st.lists(
    st.tuples(
        st.integers(0, 20_000), st.sampled_from([None, 10_000, 20_000]), st.integers(0, 8),
        st.sampled_from([None, 0.012, 0.02, 0.04]), st.booleans(), st.floats(0.005, 0.02),
    ),
    max_size=6,
)  # fmt: skip


@settings(max_examples=200)
@given(
    fleets, st.integers(1, 15_000), st.sampled_from([inf, 0.011, 0.02, 0.05]),
    st.frozensets(st.sampled_from(["d0", "d1", "d2"])),
)  # fmt: skip
def test_the_best_breaks_no_bound_and_no_room_and_is_as_fast_as_any_that_does_neither(
    fleet, tokens, bound_s, avoid
):
    sides, me, other = [], somebody(), somebody()
    for number, (used, total, running, strictest_s, kept, base_s) in enumerate(fleet):
        load = Load(0.0, running, kv_used_tokens=used, kv_total_tokens=total)
        one = side(f"d{number}", Step(base_s, 0.001, 1e-6), load=load)
        if strictest_s is not None:
            one.bounds["r"] = (strictest_s, 0.99)
        if kept:
            one.kept_for, one.kept_tokens = other, 4000
        sides.append(one)
    decodes = Decodes(Ledger(), sides)
    best = decodes.best(tokens, (bound_s, 0.99), avoid, me)
    shunned = avoid if {s.id for s in sides} - avoid else ()

    def may(one):
        step_s = one.step_s(1, tokens)
        gaps = not one.batch or step_s <= min(bound_s, min((b for b, _ in one.bounds.values()), default=inf))
        return one.room(me) >= tokens and gaps and one.id not in shunned

    allowed = [one for one in sides if may(one)]
    if best is None:
        assert not allowed
    else:
        assert best in allowed
        assert best.step_s(0, 0) <= min(one.step_s(0, 0) for one in allowed) * (1 + SAME) + SAME_S + 1e-12
