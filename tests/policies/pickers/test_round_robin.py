"""round-robin: turns that endpoints joining, leaving or being filtered do not disturb."""

from orchestrator.policy import Role, Scored
from orchestrator.policy.build import make_policy
from orchestrator.policy.testing import make_context, make_request


class Turns:
    def __init__(self):
        self.policy = make_policy("round-robin", {})

    def __call__(self, ids, model="m", role=Role.UNIFIED, **totals):
        scored = [Scored(i, totals.get(i, 0.0)) for i in ids]
        return self.policy.pick(make_request(model=model), scored, make_context([], role)).endpoint


def test_each_in_turn_whatever_the_order_they_are_given_in():
    turn = Turns()
    assert [turn(ids) for ids in ("abc", "cba", "bca", "abc")] == ["a", "b", "c", "a"]


def test_one_that_is_away_loses_its_turn_and_nobody_elses():
    turn = Turns()
    assert [turn("abc"), turn("ac"), turn("abc"), turn("abcd"), turn("abcd")] == ["a", "c", "a", "b", "c"]


def test_models_and_roles_have_turns_of_their_own():
    turn = Turns()
    assert [turn("ab", "m1"), turn("ab", "m2"), turn("ab", "m1"), turn("ab", "m1", Role.DECODE)] == [
        "a",
        "a",
        "b",
        "a",
    ]


def test_with_scores_the_best_take_turns():
    turn = Turns()
    assert [turn("abc", a=1.0, c=1.0) for _ in range(3)] == ["a", "c", "a"]
