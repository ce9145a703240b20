"""One role's choice: what filters, scorers and pickers may do, and what becomes of anything else."""

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.choosing import AllFiltered, RoleProfile, Step, choose, least_work
from orchestrator.core.types import Choice, Inflight, Load, Role, Scored
from orchestrator.errors import PolicyError
from orchestrator.policy.testing import make_context, make_endpoint, make_request


class Keep:
    """A filter that keeps the named endpoints, or returns or raises whatever it is given."""

    def __init__(self, *ids, instead=None):
        self.ids, self.instead, self.seen = ids, instead, []

    def filter(self, request, candidates, context):
        self.seen.append([e.id for e in candidates])
        if isinstance(self.instead, Exception):
            raise self.instead
        if self.instead is not None:
            return self.instead
        return [e for e in candidates if e.id in self.ids]


class Score:
    """A scorer with the given share for each endpoint id, or that returns or raises what it is given."""

    unit = "share"

    def __init__(self, instead=None, **shares):
        self.shares, self.instead = shares, instead

    def score(self, request, candidates, context):
        if isinstance(self.instead, Exception):
            raise self.instead
        if self.instead is not None:
            return self.instead
        return [self.shares.get(e.id, 0.0) for e in candidates]


class Best:
    def pick(self, request, scored, context):
        return max(scored, key=lambda s: s.total)


class Pick:
    """A picker that returns or raises what it is given."""

    def __init__(self, instead):
        self.instead = instead

    def pick(self, request, scored, context):
        if isinstance(self.instead, Exception):
            raise self.instead
        return self.instead


BEST = Step("best", Best())
A, B, C = (make_endpoint(i) for i in "abc")


def run(profile, candidates=(A, B, C), **context):
    errors = []
    result = choose(
        profile,
        make_request(),
        candidates,
        make_context(candidates, **context),
        lambda name, error: errors.append((name, error)),
    )
    return result, errors


def test_filters_run_in_order_on_what_is_left():
    first, second = Keep("b", "c"), Keep("c", "a")
    profile = RoleProfile(BEST, filters=(Step("first", first), Step("second", second)))
    choice, _ = run(profile)
    assert (first.seen, second.seen) == ([["a", "b", "c"]], [["b", "c"]])
    assert choice.chosen == "c"
    assert choice.filtered == {"a": "first", "b": "second"}


def test_none_left_says_who_took_out_whom_and_asks_no_further():
    never = Keep("a")
    profile = RoleProfile(
        BEST, filters=(Step("first", Keep("b")), Step("second", Keep()), Step("third", never))
    )
    result, errors = run(profile)
    assert result == AllFiltered({"a": "first", "c": "first", "b": "second"})
    assert never.seen == []
    assert errors == []


def test_scores_are_weighted_and_their_parts_add_up():
    profile = RoleProfile(
        BEST,
        scorers=(Step("x", Score(a=1.0, b=0.5), 2.0), Step("y", Score(b=1.0, c=0.5), 3.0)),
    )
    choice, _ = run(profile)
    assert isinstance(choice, Choice)
    assert (choice.chosen, choice.runner_up) == ("b", "a")
    assert choice.scored == (
        Scored("a", 2.0, {"x": 2.0, "y": 0.0}),
        Scored("b", 4.0, {"x": 1.0, "y": 3.0}),
        Scored("c", 1.5, {"x": 0.0, "y": 1.5}),
    )


def test_one_candidate_has_no_runner_up_and_none_scores_without_scorers():
    choice, _ = run(RoleProfile(BEST), (A,), role=Role.DECODE)
    assert (choice.chosen, choice.runner_up, choice.role) == ("a", None, Role.DECODE)
    assert choice.scored == (Scored("a", 0.0),)


STRANGER = make_endpoint("stranger")


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (Keep(instead=ValueError("boom")), "ValueError: boom"),
        (Keep(instead=[STRANGER]), "kept stranger, which it was not given"),
        (Keep(instead=[A, STRANGER]), "kept stranger"),
        (Keep(instead=7), "TypeError"),
        (Keep(instead=["a"]), "Error: "),
    ],
)
def test_a_filter_that_misbehaves_is_passed_over_and_the_others_hold(bad, says):
    profile = RoleProfile(
        BEST,
        filters=(Step("good", Keep("a", "b")), Step("bad", bad), Step("last", Keep("b", "c"))),
        scorers=(Step("x", Score(a=1.0)),),
    )
    choice, errors = run(profile)
    assert choice.chosen == "b"
    assert choice.fallbacks == ("bad",)
    assert choice.filtered == {"c": "good", "a": "last"}
    ((name, error),) = errors
    assert name == "bad"
    assert isinstance(error, PolicyError)
    assert says in str(error)
    assert str(error).startswith("policy bad: ")


def test_it_is_told_at_which_line_a_policy_failed():
    class Worse:
        def filter(self, request, candidates, context):
            return candidates[0].no_such_thing

    for bad, line in ((Worse(), Worse.filter.__code__.co_firstlineno + 1),
                      (Keep(instead=[STRANGER]), Keep.filter.__code__.co_firstlineno)):  # fmt: skip
        _, ((_, error),) = run(RoleProfile(BEST, filters=(Step("bad", bad),)))
        assert str(error).endswith(f"({__file__}:{line})")


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (Score(instead=ZeroDivisionError("div")), "ZeroDivisionError: div"),
        (Score(instead=[0.5, 0.5]), "returned 2 scores for 3 candidates"),
        (Score(instead=[0.5] * 4), "returned 4 scores for 3 candidates"),
        (Score(a=math.nan), "the score of a, nan, is not a number in 0..1"),
        (Score(c=math.nan, a=0.5), "the score of c, nan, is not a number in 0..1"),
        (Score(b=math.inf), "the score of b, inf"),
        (Score(b=-math.inf), "the score of b, -inf"),
        (Score(b=1.5), "the score of b, 1.5"),
        (Score(b=-0.1), "the score of b, -0.1"),
        (Score(instead=["a", "b", "c"]), "ValueError"),
        (Score(instead=3), "TypeError"),
    ],
)
def test_a_scorer_that_misbehaves_leaves_the_choice_to_least_work(bad, says):
    busy = make_endpoint("a", inflight=Inflight(1, 5000, 0))
    profile = RoleProfile(BEST, scorers=(Step("x", Score(a=1.0)), Step("bad", bad)))
    choice, ((name, error),) = run(profile, (busy, B, C))
    assert choice.chosen in ("b", "c")
    assert choice.scored == ()
    assert choice.fallbacks == (name,) == ("bad",)
    assert says in str(error)


def test_least_work_too_is_held_to_what_the_filters_kept():
    idle, busy = B, make_endpoint("a", inflight=Inflight(1, 5000, 0))
    bad = Step("bad", Score(instead=ValueError("x")))
    choice, _ = run(RoleProfile(BEST, filters=(Step("f", Keep("a")),), scorers=(bad,)), (busy, idle))
    assert choice.chosen == "a"


@pytest.mark.parametrize(
    "bad", [Pick(RuntimeError("no")), Pick(None), Pick(Scored("stranger", 9.0)), Pick(Scored("b", 9.0))]
)
def test_a_picker_that_misbehaves_leaves_the_choice_to_least_work_of_what_was_kept(bad):
    busy = make_endpoint("a", inflight=Inflight(1, 5000, 0))
    profile = RoleProfile(Step("bad", bad), filters=(Step("f", Keep("a", "c")),))
    choice, errors = run(profile, (busy, B, C))
    assert choice.chosen == "c"
    assert choice.fallbacks == ("bad",)
    assert [name for name, _ in errors] == ["bad"]


def test_several_fallbacks_are_all_named():
    profile = RoleProfile(
        BEST,
        filters=(Step("f", Keep(instead=KeyError("k"))),),
        scorers=(Step("s", Score(instead=KeyError("k"))),),
    )
    choice, errors = run(profile)
    assert choice.fallbacks == ("f", "s")
    assert len(errors) == 2


def test_least_work_is_prompt_tokens_then_requests():
    some = make_endpoint("some", inflight=Inflight(1, 100, 0))
    other = make_endpoint("other", inflight=Inflight(2, 100, 0))
    more = make_endpoint("more", inflight=Inflight(0, 101, 0))
    foreign = make_endpoint("foreign", inflight=Inflight(1, 100, 0), load=Load(0.0, running=9))
    assert least_work([foreign, more, other, some], Random(0)) is some


def test_least_work_draws_among_equals():
    drawn = {least_work([A, B, C], Random(seed)).id for seed in range(30)}
    assert drawn == {"a", "b", "c"}


IDS = "abcdefgh"
FILTERS = st.one_of(
    st.sets(st.sampled_from(IDS)).map(lambda ids: Keep(*ids)),
    st.sampled_from([ValueError("x"), 3, [STRANGER]]).map(lambda bad: Keep(instead=bad)),
)
SCORERS = st.one_of(
    st.dictionaries(st.sampled_from(IDS), st.floats(0, 1)).map(lambda shares: Score(**shares)),
    st.dictionaries(st.sampled_from(IDS), st.floats()).map(lambda shares: Score(**shares)),
    st.sampled_from([ValueError("x"), 3, [0.5] * 9]).map(lambda bad: Score(instead=bad)),
)
PICKERS = st.sampled_from([Best(), Pick(ValueError("x")), Pick(None), Pick(Scored("stranger", 1.0))])


@given(st.integers(1, 8), st.lists(FILTERS, max_size=3), st.lists(SCORERS, max_size=3), PICKERS)
def test_the_picked_one_was_never_filtered(n, filters, scorers, picker):
    """Whatever the policies do: the choice is a candidate that every filter that worked has kept."""
    profile = RoleProfile(
        Step("p", picker),
        tuple(Step(f"f{i}", f) for i, f in enumerate(filters)),
        tuple(Step(f"s{i}", s) for i, s in enumerate(scorers)),
    )
    result, errors = run(profile, [make_endpoint(i) for i in IDS[:n]])
    surviving = set(IDS[:n]).intersection(*(f.ids for f in filters if f.instead is None))
    if isinstance(result, AllFiltered):
        assert not surviving
        assert result.filtered.keys() == set(IDS[:n])
    else:
        assert result.chosen in surviving
        assert result.filtered.keys() == set(IDS[:n]) - surviving
        assert result.fallbacks == tuple(name for name, _ in errors)
