"""Decode sides: memory, gap promises, kept room, and who is best; never against a bound."""

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.core.decisions import Waiting
from orchestrator.core.inflight import Ledger, Sums
from orchestrator.core.late.decodes import AVOIDED, GAPS, NO_ROOM, SAME, SAME_S, Decodes, DecodeSide
from orchestrator.core.prediction import Step
from orchestrator.core.types import Inflight, Load, Role, Route
from orchestrator.policy.testing import make_endpoint, make_request

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
        assert self.decodes(side("slow", Step(0.02)), side("fast", Step(0.01))).best(100, inf).id == "fast"

    def test_those_that_are_the_same_take_turns(self):
        decodes = self.decodes(*(side(f"d{i}", Step(0.01 + i * 1e-5)) for i in range(3)))
        went = []
        for _ in range(6):
            best = decodes.best(100, inf)
            decodes.use(best)
            went.append(best.id)
        assert sorted(went[:3]) == sorted(went[3:]) == ["d0", "d1", "d2"]

    def test_one_to_avoid_only_where_there_is_no_other_at_all(self):
        full = side("full", **told(9000, 10_000, running=1))
        decodes = self.decodes(full, side("free", Step(0.5)))
        assert decodes.best(5000, inf, ("free",)) is None
        assert decodes.best(5000, inf, ("free", "full")).id == "free"

    def test_what_changed_is_looked_at_again(self):
        ledger = Ledger()
        decodes = Decodes(ledger, [side("d0"), side("d1", Step(0.0108, 0.001))])
        assert decodes.best(100, inf).id == "d0"
        request = make_request(prompt_tokens=1000)
        ledger.start(request, Route("d0", "p0"), 0.0)
        decodes.changed("d0")
        decodes.changed("stranger")
        assert decodes.best(100, inf).id == "d1"
        ledger.finish(request.id)
        decodes.changed("d0")
        assert decodes.best(100, inf).id == "d0"

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
        tight.bounds["r"] = 0.0115
        busy = make_request(id="busy", prompt_tokens=10)
        ledger = Ledger()
        ledger.start(busy, Route("tight", "p0"), 0.0)
        decodes = Decodes(
            ledger, [tight, side("full", **told(9999, 10_000, running=1)), side("a"), side("b")]
        )
        assert decodes.best(100, inf, ("a",)).id == "b"
        out = dict(decodes.ruled_out(100, inf, ("a",), None))
        assert out == {"tight": GAPS, "full": NO_ROOM, "a": AVOIDED}


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
            one.bounds["r"] = strictest_s
        if kept:
            one.kept_for, one.kept_tokens = other, 4000
        sides.append(one)
    decodes = Decodes(Ledger(), sides)
    best = decodes.best(tokens, bound_s, avoid, me)
    shunned = avoid if {s.id for s in sides} - avoid else ()

    def may(one):
        step_s = one.step_s(1, tokens)
        gaps = not one.batch or step_s <= min(bound_s, min(one.bounds.values(), default=inf))
        return one.room(me) >= tokens and gaps and one.id not in shunned

    allowed = [one for one in sides if may(one)]
    if best is None:
        assert not allowed
    else:
        assert best in allowed
        assert best.step_s(0, 0) <= min(one.step_s(0, 0) for one in allowed) * (1 + SAME) + SAME_S + 1e-12
