"""power-of-two: the better of two that are drawn."""

from collections import Counter
from random import Random

import pytest

from orchestrator.policy import Scored
from orchestrator.policy.build import make_policy
from orchestrator.policy.testing import make_context, make_request

FOUR = [Scored("a", 4.0), Scored("b", 3.0), Scored("c", 2.0), Scored("d", 1.0)]


def shares(scored, n=6000, **params):
    policy = make_policy("power-of-two", params)
    context = make_context([], rng=Random(5))
    counts = Counter(policy.pick(make_request(), scored, context).endpoint for _ in range(n))
    return [counts[s.endpoint] / n for s in scored]


def test_the_better_of_two_and_never_the_worst():
    assert shares(FOUR) == pytest.approx([3 / 6, 2 / 6, 1 / 6, 0.0], abs=0.03)


def test_more_choices_are_greedier():
    assert shares(FOUR, choices=3) == pytest.approx([3 / 4, 1 / 4, 0.0, 0.0], abs=0.03)
    assert shares(FOUR, choices=9) == [1.0, 0.0, 0.0, 0.0]


def test_one_choice_is_none():
    assert shares(FOUR, choices=1) == pytest.approx([0.25] * 4, abs=0.03)


def test_equals_are_equally_likely():
    assert shares([Scored(i, 1.0) for i in "abcd"]) == pytest.approx([0.25] * 4, abs=0.03)


def test_a_lone_candidate():
    assert shares(FOUR[:1]) == [1.0]
